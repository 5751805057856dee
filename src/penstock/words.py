"""Numbers in sentences. Shared word: imports nothing local."""

from __future__ import annotations


def counted(number: int, noun: str) -> str:
    """A number and what it counts, of nouns that take an s.

    >>> counted(1, "segment"), counted(0, "segment"), counted(1234, "byte")
    ('1 segment', '0 segments', '1,234 bytes')
    """
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
