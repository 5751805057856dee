"""While Postgres groups a table, it is told that it still does."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import NoReturn

import pytest

from penstock.names import TableName
from penstock.pipelines import grouping_told
from penstock.pipelines.grouping_told import Grouping
from penstock.pipelines.sums import rolled_up
from penstock.pipelines.truth import true_sums
from penstock.postgres.snapshots import snapshot
from support.database import Database
from support.truth import NOTIFICATIONS, no_spark, truth_of
from support.waiting import eventually


def test_while_the_server_groups_it_is_told_that_it_still_does(
    database18: Database, monkeypatch: pytest.MonkeyPatch
) -> None:  # M5.5, M7.1
    monkeypatch.setattr(grouping_told, "_TELL_EVERY_S", 0.01)
    database18.run(*NOTIFICATIONS, "INSERT INTO notifications VALUES (1, 's', 'a', 1)")
    database18.run("ANALYZE notifications")
    told: list[Grouping] = []
    with (
        snapshot(database18.dsn()) as source,
        database18.connect(autocommit=False) as other,
        ThreadPoolExecutor(1) as pool,
    ):
        bound, sums = truth_of(source)
        # It has read the table, which nobody can lock until its transaction ends.
        source.connection.execute("COMMIT")
        other.execute("LOCK TABLE notifications")
        grouping = pool.submit(
            true_sums, source.connection, bound, no_spark, on_grouping=told.append
        )
        eventually(lambda: len(told) > 2, "told again and again")
        other.rollback()
        assert rolled_up(grouping.result(10).sums, ["service", "status"], ["count", "cost"]) == sums
    for before, after in pairwise(told):
        assert (after.table, after.about_rows) == (bound.config.sources[0].table, 1)
        assert after.for_s > before.for_s
    # It ends with the statement.
    number = len(told)
    time.sleep(0.1)
    assert len(told) == number


def test_whoever_is_told_of_rows_may_end_it_meanwhile(
    database18: Database, monkeypatch: pytest.MonkeyPatch
) -> None:  # M5.5
    monkeypatch.setattr(grouping_told, "_TELL_EVERY_S", 0.0)
    database18.run(*NOTIFICATIONS)

    def refuse(_: object) -> NoReturn:
        raise ZeroDivisionError

    with snapshot(database18.dsn()) as source:
        bound, _ = truth_of(source)
        with pytest.raises(ZeroDivisionError):
            true_sums(source.connection, bound, no_spark, refuse)


def test_how_many_rows_a_table_has_is_told_by_its_statistics(database: Database) -> None:  # M5.5
    database.run(
        "CREATE TABLE plain AS SELECT generate_series(1, 100) AS n",
        "CREATE TABLE unknown (n int)",
        "CREATE TABLE heir () INHERITS (plain)",
        "INSERT INTO heir VALUES (1)",
        "CREATE TABLE parted (n int) PARTITION BY RANGE (n)",
        "CREATE TABLE low PARTITION OF parted FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE high PARTITION OF parted FOR VALUES FROM (10) TO (90) PARTITION BY RANGE (n)",
        "CREATE TABLE higher PARTITION OF high FOR VALUES FROM (10) TO (90)",
        # One for later, which nobody analyzes while it is empty.
        "CREATE TABLE later PARTITION OF parted FOR VALUES FROM (90) TO (99)",
        "INSERT INTO parted SELECT generate_series(1, 49)",
        "ANALYZE plain, heir, low, higher",
    )
    with database.connect() as connection:

        def about(name: str) -> int | None:
            return grouping_told._about_rows(connection, TableName.parse(name))

        found = {name: about(name) for name in ("plain", "unknown", "parted", "low", "later")}
    assert found == {"plain": 100, "unknown": None, "parted": 49, "low": 9, "later": None}
