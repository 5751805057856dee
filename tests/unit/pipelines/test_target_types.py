"""Which columns keep the values that they are given."""

from __future__ import annotations

from itertools import combinations, product

import pytest

from penstock.decode.types import Kind, ValueType
from penstock.pipelines.target_types import (
    better_type,
    common_type,
    harm,
    keeps,
    keeps_expression,
    keeps_sum,
)
from penstock.postgres.column_types import BaseType

TEXT = BaseType("text", "text")
VARCHAR = BaseType("varchar", "character varying(20)", 24)
CHAR = BaseType("bpchar", "character(5)", 9)
NAME = BaseType("name", "name")
CITEXT = BaseType("citext", "public.citext", builtin=False)
ENUM = BaseType("kind", "public.kind", builtin=False, is_enum=True, label_chars=20)
VARCHAR_19 = BaseType("varchar", "character varying(19)", 23)
OTHER_ENUM = BaseType("sort", "public.sort", builtin=False, is_enum=True)
UUID = BaseType("uuid", "uuid")
SMALL, INT, BIG = (BaseType(f"int{n}", s) for n, s in ((2, "smallint"), (4, "integer"), (8, "big")))
NUMERIC = BaseType("numeric", "numeric")
N10_2 = BaseType("numeric", "numeric(10,2)", 655366)
N10_4 = BaseType("numeric", "numeric(10,4)", 655368)
N5_MINUS_2 = BaseType("numeric", "numeric(5,-2)", 4 + (5 << 16 | 0x7FE))
STAMP = BaseType("timestamp", "timestamp without time zone")
STAMP_0 = BaseType("timestamp", "timestamp(0) without time zone", 0)
STAMP_3 = BaseType("timestamp", "timestamp(3) without time zone", 3)
DATE = BaseType("date", "date")
BIT = BaseType("bit", "bit(4)", 4)
INTERVAL_0 = BaseType("interval", "interval(0)", 0x7FFF0000)
FLOAT = BaseType("float8", "double precision")
REAL = BaseType("float4", "real")
VARBIT = BaseType("varbit", "bit varying")
OID = BaseType("oid", "oid")
STAMPTZ = BaseType("timestamptz", "timestamp with time zone")
BOOL = BaseType("bool", "boolean")


@pytest.mark.parametrize(
    ("column", "given"),
    [
        (TEXT, VARCHAR),
        (VARCHAR, VARCHAR),
        (BaseType("varchar", "character varying"), TEXT),
        (BaseType("varchar", "character varying(36)", 40), UUID),
        (VARCHAR, ENUM),
        (VARCHAR, BaseType("varbit", "bit varying(20)", 20)),
        (TEXT, ENUM),
        (ENUM, TEXT),
        (OTHER_ENUM, ENUM),
        (TEXT, UUID),
        (TEXT, NAME),
        (NAME, NAME),
        (CHAR, CHAR),
        (BIT, BIT),
        (BIG, SMALL),
        (SMALL, BIG),  # what does not fit is refused aloud
        (NUMERIC, BIG),
        (N10_2, INT),
        (NUMERIC, N10_2),
        (N10_4, N10_2),
        (STAMP, STAMP_0),
        (STAMP_3, STAMP_0),
        (STAMP_0, STAMP_0),
        (CHAR, BaseType("bpchar", "character(3)", 7)),  # blanks at the end mean nothing
        (VARBIT, BIT),
        (BIG, OID),
    ],
)
def test_these_are_kept(column: BaseType, given: BaseType) -> None:
    assert keeps(column, [given])


@pytest.mark.parametrize(
    ("column", "given", "better"),
    [
        (CHAR, TEXT, "text"),
        # Blanks at the end that do not fit are cut off.
        (VARCHAR, TEXT, "text"),
        (VARCHAR, BaseType("varchar", "character varying"), "character varying"),
        (VARCHAR, BaseType("varchar", "character varying(30)", 34), "character varying(30)"),
        (VARCHAR_19, VARCHAR, "character varying(20)"),
        (VARCHAR_19, ENUM, "text"),
        (VARCHAR, UUID, "uuid"),
        (VARCHAR, NAME, "name"),
        (VARCHAR, VARBIT, "bit varying"),
        (VARCHAR, BaseType("time", "public.time", builtin=False), "text"),
        (NAME, TEXT, "text"),
        (CITEXT, TEXT, "text"),
        (TEXT, CHAR, "character(5)"),
        (UUID, TEXT, "text"),
        (TEXT, BIG, "big"),
        (TEXT, STAMP, "timestamp without time zone"),
        (DATE, STAMP, "timestamp without time zone"),
        (STAMP_0, STAMP, "timestamp without time zone"),
        (STAMP_0, STAMP_3, "timestamp(3) without time zone"),
        (INT, N10_2, "numeric(10,2)"),
        (N10_2, N10_4, "numeric(10,4)"),
        (N5_MINUS_2, INT, "integer"),
        (FLOAT, INT, "integer"),
        # 0.1 would be another number than the source's own 0.1::real::double precision.
        (FLOAT, REAL, "real"),
        (OID, INT, "integer"),  # there -1 is 4294967295
    ],
)
def test_these_would_change_and_something_better_is_known(
    column: BaseType, given: BaseType, better: str
) -> None:
    assert not keeps(column, [given])
    found = better_type(column, [given])
    assert found is not None
    assert found.sql == better


@pytest.mark.parametrize(
    ("column", "sources", "words"),
    [
        (VARCHAR_19, [VARCHAR], "is too short for some values of character varying(20)"),
        (VARCHAR_19, [TEXT, ENUM], "is too short for some values of text and public.kind"),
        (VARCHAR_19, [INT], "would change values of integer in silence"),
        (CHAR, [TEXT], "would change values of text in silence"),
        (CHAR, None, "would change values in silence"),
    ],
)
def test_what_becomes_of_values_is_told(
    column: BaseType, sources: list[BaseType] | None, words: str
) -> None:  # M7.3
    assert harm(column, sources) == words


@pytest.mark.parametrize(
    ("column", "better"),
    [
        (CHAR, "text"),
        (NAME, "text"),
        (CITEXT, "text"),
        (BIT, "bit varying"),
        (STAMP_0, "timestamp without time zone"),
        (N10_2, "numeric"),
        (INTERVAL_0, "interval"),
    ],
)
def test_of_an_expression_any_value_must_be_kept(column: BaseType, better: str) -> None:
    assert not keeps(column, None)
    found = better_type(column, None)
    assert found is not None
    assert found.sql == better


@pytest.mark.parametrize("column", [TEXT, VARCHAR, UUID, DATE, STAMP, NUMERIC, ENUM, FLOAT])
def test_other_types_keep_an_expression(column: BaseType) -> None:
    assert keeps(column, None)


@pytest.mark.parametrize(
    ("kinds", "expected"),
    [
        ([VARCHAR], "character varying(20)"),
        ([VARCHAR, TEXT], "text"),
        ([ENUM, VARCHAR], "text"),
        ([ENUM, OTHER_ENUM], "text"),
        ([UUID, TEXT], "text"),
        ([N10_2, N10_4], "numeric"),
        ([INT, N10_2], "numeric"),
        ([SMALL, BIG, INT], "big"),
        ([INT, OID], "bigint"),
        ([STAMP_0, STAMP_3], "timestamp without time zone"),
        # A real is counted as the double that it is, where another table has doubles.
        ([REAL, FLOAT], "double precision"),
        ([CHAR, BaseType("bpchar", "character(3)", 7)], "character(5)"),
        ([BIT, BaseType("bit", "bit(8)", 8)], "bit varying"),
        ([STAMP, DATE], None),
        ([CHAR, TEXT], None),
        ([INT, TEXT], None),
    ],
)
def test_a_type_for_several_tables_holds_the_values_of_all(
    kinds: list[BaseType], expected: str | None
) -> None:  # M4.1
    found = common_type(kinds)
    assert (found and found.sql) == expected


EVERY = (
    *(TEXT, VARCHAR, CHAR, NAME, ENUM, OTHER_ENUM, UUID, SMALL, INT, BIG, NUMERIC, N10_2, N10_4),
    *(N5_MINUS_2, STAMP, STAMP_0, STAMP_3, STAMPTZ, DATE, BIT, VARBIT, FLOAT, REAL, BOOL, OID),
    BaseType("varchar", "character varying"),
    BaseType("varchar", "character varying(30)", 34),
    BaseType("bpchar", "bpchar"),
    BaseType("bpchar", "character(3)", 7),
    BaseType("bit", "bit(8)", 8),
    BaseType("char", '"char"'),
    BaseType("kind", "other.kind", builtin=False, is_enum=True),
    BaseType("numeric", "numeric(40,2)", 4 + (40 << 16 | 2)),
    BaseType("bytea", "bytea"),
    BaseType("inet", "inet"),
    BaseType("time", "time without time zone"),
    BaseType("time", "time(0) without time zone", 0),
)


def test_what_is_advised_is_accepted_for_every_pair_of_types() -> None:  # M4.1, M7.3
    """Else the remedies would go in a circle."""
    pairs = [*combinations(EVERY, 2), *((kind,) for kind in EVERY)]
    for column, sources in product((*EVERY, CITEXT, INTERVAL_0), [None, *pairs]):
        better = better_type(column, sources)
        if keeps(column, sources) or better is None:
            continue
        assert keeps(better, sources), (column, sources, better)


@pytest.mark.parametrize(
    ("column", "summed", "kept"),
    [
        (SMALL, None, True),
        (NUMERIC, None, True),
        (N10_2, None, True),
        (N5_MINUS_2, None, False),
        (FLOAT, None, False),
        (TEXT, None, False),
        (BIG, INT, True),
        (BIG, N10_2, False),
        (BIG, N5_MINUS_2, True),
        (NUMERIC, N10_4, True),
        (N10_4, N10_4, True),
        (N10_2, N10_4, False),
    ],
)
def test_counts_and_sums_are_not_rounded(
    column: BaseType, summed: BaseType | None, kept: bool
) -> None:
    assert keeps_sum(column, summed) is kept


@pytest.mark.parametrize(
    ("column", "given"),
    [
        *((TEXT, ValueType(kind)) for kind in Kind if kind is not Kind.ARRAY),
        (VARCHAR, ValueType(Kind.BIGINT)),
        (VARCHAR, ValueType(Kind.BOOLEAN)),
        (UUID, ValueType(Kind.TEXT)),
        (ENUM, ValueType(Kind.TEXT)),
        (INT, ValueType(Kind.BIGINT)),  # one that is too large is refused aloud
        (NUMERIC, ValueType(Kind.INTEGER)),
        (BIG, ValueType(Kind.DECIMAL, 10, 0)),
        (NUMERIC, ValueType(Kind.DECIMAL, 10, 2)),
        (DATE, ValueType(Kind.DATE)),
        (STAMP, ValueType(Kind.TIMESTAMPTZ)),
        (FLOAT, ValueType(Kind.REAL)),
    ],
)
def test_columns_for_what_an_expression_gives(column: BaseType, given: ValueType) -> None:  # M5.2
    assert keeps_expression(column, given)


@pytest.mark.parametrize(
    ("column", "given"),
    [
        # Too short for some values, whose keys would be parked.
        (VARCHAR, ValueType(Kind.TEXT)),
        (VARCHAR_19, ValueType(Kind.BIGINT)),
        (VARCHAR, ValueType(Kind.DATE)),
        (VARCHAR, ValueType(Kind.DOUBLE)),
        (INT, ValueType(Kind.TEXT)),
        (DATE, ValueType(Kind.TEXT)),
        (BOOL, ValueType(Kind.INTEGER)),
        (INT, ValueType(Kind.DECIMAL, 10, 2)),
        (INT, ValueType(Kind.DOUBLE)),
        (UUID, ValueType(Kind.INTEGER)),
        # The server takes -1 for 4294967295.
        (OID, ValueType(Kind.INTEGER)),
        # The time would be cut off in silence.
        (DATE, ValueType(Kind.TIMESTAMPTZ)),
        # Which moment it is would depend on the server's time zone.
        (STAMPTZ, ValueType(Kind.TIMESTAMP)),
        (STAMPTZ, ValueType(Kind.DATE)),
    ],
)
def test_columns_that_do_not_hold_what_an_expression_gives(
    column: BaseType, given: ValueType
) -> None:  # M5.2
    assert not keeps_expression(column, given)
