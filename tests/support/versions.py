"""The servers that the tests run on, and which tests run on which of them.

They are the newest minor release of each version that can be had, and two older ones, so that both
sides of a minor release's changes are seen. Most tests run on `USUAL`; a test or module that is
marked `every_version` runs on all: settings, roles, slots, doctor, set-up and the protocol.
`make soak` runs everything on all.
"""

from __future__ import annotations

from penstock.postgres.installations import FETCHED, Version, minor_of
from support.repeats import SOAK

# 15 is Debian's, whichever it has. Of the others exactly the fetched ones: if one is missing, its
# tests fail and say so; those of PyPI would hide it.
NEWEST: dict[int, Version] = {
    15: 15,
    **{major: ".".join(map(str, minor_of(revision))) for major, revision in FETCHED.items()},
}
# Those of the package from PyPI. Before 15.19, 16.15, 17.11 and 18.6 slots could use any plugin.
OLDER: tuple[Version, ...] = ("16.14", "18.4")

EVERY: tuple[Version, ...] = (*NEWEST, *OLDER)
USUAL: tuple[Version, ...] = EVERY if SOAK else (15, 18)


def version_id(version: object) -> str:
    return f"pg{version}"
