"""Which type a column has outside of Postgres. Pure; `docs/types.md` is this file as a table.

A type that holds values Arrow and Spark know exactly is typed. Everything else is its text, as
Postgres prints it: that is never wrong.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

import pyarrow as pa

from penstock.postgres.column_types import numeric_limits
from penstock.postgres.messages import Column, Type

# Spark's limit, and that of Arrow's decimal128.
MAX_PRECISION = 38


class Kind(Enum):
    BOOLEAN = "boolean"
    SMALLINT = "smallint"
    INTEGER = "integer"
    BIGINT = "bigint"
    REAL = "real"
    DOUBLE = "double"
    DECIMAL = "decimal"
    TEXT = "text"
    BYTES = "bytes"
    DATE = "date"
    TIMESTAMP = "timestamp"
    TIMESTAMPTZ = "timestamptz"
    ARRAY = "array"


_ARROW = {
    Kind.BOOLEAN: pa.bool_(),
    Kind.SMALLINT: pa.int16(),
    Kind.INTEGER: pa.int32(),
    Kind.BIGINT: pa.int64(),
    Kind.REAL: pa.float32(),
    Kind.DOUBLE: pa.float64(),
    Kind.TEXT: pa.string(),
    Kind.BYTES: pa.binary(),
    Kind.DATE: pa.date32(),
    Kind.TIMESTAMP: pa.timestamp("us"),
    Kind.TIMESTAMPTZ: pa.timestamp("us", "UTC"),
}
_INTEGERS = (Kind.SMALLINT, Kind.INTEGER, Kind.BIGINT)
# How many digits the widest of them has.
_DIGITS = {Kind.SMALLINT: 5, Kind.INTEGER: 10, Kind.BIGINT: 19}


@dataclass(frozen=True, slots=True)
class ValueType:
    """A column's type; `precision` and `scale` of decimals, `element` of arrays."""

    kind: Kind
    precision: int = 0
    scale: int = 0
    element: ValueType | None = None

    @property
    def arrow(self) -> pa.DataType:
        if self.element is not None:
            # Spark names it so, and insists.
            return pa.list_(pa.field("element", self.element.arrow))
        if self.kind is Kind.DECIMAL:
            return pa.decimal128(self.precision, self.scale)
        return _ARROW[self.kind]

    @property
    def total(self) -> bool:
        """Whether every value that Postgres may hold has a place in it."""
        return self.kind not in (
            *(Kind.DECIMAL, Kind.DATE, Kind.TIMESTAMP, Kind.TIMESTAMPTZ, Kind.ARRAY),
        )

    def holds(self, other: ValueType) -> bool:
        """Whether each value of `other`, written as text, means the same in this type."""
        if self == other or self.kind is Kind.TEXT:
            return True
        mine, theirs = self.kind, other.kind
        if mine in _INTEGERS and theirs in _INTEGERS:
            return _DIGITS[mine] >= _DIGITS[theirs]
        if mine is Kind.DECIMAL:
            digits = _DIGITS.get(theirs) or other.precision - other.scale
            return (theirs in _INTEGERS or theirs is Kind.DECIMAL) and (
                self.precision - self.scale >= digits and self.scale >= other.scale
            )
        if self.element is not None and other.element is not None:
            return self.element.holds(other.element)
        return mine is Kind.DOUBLE and theirs is Kind.REAL

    def reading(self, other: ValueType) -> ValueType:
        """As which type to read the text of a column of `other`, before it is made this one.

        A real's 0.1 is not the double 0.1; but as text everything is what it is.
        """
        if self.kind is Kind.TEXT:
            return self
        if self.element is not None and other.element is not None:
            return ValueType(Kind.ARRAY, element=self.element.reading(other.element))
        return other

    def __str__(self) -> str:
        if self.element is not None:
            return f"array of {self.element}"
        if self.kind is Kind.DECIMAL:
            return f"decimal({self.precision},{self.scale})"
        return str(self.kind.value)


TEXT = ValueType(Kind.TEXT)


def common_type(kinds: Sequence[ValueType]) -> ValueType | None:
    """The type that holds the values of all; None: they do not go together.

    A text holds everything, but nobody could tell any more what was a number and what a text.
    """
    texts = [kind.kind is Kind.TEXT for kind in kinds]
    if all(texts) or not any(texts):
        for kind in kinds:
            if all(kind.holds(other) for other in kinds):
                return kind
    if any(kind.kind is not Kind.DECIMAL and kind.kind not in _INTEGERS for kind in kinds):
        return None
    # The most digits before the point may be one's and the most behind it another's.
    scale = max(kind.scale for kind in kinds)
    whole = max(_DIGITS.get(kind.kind, kind.precision - kind.scale) for kind in kinds)
    return ValueType(Kind.DECIMAL, whole + scale, scale) if whole + scale <= MAX_PRECISION else None


_NAMED = {
    "bool": Kind.BOOLEAN,
    "int2": Kind.SMALLINT,
    "int4": Kind.INTEGER,
    "int8": Kind.BIGINT,
    # Unsigned, of 32 bits.
    "oid": Kind.BIGINT,
    "xid": Kind.BIGINT,
    "cid": Kind.BIGINT,
    "float4": Kind.REAL,
    "float8": Kind.DOUBLE,
    "numeric": Kind.DECIMAL,
    "bytea": Kind.BYTES,
    "date": Kind.DATE,
    "timestamp": Kind.TIMESTAMP,
    "timestamptz": Kind.TIMESTAMPTZ,
}
# Elements that are text, in arrays that part them with a comma (all but those of `box`).
_TEXT_ELEMENTS = frozenset(
    "text varchar bpchar char name uuid json jsonb jsonpath xml inet cidr macaddr macaddr8 bit "
    "varbit money time timetz interval tsvector tsquery pg_lsn xid8 point lseg path polygon line "
    "circle int4range int8range numrange tsrange tstzrange daterange int4multirange int8multirange "
    "nummultirange tsmultirange tstzmultirange datemultirange regclass regproc regprocedure "
    "regoper regoperator regtype regrole regnamespace regconfig regdictionary".split()
)
# From pg_type: the oids of the types above, and of their arrays. They never change.
_OIDS = {
    16: "bool",
    17: "bytea",
    20: "int8",
    21: "int2",
    23: "int4",
    26: "oid",
    28: "xid",
    29: "cid",
    700: "float4",
    701: "float8",
    1082: "date",
    1114: "timestamp",
    1184: "timestamptz",
    1700: "numeric",
    143: "_xml",
    199: "_json",
    271: "_xid8",
    629: "_line",
    651: "_cidr",
    719: "_circle",
    775: "_macaddr8",
    791: "_money",
    1000: "_bool",
    1001: "_bytea",
    1002: "_char",
    1003: "_name",
    1005: "_int2",
    1007: "_int4",
    1008: "_regproc",
    1009: "_text",
    1011: "_xid",
    1012: "_cid",
    1014: "_bpchar",
    1015: "_varchar",
    1016: "_int8",
    1017: "_point",
    1018: "_lseg",
    1019: "_path",
    1021: "_float4",
    1022: "_float8",
    1027: "_polygon",
    1028: "_oid",
    1040: "_macaddr",
    1041: "_inet",
    1115: "_timestamp",
    1182: "_date",
    1183: "_time",
    1185: "_timestamptz",
    1187: "_interval",
    1231: "_numeric",
    1270: "_timetz",
    1561: "_bit",
    1563: "_varbit",
    2207: "_regprocedure",
    2208: "_regoper",
    2209: "_regoperator",
    2210: "_regclass",
    2211: "_regtype",
    2951: "_uuid",
    3221: "_pg_lsn",
    3643: "_tsvector",
    3645: "_tsquery",
    3735: "_regconfig",
    3770: "_regdictionary",
    3807: "_jsonb",
    3905: "_int4range",
    3907: "_numrange",
    3909: "_tsrange",
    3911: "_tstzrange",
    3913: "_daterange",
    3927: "_int8range",
    4073: "_jsonpath",
    4090: "_regnamespace",
    4097: "_regrole",
    6150: "_int4multirange",
    6151: "_nummultirange",
    6152: "_tsmultirange",
    6153: "_tstzmultirange",
    6155: "_datemultirange",
    6157: "_int8multirange",
}


def value_type(column: Column, types: Mapping[int, Type]) -> ValueType:
    """The type of a table's column; `types` are the Type messages that came with the table."""
    name = _OIDS.get(column.type_oid)
    if name is None:
        told = types.get(column.type_oid)
        # Of a domain, the message names the base type. One that a user made is text.
        name = told.name if told is not None and told.namespace in ("", "pg_catalog") else ""
    return named_type(name, column.type_modifier)


def named_type(name: str, modifier: int) -> ValueType:
    """Of a type of the server's own, as pg_type names it."""
    if name.startswith("_"):
        element = name[1:]
        if element in _NAMED or element in _TEXT_ELEMENTS:
            return ValueType(Kind.ARRAY, element=named_type(element, modifier))
        return TEXT
    kind = _NAMED.get(name, Kind.TEXT)
    return _decimal(modifier) if kind is Kind.DECIMAL else ValueType(kind)


def _decimal(modifier: int) -> ValueType:
    """`numeric(precision, scale)`. Without a limit, or beyond Spark's, it is exact as text only."""
    if modifier < 0:
        return TEXT
    precision, scale = numeric_limits(modifier)
    if scale < 0:
        precision, scale = precision - scale, 0
    precision = max(precision, scale)
    if precision > MAX_PRECISION:
        return TEXT
    return ValueType(Kind.DECIMAL, precision, scale)
