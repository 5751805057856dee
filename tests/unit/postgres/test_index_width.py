"""How long values may become in an index, from facts alone. M4.2"""

from __future__ import annotations

import pytest

from penstock.postgres.column_types import BaseType
from penstock.postgres.index_width import fits_an_index, unbounded, widest_bytes
from support.facts import INTEGER, column

TEXT = BaseType("text", "text")
VARCHAR = BaseType("varchar", "character varying")


@pytest.mark.parametrize(
    "base",
    [
        TEXT,
        VARCHAR,
        BaseType("bpchar", "bpchar"),
        BaseType("numeric", "numeric"),
        BaseType("bytea", "bytea"),
        BaseType("jsonb", "jsonb"),
        BaseType("varbit", "bit varying"),
        BaseType("_int4", "integer[]", is_array=True),
        BaseType("citext", "citext", builtin=False),
        # There is no btree operator class for it.
        BaseType("point", "point"),
    ],
)
def test_a_type_without_a_length_has_no_bound(base: BaseType) -> None:
    assert widest_bytes(column("a", base=base)) is None
    assert unbounded([column("a", base=base), column("b")]) == ["a"]
    assert not fits_an_index([column("a", base=base)])


@pytest.mark.parametrize(
    ("base", "at_least"),
    [
        (INTEGER, 4),
        (BaseType("uuid", "uuid"), 16),
        (BaseType("mood", "public.mood", builtin=False, is_enum=True), 4),
        (BaseType("varchar", "character varying(20)", 24), 80),
        (BaseType("bpchar", "character(3)", 7), 12),
        (BaseType("numeric", "numeric(1000,2)", 4 + (1000 << 16 | 2)), 506),
        (BaseType("bit", "bit(800)", 800), 100),
    ],
)
def test_a_type_with_a_length_has_a_bound(base: BaseType, at_least: int) -> None:
    found = widest_bytes(column("a", base=base))
    assert found is not None
    assert at_least <= found <= at_least + 20


@pytest.mark.parametrize(
    ("check", "most"),
    [
        ("CHECK ((char_length(status) <= 20))", 80),
        ("CHECK ((length((status)::text) < 20))", 80),
        ('CHECK ((octet_length("Odd ""name") <= 20))', 20),
        ("CHECK ((status = ANY (ARRAY['new'::text, 'it''s sent'::text])))", 10),
        (
            (
                "CHECK (((status)::text = ANY ((ARRAY['new'::character varying, "
                "'sent'::character varying])::text[])))"
            ),
            4,
        ),
        ("CHECK ((char_length(status) >= 20))", None),
        ("CHECK ((char_length(status) <= 20)) NOT VALID", None),
        ("CHECK (((char_length(status) <= 20) OR (status = 'x'::text)))", None),
        ("CHECK ((public.char_length(status) <= 20))", None),
        ("CHECK ((status <> ALL (ARRAY['new'::text])))", None),
    ],
)
def test_a_check_constraint_bounds_a_text(check: str, most: int | None) -> None:
    found = widest_bytes(column("status", base=TEXT, checks=(check,)))
    assert found == (None if most is None else most + 12)


def test_a_listed_text_is_no_bound_where_a_longer_one_may_be_equal() -> None:
    check = "CHECK ((status = ANY (ARRAY['new'::text])))"
    assert widest_bytes(column("status", base=TEXT, checks=(check,), exact=False)) is None


def test_columns_that_fit_one_by_one_may_be_too_long_together() -> None:
    wide = BaseType("varchar", "character varying(400)", 404)
    assert fits_an_index([column("a", base=wide)])
    assert not fits_an_index([column("a", base=wide), column("b", base=wide)])
