"""Numbers and names in sentences. Shared word: imports nothing local."""

from __future__ import annotations

from collections.abc import Iterable


def counted(number: int, noun: str) -> str:
    """A number and what it counts, of nouns that take an s.

    >>> counted(1, "segment"), counted(0, "segment"), counted(1234, "byte")
    ('1 segment', '0 segments', '1,234 bytes')
    """
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def few(things: Iterable[object], most: int = 3) -> str:
    """The first ones, and how many there are besides.

    >>> few("ab"), few("abcde")
    ('a, b', 'a, b, c and 2 more')
    """
    names = [str(each) for each in things]
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def binary_size(size: float) -> str:
    """A number of bytes as people read it.

    >>> binary_size(900), binary_size(5 * 2**20), binary_size(3.68 * 2**30)
    ('900 bytes', '5.0 MiB', '3.7 GiB')
    """
    for unit, one in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size >= one:
            return f"{size / one:.1f} {unit}"
    return counted(int(size), "byte")


def duration(seconds: float) -> str:
    """A span of time as people say it, rounded down to its two largest units.

    >>> duration(42.7), duration(600), duration(3600 * 5 + 60 * 7), duration(86400 * 3)
    ('42 s', '10 min', '5 h 7 min', '3 d')
    """
    left, parts = int(seconds), []
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60), ("s", 1)):
        number, left = divmod(left, size)
        parts.append((number, unit))
    first = next((at for at, (number, _) in enumerate(parts) if number), len(parts) - 1)
    told = [f"{number} {unit}" for number, unit in parts[first : first + 2] if number]
    return " ".join(told) or "0 s"


def visible(text: str, keep: str = "") -> str:
    """On one line, with escapes for what cannot be seen, but for the characters in `keep`.

    Names in a database may hold anything, a terminal's commands too.

    >>> print(visible("a\\nb"), visible("a\\nb", keep="\\n") == "a\\nb")
    a\\u000ab True
    """
    return "".join(each if each.isprintable() or each in keep else _escape(each) for each in text)


def _escape(character: str) -> str:
    code = ord(character)
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"
