"""Sums by dimensions: rolled up, sorted by where NULLs are, and as text that Postgres reads."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Context, Decimal
from fractions import Fraction
from typing import Any

import pyarrow as pa
import pytest

from penstock.pipelines.sums import added, as_text, by_nulls, rolled_up


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
