"""What aggregates depend on fails or is strange: they wait, go on by themselves, and stay exact."""

from __future__ import annotations

import json
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from structlog.testing import capture_logs

from penstock.changelog.planning import Limit
from penstock.changelog.reader import LogReader
from penstock.config import Config
from penstock.errors import PipelineFenced, SourceUnavailable
from penstock.lsn import Lsn
from penstock.pipelines import job as job_module
from penstock.pipelines import seeding, staging
from penstock.pipelines.job import Job
from penstock.pipelines.locks import try_lock
from penstock.pipelines.seeding import seed
from penstock.pipelines.spark_staging import stage
from penstock.pipelines.truth import true_sums
from penstock.postgres.embedded import EmbeddedPostgres
from penstock.spark.session import SparkFailed
from support.capturing import RunningCapture
from support.database import Database
from support.jobs import captured, caught_up, job
from support.notify import (
    AGGREGATE,
    LIVE,
    NORMAL,
    SCHEMA,
    TARGETS,
    Notifications,
    differences,
    notify_config,
)
from support.proxy import Proxy
from support.repeats import repeats
from support.waiting import eventually

OF_AGGREGATE = ("ft_all", "ft_service_stats", "ft_by_date")


@pytest.fixture
def prepared(database18: Database) -> Database:
    database18.run(*SCHEMA)
    database18.create_slot("penstock")
    return database18


@pytest.fixture
def proxy(prepared: Database) -> Iterator[Proxy]:
    with Proxy(prepared.server.port) as proxy:
        yield proxy


@pytest.fixture
def other_server(_servers: Callable[[int], EmbeddedPostgres]) -> Iterator[Database]:
    """A database of another server, of another version, with the targets only."""
    with Database(_servers(16), "targets") as database:
        database.run(*TARGETS)
        yield database


def test_a_target_that_is_away_for_a_while_gets_everything_once(
    prepared: Database, proxy: Proxy, tmp_path: Path, spark: SparkSession
) -> None:  # M1.2, M5.3
    declared = {**LIVE, "target_dsn": proxy.through(prepared.dsn())}
    config = notify_config(prepared, tmp_path / "log", declared)
    with prepared.connect() as connection, captured(config), job(config, spark) as running:
        work = Notifications(connection)
        work.work(5)
        caught_up(prepared, running)
        proxy.refuse()
        proxy.cut()
        work.work(10)
        # Whatever the targets do, what is in the log is confirmed.
        now = prepared.wal_position()
        eventually(lambda: prepared.confirmed("penstock") >= now, "capture confirms on")
        applied = prepared.lsn("SELECT applied_lsn::text FROM penstock.progress")
        assert applied < now
        work.work(10)
        assert running.running
        # Nobody writes any more: it comes back and is given all there is.
        proxy.refuse(False)
        caught_up(prepared, running)
        assert differences(connection, "ft_live") == 0
        # It can be stopped while the target is away.
        proxy.refuse()
        proxy.cut()
        work.work(1)
        (writer,) = running.job._writers
        eventually(lambda: writer.away, "it is away")
        running.stop()
    # And it is not started while none of its targets can be reached.
    with pytest.raises(SourceUnavailable):
        Job(config, spark).run()


def test_a_target_that_is_away_holds_up_no_other(
    prepared: Database,
    proxy: Proxy,
    tmp_path: Path,
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # M5.3
    # What it misses comes in several portions.
    monkeypatch.setattr(job_module, "_AT_ONCE", Limit(max_rows=100))
    portions = []
    read_again = Job._read_again

    def noted(self: Job, number: int, covered: Any) -> Any:
        read = read_again(self, number, covered)
        portions.append(covered.end - read[1])
        return read

    monkeypatch.setattr(Job, "_read_again", noted)
    away = {**LIVE, "target_dsn": proxy.through(prepared.dsn())}
    config = notify_config(prepared, tmp_path / "log", away, AGGREGATE)

    def position(aggregate: str) -> Lsn:
        return prepared.lsn(
            "SELECT applied_lsn::text FROM penstock.progress WHERE aggregate = %s", aggregate
        )

    proxy.refuse()
    with prepared.connect() as connection, captured(config), job(config, spark) as running:
        work = Notifications(connection)

        def others_go_on() -> None:
            work.work(5)
            now = prepared.wal_position()
            eventually(lambda: position(AGGREGATE["name"]) >= now, "it goes on", within_s=60)
            assert differences(connection, "ft_all") == 0

        work.work(5)
        eventually(
            lambda: prepared.rows("SELECT FROM penstock.progress WHERE state = 'live'"),
            "the other is seeded, and begins",
            within_s=60,
        )
        others_go_on()
        proxy.refuse(False)
        # It is there, and seeded.
        work.work(5)
        eventually(lambda: len(prepared.rows("SELECT FROM penstock.progress")) == 2, "it comes")
        caught_up(prepared, running)
        assert differences(connection, "ft_live") == 0
        # And away again.
        proxy.refuse()
        proxy.cut()
        for _ in range(3):
            others_go_on()
        assert position(LIVE["name"]) < position(AGGREGATE["name"])
        proxy.refuse(False)
        work.work(5)
        caught_up(prepared, running)
        for name in ("ft_live", *OF_AGGREGATE):
            assert differences(connection, name) == 0
    assert any(left > 0 for left in portions)


def with_small_budget(config: Config) -> Config:
    small = {"segment_mib": 0.01, "max_gib": 0.0001, "min_age_h": 0.0, "on_full": "wait"}
    return config.model_copy(update={"log": config.log.model_copy(update=small)})


def waits_for_room(capture: RunningCapture) -> bool:
    return any("disk budget" in str(each.get("reason")) for each in capture.said)


def test_a_log_at_its_disk_budget_goes_on_when_the_aggregates_have_what_is_in_it(
    prepared: Database, tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:  # M2.5, M5.3
    config = with_small_budget(notify_config(prepared, tmp_path / "log", LIVE))
    with (
        prepared.connect() as connection,
        captured(config) as capture,
        job(config, spark) as running,
    ):
        work = Notifications(connection)
        caught_up(prepared, running)
        may_apply = threading.Event()
        as_it_is = Job._write

        def write(self: Job, result: Any) -> None:
            may_apply.wait(60)
            as_it_is(self, result)

        monkeypatch.setattr(Job, "_write", write)
        for _ in range(repeats(2, soak=8)):
            may_apply.clear()
            capture.said.clear()
            work.insert(2_000)
            work.work(20)
            eventually(lambda: waits_for_room(capture), "capture waits for room")
            may_apply.set()
            caught_up(prepared, running)
            assert differences(connection, "ft_live") == 0


def test_a_log_that_fills_up_during_a_seeding_goes_on_after_it(
    prepared: Database, tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:  # M2.5, M5.5
    config = with_small_budget(notify_config(prepared, tmp_path / "log", LIVE, NORMAL))
    may_seed = threading.Event()

    def slow(connection: Any, bound: Any, *more: Any) -> Any:
        if bound.config.name == NORMAL["name"]:
            assert may_seed.wait(60)
        return true_sums(connection, bound, *more)

    monkeypatch.setattr(seeding, "true_sums", slow)
    with (
        prepared.connect() as connection,
        captured(config) as capture,
        job(config, spark) as running,
    ):
        live = "SELECT FROM penstock.progress WHERE aggregate = 'live' AND state = 'live'"
        eventually(lambda: prepared.rows(live), "the first is followed", within_s=60)
        work = Notifications(connection)
        work.insert(2_000)
        work.work(20)
        eventually(lambda: waits_for_room(capture), "capture waits for room", within_s=30)
        # Nothing comes any more that could tell that it is seeded.
        end = LogReader(config.log.path).end().lsn
        applied = "SELECT applied_lsn::text FROM penstock.progress WHERE aggregate = 'live'"
        eventually(lambda: prepared.lsn(applied) >= end, "the first has all of it")
        may_seed.set()
        caught_up(prepared, running)
        for target in ("ft_live", "ft_normal"):
            assert differences(connection, target) == 0


def test_a_large_transaction_is_a_large_batch_however_little_wal_its_commit_is(
    prepared: Database, tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:  # M5.3
    config = notify_config(prepared, tmp_path / "log", LIVE)
    monkeypatch.setattr(job_module, "SHARE_BYTES", 10_000)
    large: list[bool] = []
    as_it_is = Job._is_small

    def is_small(self: Job) -> bool:
        large.append(not as_it_is(self))
        return not large[-1]

    monkeypatch.setattr(Job, "_is_small", is_small)
    with prepared.connect() as connection, captured(config), job(config, spark) as running:
        caught_up(prepared, running)
        with connection.transaction():
            Notifications(connection).insert(1_000)
            # Its WAL lies behind, all but the end.
            caught_up(prepared, running)
            assert not any(large)
        caught_up(prepared, running)
        assert any(large)
        assert differences(connection, "ft_live") == 0


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
        prepared.run("UPDATE penstock.progress SET state = 'seeding' WHERE aggregate = 'live'")
        with job(config, spark) as running:
            eventually(lambda: running.job._follows, "the first batch is there", within_s=60)
            # It gives up, and says that all is as it was.
            prepared.run("UPDATE penstock.progress SET state = 'seeded' WHERE aggregate = 'live'")
            resetting.close()
            work.work(2)
            caught_up(prepared, running)
            for target in ("ft_live", "ft_normal"):
                assert differences(connection, target) == 0


def test_targets_on_another_server_are_seeded_and_followed(
    prepared: Database, other_server: Database, tmp_path: Path, spark: SparkSession
) -> None:  # M5.3, M5.5
    prepared.run("DROP SCHEMA penstock CASCADE", *(f"DROP TABLE {name}" for name in OF_AGGREGATE))
    declared = {**AGGREGATE, "target_dsn": other_server.dsn()}
    config = notify_config(prepared, tmp_path / "log", declared)
    with (
        prepared.connect() as connection,
        other_server.connect() as target,
        captured(config),
    ):
        work = Notifications(connection)
        work.work(10)
        for _ in range(2):
            with job(config, spark) as running:
                work.work(10)
                caught_up(prepared, running, target=other_server)
                for name in OF_AGGREGATE:
                    assert differences(connection, name, target) == 0


def test_large_results_go_from_executors_to_the_target_and_no_password_is_shown(
    prepared: Database, tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:  # M5.3, M5.7
    # As if every batch and the rows to seed from were more than the driver takes.
    monkeypatch.setattr(job_module, "SHARE_BYTES", 0)
    monkeypatch.setattr(job_module, "MOST_IN_DRIVER", 3)
    monkeypatch.setattr(staging, "MOST_IN_DRIVER", 3)
    parts = []

    def counted(*arguments: Any) -> staging.Staged:
        parts.append(stage(*arguments))
        return parts[-1]

    monkeypatch.setattr(job_module, "stage", counted)
    password = "s3cret-of-the-target"
    declared = [
        {**each, "target_dsn": prepared.dsn(password=password)} for each in (AGGREGATE, LIVE)
    ]
    config = notify_config(prepared, tmp_path / "log", *declared)
    with prepared.connect() as connection, captured(config), job(config, spark) as running:
        work = Notifications(connection)
        for _ in range(3):
            work.work(10)
            caught_up(prepared, running)
            for name in (*OF_AGGREGATE, "ft_live"):
                assert differences(connection, name) == 0
        assert sum(part.rows for part in parts) > 0
        assert prepared.rows("SELECT * FROM penstock.staged") == []
        assert password not in shown_by_spark(spark)


def shown_by_spark(spark: SparkSession) -> str:
    """Settings, plans of all statements and progress, which its UI and its event log show."""
    progress = [one.json for query in spark.streams.active for one in query.recentProgress]
    store = spark._jsparkSession.sharedState().statusStore()
    executions = store.executionsList()
    plans = [
        f"{execution.description()} {execution.details()} {execution.physicalPlanDescription()}"
        for execution in (executions.apply(number) for number in range(executions.size()))
    ]
    assert progress
    assert any("penstock-staging" in plan.lower() for plan in plans)
    settings = spark.sparkContext.getConf().getAll()
    return json.dumps([progress, plans, settings, list(spark.conf.getAll.items())])


def test_batches_with_other_boundaries_than_before_are_applied_from_where_the_target_is(
    prepared: Database, tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:  # M5.3
    both = notify_config(prepared, tmp_path / "log", AGGREGATE, NORMAL)
    first = both.model_copy(update={"aggregate": both.aggregate[:1]})
    again = []
    read_again = Job._read_again

    def noted(self: Job, number: int, covered: Any) -> Any:
        again.append(number)
        return read_again(self, number, covered)

    with prepared.connect() as connection, captured(both):
        work = Notifications(connection)
        with job(both, spark) as running:
            work.work(5)
            caught_up(prepared, running)
        # The second stays behind.
        with job(first, spark) as running:
            work.work(5)
            now = prepared.wal_position()
            where = "SELECT applied_lsn::text FROM penstock.progress WHERE aggregate = %s"
            eventually(lambda: prepared.lsn(where, "notification_counts") >= now, "the first is on")
        work.work(5)
        monkeypatch.setattr(Job, "_read_again", noted)
        with job(both, spark) as running:
            caught_up(prepared, running)
            for name in (*OF_AGGREGATE, "ft_normal"):
                assert differences(connection, name) == 0
        assert again == [0], "the first has a part of what the second needs"


def test_a_checkpoint_that_is_gone_or_old_or_of_a_query_that_was_stopped_makes_no_difference(
    prepared: Database, tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:  # M5.3
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    config = notify_config(prepared, tmp_path / "log", LIVE)
    with prepared.connect() as connection, captured(config):
        work = Notifications(connection)
        with job(config, spark) as running:
            work.work(5)
            caught_up(prepared, running)
            (checkpoint,) = scratch.glob("penstock-*/checkpoint")
            # Not by the job. An earlier one may be listed for a moment longer than it runs.
            (query,) = (query for query in spark.streams.active if query.isActive)
            query.stop()
            assert isinstance(running.failed(), SparkFailed)
        assert not checkpoint.exists(), "nobody will ask what it says"
        work.work(5)
        with job(config, spark) as running:
            caught_up(prepared, running)
            assert differences(connection, "ft_live") == 0
            (checkpoint,) = scratch.glob("penstock-*/checkpoint")
            shutil.copytree(checkpoint, tmp_path / "old" / "checkpoint")
            checkpoint.rename(tmp_path / "gone")
            work.work(5)
        work.work(5)
        with job(config, spark) as running:
            caught_up(prepared, running)
            assert differences(connection, "ft_live") == 0
        # Should Spark go on from an old one all the same.
        monkeypatch.setattr(job_module, "scratch_folder", lambda: nullcontext(tmp_path / "old"))
        work.work(5)
        with job(config, spark) as running:
            caught_up(prepared, running)
            assert differences(connection, "ft_live") == 0
            # It did: it is the same query to Spark.
            (query,) = (query for query in spark.streams.active if query.isActive)
            old = json.loads((tmp_path / "old" / "checkpoint" / "metadata").read_text())
            assert query.id == old["id"]


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
    waits = (
        "SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE 'SELECT%'"
        " AND datname = current_database()"
    )
    with prepared.connect(autocommit=False) as other, captured(config):

        def locked(*arguments: Any) -> Any:
            # Not before: the snapshot would wait for it.
            other.execute("LOCK TABLE notifications")
            return true_sums(*arguments)

        monkeypatch.setattr(seeding, "true_sums", locked)
        with capture_logs() as said, job(config, spark) as running:
            eventually(lambda: prepared.rows(waits), "the seeding waits", within_s=60)
            # Spark's own first batch is not what is waited for.
            eventually(lambda: "following" in {each["event"] for each in said}, "it follows")
            began = time.monotonic()
            running.stop()
            assert time.monotonic() - began < 10
            assert running.error is None
        assert prepared.value("SELECT state FROM penstock.progress") == "seeding"


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
