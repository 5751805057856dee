"""What a type's SQL spelling says: `numeric(10,2)`, `public.mood[]`. Pure.

PostgreSQL's function `format_type` writes it. With `search_path = pg_catalog`, types that users
made carry their schema, and the server's own do not.
"""

from __future__ import annotations

import re
from functools import cache

_IDENTIFIER = r'"(?:[^"]|"")*"|[^\s".(\[]+'
_QUALIFIED = re.compile(rf"({_IDENTIFIER})\.({_IDENTIFIER})(?:\(.*\))?", re.DOTALL)
# Name, modifier, and what stands behind that: "timestamp", "3", " with time zone".
_BUILTIN = re.compile(r'"?([a-z][a-z0-9_ ]*?)"?(?:\(([-0-9, ]+)\))?( with(?:out)? time zone)?')
_INTERVAL = re.compile(r"interval((?: (?:to|year|month|day|hour|minute|second))*)(?:\((\d+)\))?")
# As SQL spells them, and as pg_type names them.
_PG_NAMES = {
    "boolean": "bool",
    "smallint": "int2",
    "integer": "int4",
    "bigint": "int8",
    "real": "float4",
    "double precision": "float8",
    "character": "bpchar",
    "character varying": "varchar",
    "bit varying": "varbit",
    "time without time zone": "time",
    "time with time zone": "timetz",
    "timestamp without time zone": "timestamp",
    "timestamp with time zone": "timestamptz",
}
_FIELD_BITS = {"month": 1, "year": 2, "day": 3, "hour": 10, "minute": 11, "second": 12}
_FIELDS = list("year month day hour minute second".split())
_ALL_FIELDS = 0x7FFF
_ALL_DIGITS = 0xFFFF
# Before the length itself.
_HEADER_BYTES = 4


@cache
def type_name(text: str) -> tuple[str, str]:
    """Return schema and name as in pg_type; an array's name starts with an underscore.

    >>> type_name("character varying(30)[]")
    ('pg_catalog', '_varchar')
    >>> type_name('app."Odd ""name"')
    ('app', 'Odd "name')
    """
    element = text.removesuffix("[]")
    underscore = "_" if element != text else ""
    if (qualified := _QUALIFIED.fullmatch(element)) is not None:
        return _plain(qualified[1]), underscore + _plain(qualified[2])
    if element.startswith("interval"):
        return "pg_catalog", underscore + "interval"
    builtin = _BUILTIN.fullmatch(element)
    name = element if builtin is None else builtin[1] + (builtin[3] or "")
    return "pg_catalog", underscore + _PG_NAMES.get(name, name)


@cache
def type_modifier(text: str) -> int:
    """Return the modifier of one of the server's own types, as in pg_attribute; -1: none.

    >>> type_modifier("numeric(10,2)"), type_modifier("text")
    (655366, -1)
    """
    element = text.removesuffix("[]")
    if (interval := _INTERVAL.fullmatch(element)) is not None:
        return _interval_modifier(interval[1].split(), interval[2])
    builtin = _BUILTIN.fullmatch(element)
    if builtin is None or builtin[2] is None:
        return -1
    first, *rest = (int(number) for number in builtin[2].split(","))
    match builtin[1]:
        case "numeric":
            scale = rest[0] if rest else 0
            return (first << 16 | scale & 0x7FF) + _HEADER_BYTES
        case "character" | "character varying":
            return first + _HEADER_BYTES
        case "bit" | "bit varying" | "time" | "timestamp":
            return first
        case _:
            return -1


def _interval_modifier(words: list[str], digits: str | None) -> int:
    """| 15 bits: which fields | 16 bits: how many digits of a second |; all: no modifier."""
    if not words and digits is None:
        return -1
    fields = _ALL_FIELDS
    if words:
        first, last = _FIELDS.index(words[0]), _FIELDS.index(words[-1])
        fields = sum(1 << _FIELD_BITS[name] for name in _FIELDS[first : last + 1])
    return fields << 16 | (_ALL_DIGITS if digits is None else int(digits))


def _plain(identifier: str) -> str:
    return identifier[1:-1].replace('""', '"') if identifier.startswith('"') else identifier
