"""Values and comments as TOML, whatever a database's names hold. Pure."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence

from penstock.words import visible

_WIDTH = 98


def value(given: object) -> str:
    """A text, a list, or a table in braces, on one line.

    >>> print(value(["public.orders", 'app."Order Lines"']))
    ["public.orders", 'app."Order Lines"']
    >>> print(value({"a b": "line\\n"}))
    { "a b" = "line\\u000a" }
    """
    match given:
        case str():
            return _text(given)
        case Mapping():
            pairs = (f"{key(name)} = {value(each)}" for name, each in given.items())
            return f"{{ {', '.join(pairs)} }}"
        case Sequence():
            return f"[{', '.join(map(value, given))}]"
    raise TypeError(f"no value of the file is a {type(given).__name__}")


def key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _basic(name)


def comment(*paragraphs: str, indent: str = "") -> Iterator[str]:
    """Lines of prose."""
    for paragraph in paragraphs:
        yield from textwrap.wrap(
            visible(paragraph),
            _WIDTH - len(indent),
            initial_indent=f"{indent}# ",
            subsequent_indent=f"{indent}# ",
            break_long_words=False,
            break_on_hyphens=False,
        )


def commented(line: str, indent: str = "") -> str:
    """What a person may take out of the comment, or copy out of it: one line, however long.

    A line break in a name would end the comment.
    """
    return f"{indent}# {visible(line)}"


def _text(given: str) -> str:
    # The names that SQL quotes are easier to read without a backslash before each quote.
    if '"' in given and "'" not in given and given.isprintable():
        return f"'{given}'"
    return _basic(given)


def _basic(given: str) -> str:
    return '"' + visible(re.sub(r'(["\\])', r"\\\1", given)) + '"'
