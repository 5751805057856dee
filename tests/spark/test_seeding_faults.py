"""A seeding or a reset fails, waits or comes at a bad moment: nothing is lost or counted twice."""

from __future__ import annotations

import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from structlog.testing import capture_logs

from penstock.changelog.reader import LogReader
from penstock.errors import PipelineFenced
from penstock.pipelines import seeding, source_snapshot
from penstock.pipelines.locks import try_lock
from penstock.pipelines.seeding import seed
from penstock.pipelines.truth import true_sums
from penstock.postgres.snapshots import snapshot
from support.database import Database
from support.jobs import captured, caught_up, job
from support.locks import waits_for_lock
from support.notify import LIVE, NORMAL, Notifications, differences, notify_config
from support.proxy import Proxy
from support.waiting import eventually


@pytest.mark.parametrize("lost", ["source", "target"])
def test_seeding_starts_over_when_a_connection_is_lost(
    prepared: Database,
    proxy: Proxy,
    tmp_path: Path,
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
    lost: str,
) -> None:  # M5.5
    through = proxy.through(prepared.dsn())
    ways = {"source": (through, prepared.dsn()), "target": (prepared.dsn(), through)}[lost]
    direct = notify_config(prepared, tmp_path / "log", LIVE)
    config = notify_config(prepared, tmp_path / "log", {**LIVE, "target_dsn": ways[1]}, dsn=ways[0])
    away = threading.Event()

    def cut_first(*arguments: Any) -> Any:
        if not away.is_set():
            proxy.refuse()
            proxy.cut()
            away.set()
        return true_sums(*arguments)

    monkeypatch.setattr(seeding, "true_sums", cut_first)
    with prepared.connect() as connection, captured(direct):
        work = Notifications(connection)
        work.work(10)
        with job(config, spark) as running:
            assert away.wait(30)
            work.work(5)
            assert running.running
            assert prepared.value("SELECT state FROM penstock.progress") == "seeding"
            proxy.refuse(False)
            caught_up(prepared, running)
            assert differences(connection, "ft_live") == 0


def test_a_seeding_that_is_held_up_by_a_long_transaction_is_tried_until_that_ends(
    prepared: Database, tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:  # M5.5
    monkeypatch.setattr(source_snapshot, "snapshot", partial(snapshot, deadline_s=0.3))
    # Neither do limits on the time of others end it: what it writes to rests meanwhile.
    limits = "-c idle_session_timeout=100 -c statement_timeout=100"
    config = notify_config(
        prepared, tmp_path / "log", {**LIVE, "target_dsn": prepared.dsn(options=limits)}
    )
    with prepared.connect(autocommit=False) as connection, captured(config):
        Notifications(connection).insert(10)
        with capture_logs() as said, job(config, spark) as running:
            waits_for = f"waits for open write transactions: process {connection.info.backend_pid}"
            eventually(
                lambda: sum(waits_for in str(each.get("reason")) for each in said) > 1,
                "it is tried again",
                within_s=60,
            )
            connection.commit()
            caught_up(prepared, running)
            assert differences(connection, "ft_live") == 0


def test_what_goes_wrong_in_seeding_and_will_not_pass_ends_the_job(
    prepared: Database, tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:  # M5.5, M7.3
    config = notify_config(prepared, tmp_path / "log", LIVE)

    def broken(*_: Any) -> Any:
        raise ZeroDivisionError("something nobody thought of")

    monkeypatch.setattr(seeding, "true_sums", broken)
    with captured(config), job(config, spark) as running:
        assert isinstance(running.failed(), ZeroDivisionError)


def test_a_job_does_not_wait_for_a_seeding_that_waits_for_the_source(
    prepared: Database, tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:  # M5.5
    config = notify_config(prepared, tmp_path / "log", LIVE)
    with prepared.connect() as other, captured(config):
        other.execute("SELECT pg_advisory_lock(1)")

        def locked(connection: Any, *more: Any) -> Any:
            connection.execute("SELECT pg_advisory_lock(1)")
            return true_sums(connection, *more)

        monkeypatch.setattr(seeding, "true_sums", locked)
        with capture_logs() as said, job(config, spark) as running:
            eventually(lambda: waits_for_lock(prepared), "the seeding waits", within_s=60)
            # Spark's own first batch is not what is waited for.
            eventually(lambda: "following" in {each["event"] for each in said}, "it follows")
            began = time.monotonic()
            running.stop()
            assert time.monotonic() - began < 10
            assert running.error is None
        assert prepared.value("SELECT state FROM penstock.progress") == "seeding"


def test_a_start_behind_a_truncate_and_before_its_own_snapshot(
    prepared: Database, tmp_path: Path, spark: SparkSession
) -> None:  # M4.6, M5.5
    history = {**NORMAL, "name": "history", "sources": ["notification_history"]}
    both = notify_config(prepared, tmp_path / "log", LIVE, history)
    first = both.model_copy(update={"aggregate": both.aggregate[:1]})
    with prepared.connect() as connection:
        work = Notifications(connection)
        with captured(first), job(first, spark) as running:
            work.work(5)
            caught_up(prepared, running)
        with captured(first):
            # Of a table whose rows are yet to be counted.
            work.work(5)
            prepared.run("TRUNCATE notification_history")
            now = prepared.wal_position()
            eventually(lambda: prepared.confirmed("penstock") >= now, "it is in the log")
        work.work(5)
        end = LogReader(both.log.path).end().lsn
        with job(both, spark) as running:
            # Without capture the log ends before what was counted.
            done = (
                "SELECT count(*) FROM penstock.progress"
                f" WHERE state <> 'seeding' AND applied_lsn >= '{end}'"
            )
            eventually(
                lambda: prepared.value(done) == 2 or not running.running,
                "one is seeded, the other has what is in the log",
                within_s=60,
            )
            running.must_run()
        seed(both, both.aggregate[0], lambda: spark)
        with job(both, spark) as running, captured(both):
            work.work(5)
            caught_up(prepared, running)
            assert differences(connection, "ft_live") == 0
            shown = prepared.value("SELECT coalesce(sum(count), 0) FROM ft_normal")
            rows = "SELECT count(*) FROM notification_history WHERE key_type = 'normal'"
            assert shown == prepared.value(rows)


def test_a_reset_that_fails_while_a_job_starts_loses_nothing(
    prepared: Database, tmp_path: Path, spark: SparkSession
) -> None:  # M5.3, M5.5
    config = notify_config(prepared, tmp_path / "log", LIVE, NORMAL)
    with (
        prepared.connect() as connection,
        prepared.connect() as resetting,
        captured(config),
    ):
        work = Notifications(connection)
        with job(config, spark) as running:
            work.work(5)
            caught_up(prepared, running)
        work.work(10)
        now = prepared.wal_position()
        eventually(lambda: prepared.confirmed("penstock") >= now, "it is in the log")
        assert try_lock(resetting, "seeding", "live")
        before = seeding._begin(resetting, config.aggregate[0], LogReader(config.log.path))
        assert before is not None
        with job(config, spark) as running:
            eventually(lambda: running.job._follows, "the first batch is there", within_s=60)
            # It gives up, and says that all is as it was.
            seeding._give_back(resetting, before)
            resetting.close()
            work.work(2)
            caught_up(prepared, running)
            for target in ("ft_live", "ft_normal"):
                assert differences(connection, target) == 0


def test_a_reset_without_seeding_counts_from_the_end_of_the_log_also_while_a_job_runs(
    prepared: Database, tmp_path: Path, spark: SparkSession
) -> None:  # M5.4, M5.5
    config = notify_config(prepared, tmp_path / "log", {**LIVE, "seed": False})
    with prepared.connect() as connection, captured(config), job(config, spark) as running:
        work = Notifications(connection)
        caught_up(prepared, running)
        work.insert(20)
        caught_up(prepared, running)
        assert prepared.value("SELECT sum(count) FROM ft_live") == 20
        before = prepared.lsn("SELECT applied_lsn::text FROM penstock.progress")
        done = seed(config, config.aggregate[0], lambda: spark)
        assert (done.rows, done.lsn >= before) == (0, True)
        assert prepared.rows("SELECT * FROM ft_live") == []
        work.insert(3)
        caught_up(prepared, running)
        assert prepared.value("SELECT sum(count) FROM ft_live") == 3
        assert prepared.rows("SELECT changes, clamped FROM penstock.progress") == [(3, 0)]


def test_a_job_stops_when_its_aggregate_is_reset_for_another_declaration(
    prepared: Database, tmp_path: Path, spark: SparkSession
) -> None:  # M5.3
    config = notify_config(prepared, tmp_path / "log", LIVE)
    other = notify_config(
        prepared, tmp_path / "log", {**LIVE, "sources": ["notifications", "notification_history"]}
    )
    with prepared.connect() as connection, captured(config):
        work = Notifications(connection)
        work.work(5)
        with job(config, spark) as running:
            caught_up(prepared, running)
            seed(other, other.aggregate[0], lambda: spark)
            work.work(5)
            error = running.failed()
            assert isinstance(error, PipelineFenced)
            assert "another declaration" in error.problem
        with job(other, spark) as running:
            caught_up(prepared, running)
        assert prepared.value("SELECT sum(count) FROM ft_live") == prepared.value(
            "SELECT count(*) FROM (TABLE notifications UNION ALL TABLE notification_history) AS n"
        )
