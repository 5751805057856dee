"""Declared aggregates on real Spark: equal to GROUP BY, whatever happens in between."""

from __future__ import annotations

import subprocess
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from structlog.testing import capture_logs

from penstock.capture import pump
from penstock.changelog.maintenance import Pruned, prune
from penstock.changelog.planning import SHARE_BYTES
from penstock.changelog.reader import LogReader
from penstock.changelog.runs import BatchRange
from penstock.config import Config
from penstock.errors import (
    ComputationFailed,
    ConfigInvalidValue,
    NotSeeded,
    PipelineFenced,
    ProgressGap,
)
from penstock.lsn import Lsn
from penstock.pipelines import grouped_by_spark, writing
from penstock.pipelines import job as job_module
from penstock.pipelines.grouping import covered_by
from penstock.pipelines.job import Job
from penstock.pipelines.seeding import seed
from penstock.pipelines.verifying import verify
from penstock.postgres import pages
from support.commands import penstock
from support.database import Database
from support.jobs import captured, caught_up, job
from support.notify import (
    AGGREGATE,
    PLAIN,
    Notifications,
    differences,
    notify_config,
    notify_settings,
)
from support.toml import write_toml
from support.waiting import eventually

TARGETS = ("ft_all", "ft_service_stats", "ft_by_date")


def test_one_pass_serves_three_targets_and_equals_group_by_through_seeding_and_restarts(
    prepared: Database, tmp_path: Path, spark: SparkSession
) -> None:  # M5.2, M5.3, M5.5, M5.6
    config = notify_config(prepared, tmp_path / "log", AGGREGATE)
    with prepared.connect() as connection, captured(config):
        work = Notifications(connection)
        work.work(30)
        for _ in range(2):
            with job(config, spark) as running:
                # It is seeded under load.
                work.work(30)
                caught_up(prepared, running)
                keys = running.job._followed[0].bound.summed.keys
                assert [each.name for each in keys if each.by_minute] == ["created_at"]
                for target in TARGETS:
                    assert differences(connection, target) == 0
            # Nobody follows; at the next start it goes on where it was.
            work.work(10)
        with job(config, spark) as running:
            caught_up(prepared, running)
            audited = verify(config, config.aggregate[0], lambda: spark)
            assert audited.differences == ()
            assert audited.keys > 0
        assert prepared.value("SELECT min(count) FROM ft_all") >= 0
        assert prepared.value("SELECT count(*) FROM penstock.parked") == 0


@pytest.mark.parametrize("worth_it", [0.0, 1.0], ids=["as they are", "added up first"])
def test_rows_are_seeded_in_pieces_whether_they_are_added_up_before_spark_gets_them_or_not(
    prepared: Database,
    tmp_path: Path,
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
    worth_it: float,
) -> None:  # M5.5
    monkeypatch.setattr(grouped_by_spark, "_WORTH_IT", worth_it)
    monkeypatch.setattr(pages, "_PAGES_AT_ONCE", 5)
    monkeypatch.setattr(grouped_by_spark, "_ROWS_AT_ONCE", 300)
    monkeypatch.setattr(grouped_by_spark, "_WORTH_A_JOB", 1)
    config = notify_config(prepared, tmp_path / "log", AGGREGATE)
    read: list[int] = []
    with prepared.connect() as connection, captured(config):
        work = Notifications(connection)
        work.insert(1_000)
        work.work(30)
        seed(config, config.aggregate[0], lambda: spark, on_rows=read.append)
        for target in TARGETS:
            assert differences(connection, target) == 0
        assert prepared.rows("SELECT skipped FROM penstock.progress") == [({},)]
        # Of some pieces there are rows that Spark cannot hold. M4.5, M4.6
        prepared.run(
            "UPDATE notifications SET price = 'NaN' WHERE id IN"
            " (SELECT id FROM notifications ORDER BY id LIMIT 70)"
        )
        seed(config, config.aggregate[0], lambda: spark)
        assert prepared.rows("SELECT skipped FROM penstock.progress") == [
            ({"public.notifications: a price that Spark cannot hold": 70},)
        ]
        assert prepared.value("SELECT sum(count) FROM ft_all") == prepared.value(
            "SELECT count(*) FROM (TABLE notifications UNION ALL TABLE notification_history) AS n"
            " WHERE price IS DISTINCT FROM 'NaN'"
        )
        assert verify(config, config.aggregate[0], lambda: spark).differences == ()
        rows = prepared.value(
            "SELECT (SELECT count(*) FROM notifications)"
            " + (SELECT count(*) FROM notification_history)"
        )
    assert len(read) > 2
    assert read == sorted(read)
    assert read[-1] == rows


def test_positions_follow_the_log_although_the_tables_rest(
    prepared: Database, tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:  # M3.8, M7.1
    config = notify_config(prepared, tmp_path / "log", PLAIN)
    prepared.run("CREATE TABLE unpublished (id int)")
    with captured(config) as capture:

        def write(self: Job, result: Any) -> None:
            capture.said.append({"event": "batch"})
            as_it_is(self, result)

        as_it_is = Job._write
        monkeypatch.setattr(Job, "_write", write)
        with job(config, spark) as running:
            caught_up(prepared, running)
            prepared.run("INSERT INTO unpublished SELECT generate_series(1, 1000)")
            caught_up(prepared, running)
            assert prepared.value("SELECT changes FROM penstock.progress") == 0
            # It is quiet where nothing happens, but for the end of the log now and then.
            before = len(capture.said)
            time.sleep(2)
            assert sum(each["event"] == "batch" for each in capture.said[before:]) <= 1
        # Not before: what Spark starts for the first one takes it many seconds.
        told = [each for each in capture.said if each["event"] == "batch" or "log" in each]
        assert [each["event"] for each in told][:2] == ["batch", "following"]
    # Nothing comes any more, and one that is seeded begins where the log ends.
    prepared.run("UPDATE penstock.progress SET state = 'seeding'")
    with capture_logs() as said, job(config, spark):
        eventually(
            lambda: {"following", "seeded"} <= {each["event"] for each in said}, "it follows"
        )


def test_what_commits_after_spark_has_planned_a_batch_is_in_it_and_in_no_other(
    prepared: Database, tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:  # M5.3
    config = notify_config(prepared, tmp_path / "log", AGGREGATE)
    # What is applied is gone from the log before the next batch is planned.
    config = config.model_copy(
        update={"log": config.log.model_copy(update={"segment_mib": 0.001, "min_age_h": 0.0})}
    )
    monkeypatch.setattr(pump, "_PRUNE_INTERVAL_S", 0.0)
    monkeypatch.setattr(writing, "_REGISTER_EVERY_S", 0.0)
    pruned: list[Pruned] = []

    def looked(*given: Any) -> Pruned:
        pruned.append(prune(*given))
        return pruned[-1]

    monkeypatch.setattr(pump, "prune", looked)
    late: list[Lsn] = []
    ranges: list[BatchRange] = []
    with prepared.connect() as connection, captured(config):
        work = Notifications(connection)
        as_it_is, write = Job._apply, Job._write

        def apply(self: Job, frame: Any, number: int) -> None:
            if len(late) < 6:
                work.work(2)
                late.append(prepared.wal_position())
                log = LogReader(config.log.path)
                assert log.wait(Lsn(late[-1] - 1), timeout_s=15)
            # Every third is a large one, of which the rows may be computed several times.
            monkeypatch.setattr(job_module, "SHARE_BYTES", 0 if number % 3 == 2 else SHARE_BYTES)
            as_it_is(self, frame, number)

        def noted(self: Job, result: Any) -> None:
            ranges.append(covered_by(result.here))
            write(self, result)
            for writer in self._writers:
                writer.register(self._planned)
            looks = len(pruned)
            eventually(lambda: len(pruned) > looks + 1, "retention has looked")

        def never(*_arguments: Any) -> None:
            pytest.fail("a batch begins where the one before it ended")

        # It is there, and needs nothing of the log but batches.
        with job(config, spark) as running:
            caught_up(prepared, running)
        monkeypatch.setattr(Job, "_apply", apply)
        monkeypatch.setattr(Job, "_write", noted)
        monkeypatch.setattr(Job, "_read_again", never)
        with job(config, spark) as running:
            eventually(lambda: len(late) == 6 or not running.running, "six batches", within_s=60)
            caught_up(prepared, running)
            for target in TARGETS:
                assert differences(connection, target) == 0
    assert all(before.up_to == after.after for before, after in pairwise(ranges))
    for number, lsn in enumerate(late):
        is_in_it = ranges[number].up_to >= lsn
        assert is_in_it == (number % 3 != 2), f"batch {number}"
        assert ranges[number].planned < lsn
    # How many there are depends on what capture found at one go.
    assert any(each.segments for each in pruned)


def test_an_aggregate_is_added_and_another_reset_while_the_others_run_on(
    prepared: Database, tmp_path: Path, spark: SparkSession
) -> None:  # M5.5
    settings = notify_settings(
        prepared.dsn(),
        tmp_path / "log",
        {**AGGREGATE, "targets": ["ft_all", {"table": "ft_by_date", "dimensions": ["bst_date"]}]},
        {**PLAIN, "sources": ["notifications", "notification_history"]},
    )
    both = Config.model_validate(settings)
    file = write_toml(tmp_path / "penstock.toml", settings)
    first = both.model_copy(update={"aggregate": both.aggregate[:1]})
    with prepared.connect() as connection, captured(both):
        work = Notifications(connection)
        work.work(20)
        with job(first, spark) as running:
            caught_up(prepared, running)
        # Capture runs on; the job is started again with what its file declares now.
        with job(both, spark) as running:
            work.work(10)
            caught_up(prepared, running)
            prepared.run("UPDATE ft_service_stats SET count = count + 7")
            reset = penstock("reset", "service_stats", "--config", str(file))
            assert reset.returncode == 0, reset.stderr
            work.work(10)
            caught_up(prepared, running)
            for target in TARGETS:
                assert differences(connection, target) == 0


def test_a_target_that_was_restored_from_an_older_dump_is_noticed(
    prepared: Database, tmp_path: Path, spark: SparkSession
) -> None:  # M5.3
    config = notify_config(prepared, tmp_path / "log", AGGREGATE)
    with prepared.connect() as connection, captured(config):
        work = Notifications(connection)
        work.work(5)
        with job(config, spark) as running:
            caught_up(prepared, running)
            dump = dumped(prepared, tmp_path)
            work.work(5)
            caught_up(prepared, running)
            restore(prepared, dump)
            work.work(1)
            assert isinstance(running.failed(), ProgressGap)
        # From where the target is, everything comes again, once.
        with job(config, spark) as running:
            caught_up(prepared, running)
            for target in TARGETS:
                assert differences(connection, target) == 0
        # One from before this job, which is told apart by more than the position.
        with job(config, spark) as running:
            caught_up(prepared, running)
            restore(prepared, dump)
            work.work(1)
            with pytest.raises(ProgressGap, match="older than this job"):
                raise running.failed()


def dumped(database: Database, folder: Path) -> Path:
    """What a target's database has of aggregates."""
    file = folder / "target.dump"
    tables = [word for name in TARGETS for word in ("--table", name)]
    command = [*database.server.program("pg_dump"), "-Fc", "--table", "penstock.*", *tables]
    subprocess.run([*command, "-f", str(file), database.dsn()], check=True)
    return file


def restore(database: Database, dump: Path) -> None:
    command = [*database.server.program("pg_restore"), "--clean", "--single-transaction"]
    subprocess.run([*command, "-d", database.dsn(), str(dump)], check=True)


def test_a_second_job_is_refused_and_one_that_was_replaced_stops(
    prepared: Database, tmp_path: Path, spark: SparkSession
) -> None:  # M5.3
    config = notify_config(prepared, tmp_path / "log", PLAIN)
    with captured(config), job(config, spark) as running:
        caught_up(prepared, running)
        second = Job(config, spark)
        with pytest.raises(PipelineFenced, match="another job works on aggregate service_stats"):
            second.run()
        # As if a partition of the network had let another one take over.
        prepared.run("UPDATE penstock.progress SET epoch = epoch + 1")
        prepared.run(
            "INSERT INTO notifications SELECT gen_random_uuid(), gen_random_uuid(),"
            " gen_random_uuid(), NULL, 'sms', 'normal', 'created', now(), 1"
        )
        assert isinstance(running.failed(), PipelineFenced)


def test_a_key_that_the_target_refuses_waits_while_the_rest_goes_on(
    prepared: Database, tmp_path: Path, spark: SparkSession
) -> None:  # M5.4
    prepared.run(
        "CREATE TABLE services (id uuid PRIMARY KEY)",
        "INSERT INTO services SELECT md5('s' || n)::uuid FROM generate_series(0, 3) AS n"
        " WHERE n <> 2",
        "ALTER TABLE ft_service_stats ADD FOREIGN KEY (service_id) REFERENCES services",
    )
    config = notify_config(
        prepared, tmp_path / "log", {**PLAIN, "sources": ["notifications", "notification_history"]}
    )
    with (
        prepared.connect() as connection,
        captured(config) as capture,
        job(config, spark) as running,
    ):
        Notifications(connection).work(20)
        caught_up(prepared, running)
        parked = prepared.rows("SELECT key ->> 'service_id', reason FROM penstock.parked")
        missing = prepared.value("SELECT md5('s2')::uuid::text")
        assert {service for service, _ in parked} == {missing}
        assert {reason for _, reason in parked} == {
            "ForeignKeyViolation: ft_service_stats_service_id_fkey"
        }
        assert verify(config, config.aggregate[0], lambda: spark).differences == ()
        # Although nothing comes any more.
        capture.stop()
        end = str(LogReader(tmp_path / "log").end().lsn)
        eventually(
            lambda: prepared.value("SELECT applied_lsn = %s FROM penstock.progress", end),
            "all of the log is applied",
        )
        prepared.run("INSERT INTO services VALUES (md5('s2')::uuid)")
        eventually(
            lambda: prepared.value("SELECT count(*) FROM penstock.parked") == 0,
            "the parked keys are shown",
            within_s=90,
        )
        assert differences(connection, "ft_service_stats") == 0


@pytest.mark.parametrize(
    ("expression", "told"),
    [
        (
            "cast(cast(key_type as int) as string)",
            (
                "for dimension key_type of aggregate {} failed: CAST_INVALID_INPUT in "
                "cast(key_type as int)"
            ),
        ),
        (
            "cast(concat(unhex('ff'), cast(key_type as binary)) as string)",
            "dimension key_type of aggregate {} gives a text that is not UTF-8",
        ),
    ],
    ids=["fails", "is no text"],
)
def test_an_expression_that_cannot_be_computed_is_named_without_the_value(
    prepared: Database, tmp_path: Path, spark: SparkSession, expression: str, told: str
) -> None:  # M7.3
    dimensions = {**AGGREGATE["dimensions"], "key_type": expression}
    config = notify_config(
        prepared, tmp_path / "log", AGGREGATE | {"dimensions": dimensions, "seed": False}
    )
    with prepared.connect() as connection, captured(config):
        with job(config, spark) as running:
            eventually(lambda: prepared.rows("SELECT FROM penstock.progress"), "it has begun")
            Notifications(connection).insert(3)
            error = running.failed()
        (seeded,) = notify_config(
            prepared, tmp_path / "log", AGGREGATE | {"dimensions": dimensions}
        ).aggregate
        with pytest.raises(ComputationFailed) as raised:
            seed(config, seeded, lambda: spark)
    for each in (error, raised.value):
        assert isinstance(each, ComputationFailed)
        assert told.format(seeded.name) in str(each)
        assert "normal" not in str(each)


def test_another_declaration_needs_a_reset(
    prepared: Database, tmp_path: Path, spark: SparkSession
) -> None:  # M5.3
    config = notify_config(prepared, tmp_path / "log", PLAIN)
    with captured(config):
        with job(config, spark) as running:
            caught_up(prepared, running)
        changed = notify_config(prepared, tmp_path / "log", {**PLAIN, "filter": "key_type = 'x'"})
        with pytest.raises(NotSeeded, match="penstock reset service_stats"):
            Job(changed, spark).run()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"dimensions": {"service_id": "no_such_function(service_id)"}}, "dimension service_id"),
        ({"dimensions": {"service_id": "split(service_id, '-')"}}, "no single value"),
        ({"filter": "service_id"}, "not true or false. Write a condition"),
        ({"dimensions": {"service_id": "try_sum(price)"}}, "about several rows"),
        ({"filter": "coalesce(try_sum(price), 1) > 1"}, "about several rows"),
        ({"dimensions": {"service_id": "explode(split(service_id, '-'))"}}, "dimension service_id"),
        ({"filter": "created_at > 'now'"}, "another value each time"),
        (
            {"dimensions": {"service_id": "date_trunc('minuit', created_at)"}},
            "service_id of aggregate .* a unit that Spark does not know there: minuit",
        ),
        (
            {"dimensions": {"service_id": "trunc(created_at, 'hour')"}},
            "a unit that Spark does not know there: hour",
        ),
        (
            {"dimensions": {"service_id": "from_utc_timestamp(created_at, 'Europe/Londn')"}},
            "service_id of aggregate .* a time zone that Spark does not know: Europe/Londn",
        ),
        (
            {"filter": "to_date(convert_timezone('utC', 'UTC', date '2026-01-01')) > '2026-01-01'"},
            "filter of aggregate .* does not know: utC",
        ),
        ({"filter": "created_at > to_date('today')"}, "another value each time"),
        (
            {"dimensions": {"service_id": "try_reflect('java.util.UUID', 'randomUUID')"}},
            "another value each time",
        ),
        ({"dimensions": {"service_id": "created_at - date '2026-01-01'"}}, "no single value"),
        ({"dimensions": {"service_id": "service_id collate UTF8_LCASE"}}, "no single value"),
    ],
)
def test_spark_refuses_expressions_before_any_data(
    prepared: Database, tmp_path: Path, spark: SparkSession, changes: dict[str, Any], said: str
) -> None:  # M5.2
    declared = {**PLAIN, **changes, "targets": [{"table": "ft_service_stats"}]}
    config = notify_config(prepared, tmp_path / "log", declared)
    with captured(config), pytest.raises(ConfigInvalidValue, match=said):
        Job(config, spark).run()
