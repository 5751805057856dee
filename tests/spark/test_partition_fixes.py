"""A partition that is added while the job runs, and gets its replica identity from it. M4.2"""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from penstock.config import Config
from penstock.ops.setup import setup
from penstock.pipelines import job as job_module
from penstock.pipelines.verifying import verify
from support.database import Database
from support.jobs import captured, caught_up, job
from support.waiting import eventually


def test_what_happens_in_a_partition_that_the_job_has_fixed_is_counted(
    database: Database, tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_module, "_SOURCES_EVERY_S", 0.1)
    database.run(
        "CREATE TABLE notes (id int, k int, status text, PRIMARY KEY (id, k))"
        " PARTITION BY LIST (k)",
        "CREATE TABLE a PARTITION OF notes FOR VALUES IN (1)",
    )
    config = Config.model_validate(
        {
            "source": {
                "dsn": database.dsn(),
                "tables": [{"name": "notes", "replica_identity": "full"}],
                "keepalive_interval_s": 0.1,
                "fix_new_partitions": True,
            },
            "heartbeat": {"interval_min": 0},
            "log": {"path": tmp_path / "log"},
            "aggregate": [
                {
                    "name": "counts",
                    "sources": ["notes"],
                    "dimensions": ["status"],
                    "targets": ["counts"],
                }
            ],
        }
    )
    setup(config)
    identity = "SELECT relreplident::text FROM pg_class WHERE relname = 'b'"
    with captured(config), job(config, spark) as running:
        caught_up(database, running)
        database.run("CREATE TABLE b PARTITION OF notes FOR VALUES IN (2)")
        eventually(lambda: database.value(identity) == "f", "its identity is its root's")
        database.run(
            "INSERT INTO notes SELECT n, 1 + n % 2, 'new' FROM generate_series(1, 20) AS n",
            "UPDATE notes SET status = 'sent' WHERE id <= 10",
            "DELETE FROM notes WHERE id IN (2, 12)",
            "UPDATE notes SET k = 3 - k, status = NULL WHERE id = 4",
        )
        caught_up(database, running)
        seen = database.rows("SELECT status, count FROM counts WHERE count <> 0 ORDER BY 1")
        assert seen == [("new", 9), ("sent", 8), (None, 1)]
        assert verify(config, config.aggregate[0], lambda: spark).differences == ()
    assert database.value("SELECT count(*) FROM penstock.stops") == 0
