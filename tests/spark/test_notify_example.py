"""The notify example through a job: its counts are those of GROUP BY, whatever happens to a row."""

from __future__ import annotations

import threading
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from penstock.config import load
from penstock.notify.service import bulk, steady
from penstock.ops.setup import setup
from penstock.pipelines.verifying import verify
from support.beside import beside
from support.database import Database
from support.jobs import captured, caught_up, job
from support.notify_example import TARGETS, differing, written
from support.waiting import eventually

# In Britain, half of these seven days are of summer time: the clocks change on the 29th.
UNTIL = datetime(2026, 4, 1, tzinfo=UTC)
GONE = "SELECT n_tup_del FROM pg_stat_user_tables WHERE relname = 'notification_history'"


def test_counts_equal_group_by_while_rows_are_archived_and_purged(
    database18: Database, tmp_path: Path, spark: SparkSession
) -> None:  # M4.5, M5.2, M5.3, M5.6
    config = written(database18, tmp_path, keepalive_interval_s=0.1)
    with database18.connect() as connection:
        bulk(connection, 3_000, until=UNTIL, seed=0.1)
    setup(config)

    def load(done: threading.Event) -> None:
        steady(database18.dsn(), rate=500, stop=done, seed=0.2)

    with captured(config), job(config, spark) as running:
        # It is seeded under load.
        with beside(load):
            caught_up(database18, running)
            before = database18.value(GONE)
            eventually(lambda: database18.value(GONE) > before, "more is purged")
            assert verify(config, config.aggregate[0], lambda: spark).differences == ()
        caught_up(database18, running)
        for target in TARGETS:
            assert differing(database18, target) == []
        # Moved to the history: not one row of the counts is written.
        stamps = "SELECT array_agg(xmin::text ORDER BY ctid) FROM ft_service_stats"
        shown = database18.value(stamps)
        moved = database18.value(
            "WITH gone AS (DELETE FROM notifications RETURNING *), kept AS"
            " (INSERT INTO notification_history SELECT * FROM gone RETURNING id)"
            " SELECT count(*) FROM kept"
        )
        assert moved > 0
        caught_up(database18, running)
        assert database18.value(stamps) == shown
    ((changes, skipped),) = database18.rows("SELECT changes, skipped FROM penstock.progress")
    assert changes > 0
    assert skipped == {}
    assert database18.value("SELECT count(*) FROM penstock.parked") == 0


ON_15 = pytest.mark.parametrize("server", [15], ids=["pg15"], indirect=True)
# What was ever sent, with its last status: rows that are archived or purged stay.
EVER = (
    "CREATE TABLE ever AS SELECT * FROM notifications",
    "ALTER TABLE ever ADD PRIMARY KEY (id)",
    (
        "CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " INSERT INTO public.ever VALUES (NEW.*) ON CONFLICT (id) DO UPDATE"
        " SET notification_status = EXCLUDED.notification_status; RETURN NULL; END $$"
    ),
    (
        "CREATE TRIGGER keep AFTER INSERT OR UPDATE ON notifications"
        " FOR EACH ROW EXECUTE FUNCTION keep()"
    ),
)


@ON_15
def test_polled_counts_equal_those_of_all_that_was_ever_sent(
    database: Database, tmp_path: Path, spark: SparkSession
) -> None:  # M4.3, M4.5, M5.2
    written(database, tmp_path)
    config = load(
        tmp_path / "polling.toml", environ={}, flags={"poll.interval_s": 0.1, "log.path": "log"}
    )
    with database.connect() as connection:
        bulk(connection, 2_000, until=UNTIL, seed=0.1)
    # The rows that there are when it begins.
    database.run("DROP TABLE ft_service_stats", *EVER)
    setup(config)
    keys = "bst_date, service_id, template_id, notification_type, notification_status"
    day = "(created_at AT TIME ZONE 'Europe/London')::date AS bst_date"
    shown = f"SELECT {keys}, notification_count FROM ft_service_stats WHERE notification_count <> 0"
    truth = (
        f"SELECT {keys}, count(*) FROM (SELECT *, {day} FROM ever WHERE key_type <> 'test') AS e"
        f" GROUP BY {keys}"
    )
    different = f"(({shown}) EXCEPT ALL ({truth})) UNION ALL (({truth}) EXCEPT ALL ({shown}))"

    def work(done: threading.Event) -> None:
        steady(database.dsn(), rate=300, stop=done, seed=0.2)

    with captured(config), job(config, spark) as running:
        caught_up(database, running)
        with beside(work):
            before = database.value(GONE)
            eventually(lambda: database.value(GONE) > before, "more is purged")
        caught_up(database, running)
        assert database.rows(different) == []
        assert database.value("SELECT count(*) FROM ft_service_stats") > 10
        kind = "SELECT pg_typeof(notification_count)::text FROM ft_service_stats LIMIT 1"
        assert database.value(kind) == "bigint"
