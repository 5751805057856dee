"""A column moves to a new name while aggregates follow it: the new column is added, filled in
batches while the application writes, and the old one is dropped. M4.5, M4.6
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from penstock.config import Config
from penstock.ops.setup import setup
from penstock.pipelines.verifying import verify
from support.beside import beside
from support.database import Database
from support.jobs import captured, caught_up, job

ALIASES = {"status": ["notification_status", "status"]}
# Postgres groups the first by itself; of the second Spark reads the rows.
PLAIN: dict[str, Any] = {
    "name": "by_status",
    "sources": [{"table": "notes", "aliases": ALIASES}],
    "dimensions": {"status": "status"},
    "measures": {"count": "count", "total": "sum(amount)"},
    "targets": ["by_status"],
}
COMPUTED = {**PLAIN, "name": "by_word", "targets": ["by_word"]} | {
    "dimensions": {"word": {"expression": "upper(status)", "type": "text"}}
}
_STATUSES = "(ARRAY['created', 'sent', 'failed'])[1 + floor(random() * 3)::int]"


def config_of(database: Database, log: Path) -> Config:
    config = Config.model_validate(
        {
            "source": {
                "dsn": database.dsn(),
                "tables": [{"name": "notes", "replica_identity": "full"}],
                "keepalive_interval_s": 0.1,
            },
            "heartbeat": {"interval_min": 0},
            "log": {"path": log},
            "aggregate": [PLAIN, COMPUTED],
        }
    )
    setup(config)
    return config


def write(database: Database, column: str) -> None:
    """Rows come, change and go, as the application writes them at a step of the migration."""
    some = "id IN (SELECT id FROM notes ORDER BY random() LIMIT 5)"
    value = f"{_STATUSES}::{'status_label' if column == 'notification_status' else 'text'}"
    database.run(
        f"INSERT INTO notes ({column}, amount) SELECT {value}, n FROM generate_series(1, 20) AS n",
        "INSERT INTO notes (amount) VALUES (1), (2)",
        f"UPDATE notes SET {column} = {value} WHERE {some}",
        f"UPDATE notes SET amount = amount + 1 WHERE {some}",
        f"DELETE FROM notes WHERE {some}",
    )


def must_be_right(database: Database, config: Config, spark: SparkSession, status: str) -> None:
    """Every target shows what GROUP BY gives, and `verify` finds no difference."""
    for target, column, value in (
        ("by_status", "status", status),
        ("by_word", "word", f"upper({status})"),
    ):
        truth = database.rows(
            f"SELECT {value}, count(*), sum(amount)::numeric FROM notes GROUP BY 1"
        )
        seen = database.rows(f"SELECT {column}, count, total FROM {target} WHERE count <> 0")
        assert Counter(seen) == Counter(truth), target
    for aggregate in config.aggregate:
        assert verify(config, aggregate, lambda: spark).differences == (), aggregate.name


def test_a_column_that_moves_to_a_new_name_is_counted_once_at_every_step(
    database: Database, tmp_path: Path, spark: SparkSession
) -> None:
    database.run(
        "CREATE TYPE status_label AS ENUM ('created', 'sent', 'failed')",
        "CREATE TABLE notes (id bigserial PRIMARY KEY, status text, amount integer NOT NULL)",
    )
    config = config_of(database, tmp_path / "log")
    either = "coalesce(notification_status::text, status)"
    with captured(config):
        with job(config, spark) as running:
            write(database, "status")
            caught_up(database, running)
            must_be_right(database, config, spark, "status")

            database.run("ALTER TABLE notes ADD notification_status status_label")
            write(database, "status")
            caught_up(database, running)
            must_be_right(database, config, spark, either)

            # Writers of both versions of the application, while rows are filled in batches.
            with beside(lambda done: _until(done, database)):
                while database.value(_BACKFILL):
                    pass
            caught_up(database, running)
            must_be_right(database, config, spark, either)

        # A job that starts between the steps knows both columns from its start.
        with job(config, spark) as running:
            write(database, "notification_status")
            caught_up(database, running)
            must_be_right(database, config, spark, either)

            database.run(
                "UPDATE notes SET notification_status = coalesce(status, 'failed')::status_label"
                " WHERE notification_status IS NULL",
                "ALTER TABLE notes ALTER notification_status SET DEFAULT 'created',"
                " ALTER notification_status SET NOT NULL",
                "ALTER TABLE notes DROP status",
            )
            write(database, "notification_status")
            caught_up(database, running)
            must_be_right(database, config, spark, "notification_status::text")
    assert database.value("SELECT count(*) FROM penstock.progress WHERE skipped <> '{}'") == 0
    assert database.value("SELECT count(*) FROM penstock.parked") == 0


_BACKFILL = """
WITH filled AS (
    UPDATE notes SET notification_status = status::status_label
     WHERE id IN (SELECT id FROM notes
                   WHERE notification_status IS NULL AND status IS NOT NULL LIMIT 7)
    RETURNING 1
)
SELECT count(*) FROM filled
"""


def _until(done: Any, database: Database) -> None:
    while not done.wait(0.01):
        write(database, "status")
        write(database, "notification_status")
