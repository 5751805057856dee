"""Sums by dimensions: rolled up, sorted by where NULLs are, and as text that Postgres reads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, date, datetime
from decimal import Context, Decimal
from fractions import Fraction
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.pipelines import sums as sums_module
from penstock.pipelines.sums import added, as_text, by_nulls, rolled_up, together
from support.repeats import repeats

EXACT = Context(prec=100)


def test_rolled_up_to_fewer_dimensions_without_what_is_zero() -> None:  # M5.2, M5.4
    costs = [Decimal(text) for text in ("1.5", "2", "0", "1", "-1")]
    sums = pa.table(
        {
            "service": ["a", "a", "b", None, None],
            "status": ["x", "y", "x", "x", "y"],
            "count": [2, 3, 1, 5, -5],
            "cost": pa.array(costs, pa.decimal128(38, 2)),
        }
    )
    assert rolled_up(sums, ["service"], ["count", "cost"]) == {
        ("a",): (5, Decimal("3.50")),
        ("b",): (1, 0),
    }
    assert rolled_up(sums, ["status"], ["count"]) == {("x",): (8,), ("y",): (-2,)}


def test_a_sum_stays_although_the_count_is_zero() -> None:  # M5.4
    sums = pa.table({"a": ["x", "x"], "count": [1, -1], "cost": [3, -1]})
    assert rolled_up(sums, ["a"], ["count", "cost"]) == {("x",): (0, 2)}


@pytest.mark.parametrize("scale", [0, 10, 38])
def test_a_sum_beyond_38_digits_is_what_it_is(scale: int) -> None:  # M5.2
    widest = Decimal("9" * 38).scaleb(-scale, Context(prec=38))
    values = [widest, widest, None, widest]
    sums = pa.table({"a": ["x"] * 4, "cost": pa.array(values, pa.decimal128(38, scale))})
    rolled = rolled_up(sums, ["a"], ["cost"])
    assert Fraction(rolled[("x",)][0]) == 3 * Fraction(widest)


WIDEST = 10**38 - 1
KINDS = {"n": pa.int64(), "cost": pa.decimal128(38, 2)}
ROWS = st.tuples(
    st.none() | st.sampled_from(["", "a", "NULL", "-0", "0", "NaN"]),
    st.none() | st.sampled_from(["x", "é"]),
    st.none() | st.integers(-9, 9),
    st.none() | st.integers(-9, 9) | st.sampled_from([WIDEST, -WIDEST]),
)


def table_of(rows: Sequence[tuple[Any, ...]]) -> pa.Table:
    a, b, counts, cents = zip(*rows, strict=True) if rows else ((),) * 4
    costs = [each if each is None else Decimal(each).scaleb(-2, EXACT) for each in cents]
    return pa.table(
        {
            **{name: pa.array(values, pa.string()) for name, values in (("a", a), ("b", b))},
            "n": pa.array(counts, KINDS["n"]),
            "cost": pa.array(costs, KINDS["cost"]),
        }
    )


def one_by_one(rows: Iterable[tuple[Any, ...]], width: int) -> dict[Any, tuple[int, int]]:
    """By the first of two dimensions, or both, or none; costs in cents."""
    found: dict[Any, tuple[int, int]] = {}
    for row in rows:
        n, cents = found.get(row[:width], (0, 0))
        found[row[:width]] = (n + (row[2] or 0), cents + (row[3] or 0))
    return {key: amounts for key, amounts in found.items() if any(amounts)}


@pytest.mark.parametrize("width", [0, 1, 2])
@pytest.mark.parametrize("worth_it", [0, 500, 2**30])
@settings(max_examples=repeats(40, soak=100), deadline=None)
@given(portions=st.lists(st.lists(ROWS, max_size=8), max_size=8))
def test_portions_come_together_as_if_they_were_added_one_by_one(
    worth_it: int, width: int, portions: list[list[tuple[Any, ...]]]
) -> None:  # M5.2, M5.5
    dimensions = ["a", "b"][:width]
    tables = [table_of(()), *map(table_of, portions)]
    with patch.object(sums_module, "_WORTH_IT", worth_it):
        found = together(tables, dimensions, ["n", "cost"])
    amounts = {
        tuple(row[name] for name in dimensions): (row["n"], int(row["cost"].scaleb(2, EXACT)))
        for row in found.to_pylist()
    }
    assert len(amounts) == len(found), "a combination is there twice"
    assert amounts == one_by_one((row for rows in portions for row in rows), width)


def test_many_portions_of_the_same_take_little_memory_and_are_not_grouped_often(
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # M5.5: a table of hundreds of millions of rows comes by hundreds of portions
    portion = pa.table({"a": [f"combination {n}" for n in range(1000)], "n": [1] * 1000})
    monkeypatch.setattr(sums_module, "_WORTH_IT", 4 * portion.nbytes)
    before, most, seen = pa.total_allocated_bytes(), 0, 0
    once = sums_module.grouped

    def counted(sums: pa.Table, *names: Sequence[str]) -> pa.Table:
        nonlocal seen
        seen += len(sums)
        return once(sums, *names)

    def portions() -> Iterator[pa.Table]:
        nonlocal most
        for _ in range(300):
            most = max(most, pa.total_allocated_bytes() - before)
            # One of its own, as each that is read.
            yield portion.take(pa.array(range(1000)))

    monkeypatch.setattr(sums_module, "grouped", counted)
    found = together(portions(), ["a"], ["n"])
    assert (len(found), set(found["n"].to_pylist())) == (1000, {300})
    assert most < 12 * portion.nbytes
    assert seen < 2 * 300 * 1000


def test_more_text_than_arrow_can_group_is_left_to_whoever_gets_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # M5.5: Arrow would end the process
    monkeypatch.setattr(sums_module, "_WORTH_IT", 0)
    monkeypatch.setattr(sums_module, "_MOST_IN_COLUMN", 1)
    table = pa.table({"a": ["x", "x"], "n": [1, 2]})
    found = together([table, table], ["a"], ["n"])
    assert found.to_pylist() == 2 * table.to_pylist()
    assert rolled_up(found, ["a"], ["n"]) == {("x",): (6,)}


def test_nothing_rolled_up_is_nothing() -> None:
    empty = pa.table({"a": pa.array([], pa.string()), "n": pa.array([], pa.int64())})
    assert rolled_up(empty, ["a"], ["n"]) == {}


def test_a_sum_that_is_null_adds_nothing() -> None:  # M5.2
    sums = pa.table({"a": ["x", "x"], "n": pa.array([None, None], pa.int64()), "c": [1, 1]})
    assert rolled_up(sums, ["a"], ["c", "n"]) == {("x",): (2, 0)}


def test_null_and_the_word_null_are_two_keys() -> None:  # M5.2
    sums = pa.table({"a": [None, "null", ""], "n": [1, 2, 3]})
    assert rolled_up(sums, ["a"], ["n"]) == {(None,): (1,), ("null",): (2,), ("",): (3,)}


def test_keys_by_where_their_nulls_are() -> None:
    keys: list[Any] = [("a", None), ("b", "c"), ("d", None), (None, None)]
    assert by_nulls(keys) == {
        (False, True): [("a", None), ("d", None)],
        (False, False): [("b", "c")],
        (True, True): [(None, None)],
    }


def test_amounts_are_added_exactly_however_many_digits_they_have() -> None:  # M5.2
    large = Decimal("9" * 37)
    assert added((large, 1), (Decimal("0.1"), 2)) == (Decimal("9" * 37 + ".1"), 3)


@pytest.mark.parametrize(
    ("values", "kind", "texts"),
    [
        ([True, None], pa.bool_(), ["true", None]),
        ([-5], pa.int64(), ["-5"]),
        ([Decimal("1.50")], pa.decimal128(10, 2), ["1.50"]),
        ([date(2026, 11, 16)], pa.date32(), ["2026-11-16"]),
        ([datetime(1, 1, 1)], pa.timestamp("us"), ["0001-01-01 00:00:00.000000"]),  # noqa: DTZ001
        (
            [datetime(2026, 1, 2, 3, 4, 5, 6, UTC)],
            pa.timestamp("us", "UTC"),
            ["2026-01-02 03:04:05.000006Z"],
        ),
        ([b"\0\xff", b""], pa.binary(), ["\\x00ff", "\\x"]),
        (["é", ""], pa.string(), ["é", ""]),
    ],
)
def test_values_as_text(values: list[Any], kind: Any, texts: list[str | None]) -> None:
    assert as_text(pa.array(values, kind)).to_pylist() == texts


def test_years_before_the_first_are_told_as_postgres_tells_them() -> None:  # M4.6, M5.2
    days = pa.array([-719163, -719529, None, -719162], pa.int32()).cast(pa.date32())
    assert as_text(days).to_pylist() == ["0001-12-31 BC", "0002-12-31 BC", None, "0001-01-01"]
    moments = pa.array([-62135596800000001, 0]).cast(pa.timestamp("us", "UTC"))
    assert as_text(pa.chunked_array([moments])).to_pylist() == [
        "0001-12-31 23:59:59.999999Z BC",
        "1970-01-01 00:00:00.000000Z",
    ]
