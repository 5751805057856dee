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
