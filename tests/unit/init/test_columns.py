"""Which columns are suggested as dimensions and sums, from facts alone."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.init.columns import dimensions, spelled, sums
from penstock.init.facts import Statistics, Surveyed
from penstock.postgres.column_types import BaseType
from penstock.postgres.tables import Column
from support.facts import column, table

TEXT = BaseType("text", "text")
BOOL = BaseType("bool", "boolean")
UUID = BaseType("uuid", "uuid")
FLOAT = BaseType("float8", "double precision")
MONEY = BaseType("numeric", "numeric(10,2)", modifier=655_366)
ENUM = BaseType("mood", "public.mood", builtin=False, is_enum=True)
JSON = BaseType("json", "json")


def surveyed(*columns: Column, rows: int = 10_000, **changes: Any) -> Surveyed:
    held = table(columns=(column("id"), *columns))
    known = {name: Statistics(n) for name, n in changes.pop("distinct", {}).items()}
    return Surveyed(held, rows, **{"statistics": {"id": Statistics(rows), **known}, **changes})


def suggested(*columns: Column, **changes: Any) -> list[str]:
    return [each.column for each in dimensions(surveyed(*columns, **changes))]


def test_few_values_that_repeat_are_a_dimension() -> None:
    assert suggested(column("region", base=TEXT), distinct={"region": 12}) == ["region"]
    assert suggested(column("service_id", base=UUID), distinct={"service_id": 400}) == [
        "service_id"
    ]


@pytest.mark.parametrize(
    ("kind", "distinct", "rows"),
    [
        (TEXT, 9_000, 10_000),
        (TEXT, 1, 10_000),
        (TEXT, 5, 6),
        (FLOAT, 5, 10_000),
        (JSON, 5, 10_000),
        (MONEY, 5, 10_000),
    ],
)
def test_others_are_not(kind: BaseType, distinct: int, rows: int) -> None:
    assert suggested(column("c", base=kind), distinct={"c": distinct}, rows=rows) == []


def test_types_and_foreign_keys_speak_for_themselves() -> None:
    columns = (column("mood", base=ENUM), column("done", base=BOOL), column("shop"))
    assert suggested(*columns, statistics={}, rows=0, references={"shop": 30}) == [
        "mood",
        "done",
        "shop",
    ]
    assert suggested(column("shop"), statistics={}, rows=0, references={"shop": 30_000}) == []


def test_without_statistics_a_name_may_tell() -> None:
    columns = (column("order_status", base=TEXT), column("body", base=TEXT))
    assert suggested(*columns, statistics={}, rows=0) == ["order_status"]


def test_what_is_long_or_nearly_always_null_is_none() -> None:
    for odd in (Statistics(5, width_bytes=900), Statistics(5, null_fraction=0.99)):
        assert suggested(column("status", base=TEXT), statistics={"status": odd}) == []


def test_unique_generated_and_inexact_columns_are_none() -> None:
    assert suggested() == []
    assert suggested(column("status", "stored", TEXT), distinct={"status": 5}) == []
    assert suggested(column("status", base=TEXT, exact=False), distinct={"status": 5}) == []


def test_the_best_four_are_taken_in_the_tables_order() -> None:
    columns = [column(f"c{n}", base=TEXT) for n in range(6)]
    distinct = {"c0": 90, "c1": 3, "c2": 4, "c3": 5, "c4": 6, "c5": 90}
    assert suggested(*columns, distinct=distinct) == ["c1", "c2", "c3", "c4"]


def test_the_target_stays_small() -> None:
    columns = [column(f"c{n}_id") for n in range(4)]
    assert suggested(*columns, distinct={f"c{n}_id": 900 for n in range(4)}) == ["c0_id"]


@pytest.mark.parametrize(
    ("summed", "is_sum"),
    [
        (column("abalance"), True),
        (column("totalAmount"), True),
        (column("qty"), True),
        (column("fee", base=MONEY), True),
        (column("anything", base=MONEY), True),
        (column("price", base=FLOAT), False),
        (column("amount", base=BaseType("numeric", "numeric")), False),
        (column("latitude", base=MONEY), False),
        (column("amount_id"), False),
        (column("shelf"), False),
        (column("amount", "stored"), False),
        (column("count", identity="always"), False),
    ],
)
def test_amounts_are_summed_and_nothing_else(summed: Column, is_sum: bool) -> None:
    assert sums(surveyed(summed)) == ((summed.name,) if is_sum else ())
    if is_sum:
        assert suggested(summed, distinct={summed.name: 5}) == []


def test_a_column_is_spelled_so_that_it_stays_a_column() -> None:
    for name in ("status", "order", "current_date", "null", "Ärger", "a.b", "a'b", "1", "a\nb"):
        assert spelled(name) is not None
