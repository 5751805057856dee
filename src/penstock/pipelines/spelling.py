"""Texts that a target's database cannot hold, spelled so that it can keep them. Pure.

No text of PostgreSQL has a zero byte, and a database in another encoding than UTF-8 does not have
every character. A key with such a text is refused by the target as any other may be; what waits
for it, in `penstock.parked` or in `penstock.staged`, has to be written all the same.
"""

from __future__ import annotations

import re

_ZERO = re.compile(r"\x00")
# Which characters another encoding has is the server's to know: what is ASCII, all of them have.
_BEYOND_ASCII = re.compile(r"[^\x01-\x7f]")


def unwritable(encoding: str | None) -> re.Pattern[str]:
    """What must not be in a text of a database with this encoding; for Arrow, too.

    >>> [bool(unwritable(each).search("né")) for each in ("UTF8", "SQL_ASCII", "LATIN1")]
    [False, False, True]
    """
    # A database without an encoding takes whatever bytes it is given.
    return _ZERO if encoding in ("UTF8", "SQL_ASCII") else _BEYOND_ASCII


def spelled(text: str) -> str:
    r"""In ASCII.

    >>> spelled("é\0")
    'c3a900'
    """
    return text.encode().hex()


def meant(spelling: str) -> str:
    r"""Of what was `spelled`.

    >>> meant("c3a900")
    'é\x00'
    """
    return bytes.fromhex(spelling).decode()
