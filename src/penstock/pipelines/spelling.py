"""Texts that a target's database cannot hold, spelled so that it can keep them. Pure.

No text of PostgreSQL has a zero byte, and a database in another encoding than UTF-8 does not have
every character. A key with such a text is refused by the target as any other may be; what waits
for it, in `penstock.parked` or in `penstock.staged`, has to be written all the same.
"""

from __future__ import annotations

from functools import cache

import pyarrow as pa
import pyarrow.compute as pc
from psycopg._encodings import pg2pyenc  # its public names are of the client's encoding only

_ZERO = "\0"
# What all encodings have.
_ASCII = r"^[\x01-\x7f]*$"
# Encodings of one byte for a character: of others Python has more characters than the server, such
# as ¥ in EUC_JP, and what it takes for writable the server would refuse.
_ALIKE = ("LATIN", "WIN", "KOI8", "ISO_8859_")


def is_unwritable(text: str, encoding: str | None) -> bool:
    r"""By a database with this encoding.

    >>> [is_unwritable("né", encoding) for encoding in ("UTF8", "SQL_ASCII", "LATIN1", "KOI8R")]
    [False, False, False, True]

    Where we do not know, it is: then the server is asked for each by itself.

    >>> is_unwritable("日本", "EUC_JP")
    True
    >>> is_unwritable("a\0", "UTF8")
    True
    """
    if _ZERO in text:
        return True
    if _takes_all(encoding):
        return False
    try:
        text.encode(_codec(encoding))
    except UnicodeEncodeError:
        return True
    return False


def unwritable(texts: pa.ChunkedArray, encoding: str | None) -> pa.Array | pa.ChunkedArray | None:
    """Which of many; None: none of them."""
    if _takes_all(encoding):
        found = pc.fill_null(pc.match_substring(texts, _ZERO), False)
    elif pc.all(pc.match_substring_regex(texts, _ASCII)).as_py():
        return None
    else:
        found = pa.array(
            [text is not None and is_unwritable(text, encoding) for text in texts.to_pylist()],
            pa.bool_(),
        )
    return found if pc.any(found).as_py() else None


def has_zero(key: tuple[str | None, ...]) -> bool:
    """No database can hold it."""
    return any(part is not None and _ZERO in part for part in key)


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


def _takes_all(encoding: str | None) -> bool:
    # A database without an encoding takes whatever bytes it is given.
    return encoding in ("UTF8", "SQL_ASCII")


@cache
def _codec(encoding: str | None) -> str:
    """Python's name of it, or as little as all have."""
    if encoding is None or not encoding.startswith(_ALIKE):
        return "ascii"
    return pg2pyenc(encoding.encode())
