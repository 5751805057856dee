"""DDL that changes what an alias stands for in rows that are there stops the aggregate. M4.6"""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from penstock.config import Config
from penstock.ops.setup import setup
from penstock.pipelines import job as job_module
from penstock.pipelines.seeding import seed
from penstock.pipelines.verifying import verify
from support.database import Database
from support.jobs import captured, caught_up, job
from support.waiting import eventually

CODE = "SELECT stop->>'code' FROM penstock.stops"


def test_an_alias_with_values_and_one_that_rows_needed_stop_the_aggregate(
    database: Database, tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_module, "_SOURCES_EVERY_S", 0.1)
    database.run(
        "CREATE TABLE notes (id int PRIMARY KEY, status text)",
        "INSERT INTO notes VALUES (1, 'new'), (2, 'sent')",
    )
    aliases = {"status": ["label", "state", "status"]}
    config = Config.model_validate(
        {
            "source": {
                "dsn": database.dsn(),
                "tables": [{"name": "notes", "replica_identity": "full"}],
                "keepalive_interval_s": 0.1,
            },
            "heartbeat": {"interval_min": 0},
            "log": {"path": tmp_path / "log"},
            "aggregate": [
                {
                    "name": "counts",
                    "sources": [{"table": "notes", "aliases": aliases}],
                    "dimensions": ["status"],
                    "targets": ["counts"],
                }
            ],
        }
    )
    setup(config)
    (counts,) = config.aggregate

    def stopped(code: str) -> None:
        eventually(lambda: database.rows(CODE) == [(code,)], f"it stops: {code}")
        seed(config, counts, lambda: spark)
        eventually(lambda: database.rows(CODE) == [], "it goes on")
        caught_up(database, running)
        assert verify(config, counts, lambda: spark).differences == ()

    with captured(config), job(config, spark) as running:
        caught_up(database, running)
        # An empty one goes on, and is noted.
        database.run("ALTER TABLE notes ADD state text")
        eventually(
            lambda: database.value(
                "SELECT count(*) FROM penstock.sources WHERE marks::text LIKE '%%\"state\"%%'"
            ),
            "the column is noted",
        )
        assert database.rows(CODE) == []
        database.run("ALTER TABLE notes ADD label text DEFAULT 'filled'")
        stopped("alias_filled")
        database.run("UPDATE notes SET label = NULL")
        caught_up(database, running)
        database.run("ALTER TABLE notes DROP status")
        stopped("alias_gone")
