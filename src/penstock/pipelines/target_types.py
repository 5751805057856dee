"""Whether a column of a target keeps the values of a dimension or a measure as they are. Pure.

The server rounds, pads or cuts some values when it stores them, without a word: then counts of
different keys would become one. What it refuses aloud is no such danger: the key is parked. But a
text column that is too short for what its source may hold is found before.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from penstock.decode.types import Kind, ValueType
from penstock.pipelines.inputs_checked import INTEGERS
from penstock.postgres.column_types import BaseType

# What a modifier of a text counts besides its characters.
_HEADER = 4
# With a modifier, these round or pad what is stored.
_ROUNDING = frozenset("timestamp timestamptz time timetz interval numeric bpchar bit".split())
# Cut or pad whatever they are given, or take different texts for equal.
_INEXACT = frozenset("bpchar bit name char citext".split())
_STRINGS = ("text", "varchar")
# The most characters of a value; of others they are not known, or in the modifier.
_CHARS = {
    "uuid": 36,
    "name": 63,
    "char": 4,
    "time": 15,
    "inet": 43,
    "cidr": 43,
    "macaddr": 17,
    "macaddr8": 23,
    "pg_lsn": 17,
    "xid8": 20,
}
# The same of what Spark computes.
_CHARS_OF_KINDS = {Kind.BOOLEAN: 5, Kind.SMALLINT: 6, Kind.INTEGER: 11, Kind.BIGINT: 20}
# Outside of Postgres these are typed; all others are their text.
_TYPED = frozenset(
    "bool int2 int4 int8 oid float4 float8 numeric bytea date timestamp timestamptz".split()
)
# With a larger modifier, these keep what is of a smaller one. Blanks at the end mean nothing to a
# bpchar, so that some more are the same value.
_WIDENED = frozenset("timestamp timestamptz time bpchar".split())
_WHOLE = (*INTEGERS, "numeric")
BIGINT, NUMERIC = BaseType("int8", "bigint"), BaseType("numeric", "numeric")
TEXT, _VARBIT = BaseType("text", "text"), BaseType("varbit", "bit varying")
# By what Spark computes: in which types all of its values are, besides text.
_STORES: dict[Kind, Sequence[str]] = {
    Kind.BOOLEAN: ("bool",),
    # Not oid, which takes -1 for 4294967295.
    Kind.SMALLINT: _WHOLE,
    Kind.INTEGER: _WHOLE,
    Kind.BIGINT: _WHOLE,
    Kind.DECIMAL: ("numeric",),
    Kind.REAL: ("float4", "float8", "numeric"),
    Kind.DOUBLE: ("float8", "numeric"),
    Kind.BYTES: ("bytea",),
    Kind.DATE: ("date", "timestamp"),
    Kind.TIMESTAMP: ("timestamp",),
    # As the clock shows it in UTC, or wherever the expression has moved it.
    Kind.TIMESTAMPTZ: ("timestamptz", "timestamp"),
}
# The server casts anything to these, and these to anything.
_CAST_FREELY = frozenset("text varchar bpchar name citext".split())
# Within each of these, any to any. It knows more casts; of those, values may become equal.
_CAST_AMONG = tuple(
    frozenset(names.split())
    for names in (
        "int2 int4 int8 float4 float8 numeric",
        "oid int4 int8",
        "date timestamp timestamptz",
        "bit varbit",
    )
)


def keeps(column: BaseType, sources: Sequence[BaseType] | None) -> bool:
    """Whether a column stores a dimension as it is: one that is a column in the sources (their
    types), or an expression (None)."""
    if not sources:
        return _keeps_any(column)
    return all(keeps_column(column, given) for given in _as_counted(sources))


def better_type(column: BaseType, sources: Sequence[BaseType] | None) -> BaseType | None:
    """For a column that does not; None: no type keeps the values of all sources."""
    if not sources:
        return unlimited(column)
    found = common_type(sources)
    # A type of the user's own may be lacking where the target is.
    return found if found is None or found.builtin else TEXT


def has_cast(column: BaseType, kind: BaseType) -> bool:
    """Whether the server takes `column::kind`; some of what is there it may refuse all the same."""
    names = {column.name, kind.name}
    return (
        len(names) == 1 or bool(names & _CAST_FREELY) or any(names <= each for each in _CAST_AMONG)
    )


def _as_counted(sources: Sequence[BaseType]) -> list[BaseType]:
    """Beside a double, a real is read as a real and counted as the double that it is."""
    double = next((kind for kind in sources if kind.name == "float8"), None)
    return [double if double and kind.name == "float4" else kind for kind in sources]


def _keeps_any(column: BaseType) -> bool:
    return column.name not in _INEXACT and not (column.modifier >= 0 and column.name in _ROUNDING)


def harm(column: BaseType, sources: Sequence[BaseType] | None) -> str:
    """What becomes of values in a column that does not keep them."""
    of = f" of {' and '.join(kind.sql for kind in sources)}" if sources else ""
    if _max_chars(column) is not None and keeps(unlimited(column), sources):
        return f"is too short for some values{of}"
    return f"would change values{of} in silence"


def _max_chars(column: BaseType) -> int | None:
    """Of a text column with a limit. What is longer is refused, but not if only blanks are too
    many: those are cut off.
    """
    return column.modifier - _HEADER if column.name == "varchar" and column.modifier >= 0 else None


def _chars(given: BaseType) -> int | None:
    """The most characters of a value; None: any number."""
    if given.is_enum:
        return given.label_chars
    if not given.builtin:
        return None
    if given.name in ("bit", "varbit") and given.modifier >= 0:
        return given.modifier
    return _CHARS.get(given.name) or _max_chars(given)


def _fits(column: BaseType, chars: int | None) -> bool:
    """Whether no text of so many characters is too long for a text column; None: any number."""
    limit = _max_chars(column)
    return limit is None or (chars is not None and chars <= limit)


def keeps_column(column: BaseType, given: BaseType) -> bool:
    """Whether a column stores each value of another column's type as it is."""
    if column.name == given.name != "citext":
        return _keeps_same(column, given)
    if given.name in (*INTEGERS, "oid"):
        return column.name in INTEGERS or keeps_sum(column, given)
    if given.name == "bit" and column.name == "varbit":
        return True
    if given.name in _TYPED or given.name == "bpchar":
        return False
    return column.is_enum or (column.name in _STRINGS and _fits(column, _chars(given)))


def _keeps_same(column: BaseType, given: BaseType) -> bool:
    if column.name == "varchar":
        return _fits(column, _chars(given))
    if column.modifier in (-1, given.modifier) or column.name not in _ROUNDING:
        return True
    if column.name in _WIDENED:
        return column.modifier >= given.modifier >= 0
    if column.limits and given.limits:
        return column.limits[1] >= given.limits[1]
    return False


def keeps_expression(column: BaseType, given: ValueType) -> bool:
    """Whether a column stores each value that Spark computes as it is: it is given its text."""
    if column.name in _STRINGS:
        return _fits(column, _CHARS_OF_KINDS.get(given.kind))
    if given.kind is Kind.TEXT:
        return not column.builtin or column.name not in _TYPED
    if given.kind is Kind.DECIMAL and given.scale == 0 and column.name in INTEGERS:
        return True
    return column.builtin and column.name in _STORES[given.kind]


def keeps_sum(column: BaseType, summed: BaseType | None) -> bool:
    """Whether sums of a type are stored without rounding; None: counts of rows."""
    scale = summed.limits[1] if summed is not None and summed.limits else 0
    if column.name in INTEGERS:
        return scale <= 0
    return column.name == "numeric" and (column.limits is None or column.limits[1] >= max(scale, 0))


def unlimited(kind: BaseType) -> BaseType:
    """The type without its modifier; the nearest one that keeps all values."""
    if kind.name in ("bpchar", "name", "char", "citext"):
        return TEXT
    if kind.name == "bit":
        return _VARBIT
    sql = "interval" if kind.name == "interval" else re.sub(r"\(\d+(?:,-?\d+)?\)", "", kind.sql)
    return replace(kind, sql=sql, modifier=-1)


def common_type(kinds: Sequence[BaseType]) -> BaseType | None:
    """A type that keeps the values of columns in several tables; None: none does."""
    found = _widest(kinds)
    return found if keeps(found, kinds) else None


def _widest(kinds: Sequence[BaseType]) -> BaseType:
    first, names = kinds[0], {kind.name for kind in kinds}
    if len(kinds) == 1:
        return first
    if names <= set(INTEGERS):
        return max(kinds, key=lambda kind: INTEGERS.index(kind.name))
    if names <= {*INTEGERS, "oid"}:
        return BIGINT
    if names <= {*INTEGERS, "oid", "numeric"}:
        return NUMERIC
    if names == {"float4", "float8"}:
        return next(kind for kind in kinds if kind.name == "float8")
    if names == {"bpchar"}:
        return next((k for k in kinds if k.modifier < 0), max(kinds, key=lambda k: k.modifier))
    if names <= {"bit", "varbit"}:
        return _VARBIT
    if len(names) == 1 and first.builtin:
        return unlimited(first)
    return TEXT
