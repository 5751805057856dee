"""Rows that an UPDATE moves to another partition, with some rules off. M4.5, M4.6"""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from penstock.changelog.reader import LogReader
from penstock.ops.checks.partition_moves import wrongly_counted
from penstock.ops.doctor import diagnose
from penstock.ops.setup import setup
from penstock.pipelines.binding import bind, types_of
from penstock.pipelines.log_deltas import log_deltas
from penstock.postgres.tables import read_tables
from support.aggregates import config_with, declared
from support.database import Database
from support.jobs import captured
from support.waiting import eventually


@pytest.mark.parametrize(
    ("source", "counts", "said"),
    [
        ({}, {"new": 1, "sent": 1}, None),
        ({"delete": False}, {"new": 2, "sent": 1}, "it is counted once more"),
        ({"insert": False}, {"new": -1}, "it is not counted any more"),
        ({"insert": False, "delete": False}, {}, "it stays counted as it was"),
        (
            {"update": False},
            {"new": 1, "sent": 1},
            "it is counted as it is now, although the update rule is off",
        ),
        ({"update": False, "immutable": ["status"]}, {"new": 1, "sent": 1}, None),
    ],
)
def test_doctor_says_what_becomes_of_a_row_that_moves(
    database: Database,
    tmp_path: Path,
    source: dict[str, Any],
    counts: dict[str, int],
    said: str | None,
) -> None:
    database.run(
        "CREATE TABLE notes (id int, k int, status text NOT NULL, PRIMARY KEY (id, k))"
        " PARTITION BY LIST (k)",
        "CREATE TABLE a PARTITION OF notes FOR VALUES IN (1)",
        "CREATE TABLE b PARTITION OF notes FOR VALUES IN (2)",
        *(f"ALTER TABLE {name} REPLICA IDENTITY FULL" for name in ("notes", "a", "b")),
    )
    aggregate = declared(
        sources=[{"table": "notes", **source}], dimensions=["status"], verifiable=False
    )
    config = config_with(database, aggregate, keepalive_interval_s=0.1)
    config = config.model_copy(
        update={
            "log": config.log.model_copy(update={"path": tmp_path / "log"}),
            "heartbeat": config.heartbeat.model_copy(update={"interval_min": 0}),
        }
    )
    setup(config)
    found = [each for each in diagnose(config) if each.check == "aggregate_partition_moves"]
    assert [each.what.rpartition(": ")[2] for each in found] == ([] if said is None else [said])
    assert all(each.level == "warning" and each.fix for each in found)
    (one,) = config.aggregate
    assert wrongly_counted(one, one.sources[0]) == said
    with captured(config):
        database.run(
            "INSERT INTO notes VALUES (1, 1, 'new'), (2, 1, 'new')",
            "UPDATE notes SET k = 2, status = 'sent' WHERE id = 1",
        )
        now = database.wal_position()
        log = LogReader(config.log.path)
        eventually(lambda: log.end().lsn >= now, "all is in the log")
        with database.connect() as connection:
            tables = read_tables(connection, [one.sources[0].table])
        bound = bind(one, types_of(tables), now)
        batch = log_deltas(log, bound, log.identity.start_lsn, log.end().lsn, Mock())
    assert {row["status"]: row["count"] for row in batch.sums.to_pylist()} == counts
