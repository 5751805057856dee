"""The SQL that adds deltas; what it does is shown on servers, in `test_applying.py`."""

from __future__ import annotations

from penstock.names import TableName
from penstock.pipelines.merging import Column, TargetTable, arrays_sql, merge_sql

TARGET = TargetTable(
    TableName("public", "Weird 100% name"),
    (Column("day", "date"), Column('sta"tus', "text")),
    (Column("count", "bigint"), Column("cost", "numeric")),
    frozenset(["count"]),
)


def test_rows_are_found_by_what_an_index_can_find() -> None:  # M5.4
    sql = merge_sql(TARGET, (False, True), arrays_sql(TARGET))
    assert 't.day = d.k0 AND t."sta""tus" IS NULL' in sql
    assert "DISTINCT FROM" not in sql


def test_only_counts_are_kept_from_going_below_zero() -> None:  # M5.4
    sql = merge_sql(TARGET, (False, False), arrays_sql(TARGET))
    assert "count = greatest(" in sql
    assert "cost = greatest(" not in sql
    # Nor is a sum below zero told.
    assert sql.count("least(") == 1


def test_names_with_a_percent_sign_are_no_parameters() -> None:
    sql = merge_sql(TARGET, (False, False), arrays_sql(TARGET))
    assert '"Weird 100%% name"' in sql
    assert sql.count("%s") == 4
