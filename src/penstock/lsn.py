"""Positions in the write-ahead log. Shared word: imports nothing local."""

from __future__ import annotations

import re

_TEXT = re.compile(r"([0-9A-Fa-f]{1,8})/([0-9A-Fa-f]{1,8})")
_MAX = 0xFFFF_FFFF_FFFF_FFFF


class Lsn(int):
    """A byte position in the WAL: an `int` that reads and prints as Postgres writes it.

    >>> Lsn.parse("16/B374D848")
    Lsn('16/B374D848')
    >>> str(Lsn(0x16_B374_D848))
    '16/B374D848'
    >>> Lsn.parse("0/10") < Lsn.parse("1/0")
    True

    A *commit LSN* is always the end of the commit record (`Commit.end_lsn`): the next commit
    may start exactly there, so a test on the start of the record would lose changes.
    """

    __slots__ = ()

    def __new__(cls, value: int = 0) -> Lsn:
        if not 0 <= value <= _MAX:
            raise ValueError(f"an LSN has 64 bits, not {value:#x}")
        return super().__new__(cls, value)

    @classmethod
    def parse(cls, text: str) -> Lsn:
        """Read Postgres's `X/Y` form.

        >>> Lsn.parse("not an lsn")
        Traceback (most recent call last):
            ...
        ValueError: 'not an lsn' is not an LSN such as 16/B374D848
        """
        match = _TEXT.fullmatch(text.strip())
        if match is None:
            raise ValueError(f"{text!r} is not an LSN such as 16/B374D848")
        return cls(int(match[1], 16) << 32 | int(match[2], 16))

    def __str__(self) -> str:
        return f"{self >> 32:X}/{self & 0xFFFF_FFFF:X}"

    def __repr__(self) -> str:
        return f"Lsn('{self}')"


ZERO = Lsn(0)
