"""An aggregate and the types of its tables' columns: what is asked of the log."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.declarations import AggregateConfig
from penstock.decode.deltas import Input
from penstock.decode.types import TEXT, Kind, ValueType
from penstock.errors import SchemaMismatch
from penstock.lsn import Lsn
from penstock.names import TableName
from penstock.pipelines.binding import bind

INTEGER, BIGINT, DOUBLE = (ValueType(kind) for kind in (Kind.INTEGER, Kind.BIGINT, Kind.DOUBLE))
PRICE = ValueType(Kind.DECIMAL, 10, 2)


def decimal(precision: int, scale: int) -> ValueType:
    return ValueType(Kind.DECIMAL, precision, scale)


def bound(types: dict[str, dict[str, ValueType]], **changes: Any) -> Any:
    given = {"name": "counts", "sources": ["t"], "dimensions": ["status"], "targets": ["stats"]}
    config = AggregateConfig.model_validate(given | changes)
    tables = {TableName("public", name): columns for name, columns in types.items()}
    return bind(config, tables, Lsn(7)).summed


def test_columns_have_their_types() -> None:  # M5.2
    summed = bound(
        {"t": {"status": TEXT, "price": PRICE, "other": DOUBLE}}, measures={"cost": "sum(price)"}
    )
    assert summed.keys == (Input("status", TEXT),)
    assert summed.sums == (Input("price", PRICE),)
    assert summed.sources[0].after_lsn == 7


@pytest.mark.parametrize("kind", [TEXT, DOUBLE, ValueType(Kind.REAL), ValueType(Kind.DATE)])
def test_what_cannot_be_summed_up_exactly_is_refused(kind: ValueType) -> None:  # M5.2
    with pytest.raises(SchemaMismatch, match="column price of aggregate counts cannot be summed"):
        bound({"t": {"status": TEXT, "price": kind}}, measures={"cost": "sum(price)"})


def test_a_column_of_several_tables_gets_the_type_that_holds_all() -> None:  # M4.6
    types = {"t": {"status": INTEGER}, "u": {"state": BIGINT}}
    sources = ["t", {"table": "u", "aliases": {"status": ["status", "state"]}}]
    assert bound(types, sources=sources).keys == (Input("status", BIGINT),)
    prices = {"t": {"status": PRICE}, "u": {"state": BIGINT}}
    # As many digits before the point as one has, and behind it as the other.
    assert bound(prices, sources=sources).keys == (Input("status", decimal(21, 2)),)
    prices["u"]["state"] = decimal(10, 4)
    assert bound(prices, sources=sources).keys == (Input("status", decimal(12, 4)),)
    prices["u"]["state"] = decimal(38, 37)
    with pytest.raises(SchemaMismatch, match=r"decimal\(10,2\), decimal\(38,37\)"):
        bound(prices, sources=sources)
    with pytest.raises(SchemaMismatch, match="integer, text"):
        bound({"t": {"status": INTEGER}, "u": {"state": TEXT}}, sources=sources)


def test_a_table_that_does_not_count_needs_no_columns() -> None:  # M4.5
    off = {"table": "archive", "insert": False, "update": False, "delete": False}
    assert bound({"t": {"status": TEXT}}, sources=["t", off]).keys == (Input("status", TEXT),)


def test_what_is_missing_is_named() -> None:  # M7.3
    with pytest.raises(SchemaMismatch, match=r"table public\.t does not exist"):
        bound({})
    with pytest.raises(SchemaMismatch, match=r"public\.t has no column status") as raised:
        bound({"t": {"state": TEXT}})
    assert "state" in str(raised.value.remedy)
