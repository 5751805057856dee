"""How wide the values of a column can become in an index. Pure.

A btree entry has at most 2,704 bytes on the usual pages of 8 kB. A longer one makes the
application's INSERT fail, so an index is advised only over columns whose values have a small bound.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from penstock.postgres.tables import Column

# Below the server's 2,704, less what the entry itself needs.
MAX_ENTRY_BYTES = 2_600
# A value's length word, and the padding before it.
_OVERHEAD_BYTES = 12
# The most that a character takes in any encoding of a server.
_CHARACTER_BYTES = 4

_FIXED_BYTES = {
    "bool": 1,
    "char": 1,
    "int2": 2,
    "int4": 4,
    "oid": 4,
    "date": 4,
    "float4": 4,
    "int8": 8,
    "float8": 8,
    "money": 8,
    "pg_lsn": 8,
    "xid8": 8,
    "time": 8,
    "timestamp": 8,
    "timestamptz": 8,
    "macaddr": 6,
    "macaddr8": 8,
    "timetz": 12,
    "interval": 16,
    "uuid": 16,
    "inet": 18,
    "cidr": 18,
    "name": 64,
}
_TEXTS = frozenset({"text", "varchar", "bpchar"})

# How the server prints conditions on one column, such as CHECK ((char_length(status) <= 20)).
_NAME = r'(?:\((?:[a-z_]\w*|"(?:[^"]|"")+")\)::text|[a-z_]\w*|"(?:[^"]|"")+")'
_LENGTH = re.compile(
    rf"CHECK \(\((?P<function>char_length|character_length|length|octet_length)\({_NAME}\)"
    r" (?P<operator><=|<|=) (?P<number>\d+)\)\)"
)
_LITERAL = r"'(?:[^']|'')*'::(?:text|character varying|bpchar)"
_ARRAY = rf"ARRAY\[{_LITERAL}(?:, {_LITERAL})*\]"
_LISTED = re.compile(rf"CHECK \(\({_NAME} = ANY \((?P<array>{_ARRAY}|\({_ARRAY}\)::text\[\])\)\)\)")


def fits_an_index(columns: Iterable[Column]) -> bool:
    """Whether no value of these columns can be too long for one entry of a btree index."""
    widths = [widest_bytes(column) for column in columns]
    known = [width for width in widths if width is not None]
    return len(known) == len(widths) and sum(known) <= MAX_ENTRY_BYTES


def unbounded(columns: Iterable[Column]) -> list[str]:
    """The names of those columns whose values have no bound."""
    return [column.name for column in columns if widest_bytes(column) is None]


def widest_bytes(column: Column) -> int | None:
    """The most bytes that a value takes in an index; None if there is no limit."""
    base = column.base
    if base.is_enum:
        return 4 + _OVERHEAD_BYTES
    if not base.builtin or base.is_array:
        return None
    if (fixed := _FIXED_BYTES.get(base.name)) is not None:
        return fixed + _OVERHEAD_BYTES
    if base.limits is not None:
        # Groups of four digits in two bytes each; on both sides of the point one may be partial.
        return 2 * (base.limits[0] // 4 + 3) + _OVERHEAD_BYTES
    if base.name in {"bit", "varbit"} and base.modifier >= 0:
        return base.modifier // 8 + 1 + _OVERHEAD_BYTES
    if base.name in _TEXTS:
        found = [_checked_bytes(check, exact=column.exact) for check in column.checks]
        if base.modifier >= 0:
            found.append((base.modifier - 4) * _CHARACTER_BYTES)  # varchar(n) has n + 4
        bounds = [bound for bound in found if bound is not None]
        return min(bounds) + _OVERHEAD_BYTES if bounds else None
    return None


def _checked_bytes(check: str, *, exact: bool) -> int | None:
    """The bound that a CHECK constraint sets, if it is of a form that is known here.

    >>> _checked_bytes("CHECK ((char_length(status) <= 20))", exact=True)
    80
    >>> _checked_bytes("CHECK ((status = ANY (ARRAY['new'::text, 'sent'::text])))", exact=True)
    4
    """
    if match := _LENGTH.fullmatch(check):
        size = 1 if match["function"] == "octet_length" else _CHARACTER_BYTES
        return int(match["number"]) * size
    # A collation may take a longer text for equal to one that is listed.
    if exact and (match := _LISTED.fullmatch(check)):
        literals = re.findall(_LITERAL, match["array"])
        return max(len(each.rpartition("::")[0][1:-1].encode()) for each in literals)
    return None
