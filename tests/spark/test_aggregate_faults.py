"""What aggregates depend on fails or is strange: they wait, go on by themselves, and stay exact."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from penstock.changelog.planning import Limit
from penstock.errors import QueryStopped, SourceUnavailable
from penstock.lsn import Lsn
from penstock.pipelines import job as job_module
from penstock.pipelines import staging
from penstock.pipelines.job import Job
from penstock.pipelines.spark_staging import stage
from penstock.postgres.embedded import EmbeddedPostgres
from penstock.postgres.installations import Version
from support.database import Database
from support.jobs import captured, caught_up, job
from support.notify import (
    AGGREGATE,
    LIVE,
    NORMAL,
    TARGETS,
    Notifications,
    differences,
    notify_config,
)
from support.proxy import Proxy
from support.waiting import eventually

OF_AGGREGATE = ("ft_all", "ft_service_stats", "ft_by_date")


@pytest.fixture
def other_server(_servers: Callable[[Version], EmbeddedPostgres]) -> Iterator[Database]:
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


# No text of PostgreSQL has such a character: these keys are parked.
ZERO = """
SELECT count(*) FILTER (WHERE notification_status <> 'created'),
       (SELECT sum((deltas->>'count')::int) FROM penstock.parked),
       count(*) FILTER (WHERE notification_status = 'created'), (SELECT sum(count) FROM ft_zero)
  FROM notifications
"""
WITH_ZERO: dict[str, Any] = {
    **LIVE,
    "name": "with_zero",
    "dimensions": {
        "service_id": "service_id",
        "status": "if(notification_status = 'created', 'created', concat('a', chr(0)))",
    },
    "targets": ["ft_zero"],
}


def test_large_results_go_from_executors_to_the_target_and_no_password_is_shown(
    prepared: Database, tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:  # M5.3, M5.4, M5.7
    # As if every batch and the rows to seed from were more than the driver takes.
    monkeypatch.setattr(job_module, "SHARE_BYTES", 0)
    monkeypatch.setattr(job_module, "MOST_IN_DRIVER", 3)
    monkeypatch.setattr(staging, "MOST_IN_DRIVER", 3)
    parts = []

    def counted(*arguments: Any) -> staging.Staged:
        parts.append(stage(*arguments))
        return parts[-1]

    monkeypatch.setattr(job_module, "stage", counted)
    password = prepared.server.password
    prepared.run(
        "CREATE TABLE ft_zero (service_id uuid, status text, count bigint NOT NULL DEFAULT 0,"
        " UNIQUE NULLS NOT DISTINCT (service_id, status))"
    )
    target = {"target_dsn": prepared.dsn(password=password)}
    declared = [{**each, **target} for each in (AGGREGATE, LIVE, WITH_ZERO)]
    config = notify_config(prepared, tmp_path / "log", *declared)
    with prepared.connect() as connection, captured(config), job(config, spark) as running:
        work = Notifications(connection)
        for _ in range(3):
            work.work(10)
            caught_up(prepared, running)
            for name in (*OF_AGGREGATE, "ft_live"):
                assert differences(connection, name) == 0
        ((under_way, parked, created, shown),) = prepared.rows(ZERO)
        assert (under_way, created) == (parked, shown)
        assert min(parked, shown) > 0
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


@pytest.mark.parametrize("most_in_driver", [staging.MOST_IN_DRIVER, 3], ids=["small", "staged"])
def test_batches_with_other_boundaries_than_before_are_applied_from_where_the_target_is(
    prepared: Database,
    tmp_path: Path,
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
    most_in_driver: int,
) -> None:  # M5.3
    monkeypatch.setattr(job_module, "MOST_IN_DRIVER", most_in_driver)
    monkeypatch.setattr(staging, "MOST_IN_DRIVER", most_in_driver)
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
            assert isinstance(running.failed(), QueryStopped)
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
