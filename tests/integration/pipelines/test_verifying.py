"""What should be, beside what a target shows and what is parked for it."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from pydantic import SecretStr

from penstock.changelog.consumers import consumers, register
from penstock.changelog.reader import LogReader
from penstock.config import Config
from penstock.decode.classify import RULE_OFF
from penstock.errors import (
    LogRetired,
    NotSeeded,
    TableRewritten,
    TargetUnavailable,
    VerifyTimeout,
    WrongServer,
)
from penstock.lsn import Lsn
from penstock.names import TableName
from penstock.pipelines import log_awaited, staging, verifying
from penstock.pipelines import source_snapshot as source_snapshot_module
from penstock.pipelines.applying import Aggregate, apply
from penstock.pipelines.binding import bind, types_of
from penstock.pipelines.bookkeeping import read_progress
from penstock.pipelines.deciding import Covered
from penstock.pipelines.differences import Difference
from penstock.pipelines.log_awaited import wait_for_log
from penstock.pipelines.log_deltas import log_deltas
from penstock.pipelines.repairing import repair
from penstock.pipelines.seeding import seed
from penstock.pipelines.target_tables import read_targets
from penstock.pipelines.truth import true_sums
from penstock.pipelines.verifying import Verified, verify
from penstock.postgres.snapshots import keep_as_they_were
from penstock.postgres.tables import read_tables
from support.capturing import capture_config, capturing
from support.database import Database
from support.locks import held_up
from support.ops import on_18
from support.targets import declared, with_tables
from support.truth import complete, no_spark
from support.waiting import eventually
from support.workload import PUBLICATION, SLOT

COUNTS = declared(measures={"count": "count", "cost": "sum(price)"})


@pytest.fixture
def stopped(database: Database, tmp_path: Path) -> Config:
    """Everything is there, and capture does not run."""
    database.run(
        "CREATE TABLE notifications (id int PRIMARY KEY, service text, status text,"
        " price numeric(10,2))",
        "INSERT INTO notifications VALUES (1, 's', '1', 1.5), (2, 's', '1', 2), (3, NULL, '2', 0)",
        "ALTER TABLE notifications REPLICA IDENTITY FULL",
        f"CREATE PUBLICATION {PUBLICATION} FOR TABLE notifications",
    )
    with_tables(
        database,
        "CREATE TABLE stats (service text, status int, count bigint NOT NULL DEFAULT 0,"
        " cost numeric NOT NULL DEFAULT 0)",
    )
    database.create_slot(SLOT)
    return capture_config(database.dsn(), tmp_path, tables=["notifications"])


@pytest.fixture
def config(stopped: Config) -> Iterator[Config]:
    """While capture runs."""
    with capturing(stopped) as running:
        running.connected()
        yield stopped


def verified(config: Config, **options: Any) -> Verified:
    return verify(config, COUNTS, no_spark, **options)


@pytest.fixture(params=[False, True], ids=["small", "large"])
def either_way(
    request: pytest.FixtureRequest, database: Database, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """Few combinations are compared as parameters, many are staged."""
    if request.param:
        monkeypatch.setattr(staging, "MOST_IN_DRIVER", 1)
    yield
    assert database.value("SELECT count(*) FROM penstock.staged") == 0


@pytest.mark.usefixtures("either_way")
def test_what_was_just_seeded_is_right_also_when_the_source_has_moved_on(
    database: Database, config: Config
) -> None:  # M5.6
    seed(config, COUNTS, no_spark)
    database.run(
        "INSERT INTO notifications VALUES (4, 's', '1', 9)",
        "DELETE FROM notifications WHERE id = 3",
    )
    done = verified(config)
    assert (done.differences, done.keys, done.parked) == ((), 2, 0)


@pytest.mark.usefixtures("either_way")
def test_it_is_right_under_load_while_the_target_is_ahead_of_the_snapshot(
    database: Database, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:  # M5.6
    """The truth is of a moment before: what the log has since is added to it."""
    seed(config, COUNTS, no_spark)

    def then_more_is_applied(*arguments: Any) -> Any:
        found = true_sums(*arguments)
        database.run(
            "INSERT INTO notifications VALUES (4, 's', '1', 9)",
            "DELETE FROM notifications WHERE id = 3",
        )
        monkeypatch.setattr(verifying, "true_sums", true_sums)
        seed(config, COUNTS, no_spark)
        return found

    monkeypatch.setattr(verifying, "true_sums", then_more_is_applied)
    assert verified(config).differences == ()
    assert database.rows("SELECT service, count FROM stats") == [("s", 3)]


def test_without_capture_it_is_told_before_the_source_is_read(
    stopped: Config, monkeypatch: pytest.MonkeyPatch
) -> None:  # M5.6, M7.3
    with capturing(stopped) as running:
        running.connected()
        seed(stopped, COUNTS, no_spark)
    monkeypatch.setattr(log_awaited, "_RECONNECT_S", 0.3)
    monkeypatch.setattr(log_awaited, "_QUIET_S", 0.1)
    monkeypatch.setattr(verifying, "true_sums", None)
    told: list[str] = []
    with pytest.raises(VerifyTimeout, match="capture does not run") as caught:
        verified(stopped, on_wait=told.append)
    assert caught.value.remedy.startswith("Start it: penstock run")
    assert told == [f'capture to read slot "{SLOT}"']


@on_18
@pytest.mark.parametrize(
    ("left", "said"),
    [
        ("DELETE FROM penstock.progress", "is not seeded yet"),
        ("UPDATE penstock.progress SET state = 'seeding'", "is not seeded yet"),
        ("UPDATE penstock.progress SET fingerprint = 'x'", "was seeded for another"),
    ],
)
def test_what_is_not_seeded_is_told_before_the_source_is_read(
    database: Database, config: Config, monkeypatch: pytest.MonkeyPatch, left: str, said: str
) -> None:  # M5.6, M7.3
    seed(config, COUNTS, no_spark)
    database.run(left)
    monkeypatch.setattr(verifying, "source_snapshot", None)
    with pytest.raises(NotSeeded, match=f"aggregate counts {said}") as caught:
        verified(config)
    assert "penstock reset counts" in caught.value.remedy


@contextmanager
def walsender_held_up(database: Database) -> Iterator[Callable[[], None]]:
    """It sends nothing until the function is called, or the block ends."""
    pid = database.value("SELECT active_pid FROM pg_replication_slots WHERE slot_name = %s", SLOT)

    def go_on() -> None:
        os.kill(pid, signal.SIGCONT)

    os.kill(pid, signal.SIGSTOP)
    try:
        yield go_on
    finally:
        go_on()


def test_a_capture_that_is_behind_is_waited_for_and_that_is_told(
    database: Database, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:  # M5.6
    seed(config, COUNTS, no_spark)
    monkeypatch.setattr(log_awaited, "_QUIET_S", 0.1)
    told: list[str] = []

    with walsender_held_up(database) as go_on:

        def on_wait(what: str) -> None:
            told.append(what)
            go_on()

        assert verified(config, on_wait=on_wait).differences == ()
    (waited_for,) = told
    assert waited_for.startswith("capture, whose log has to reach ")


@on_18
def test_a_capture_that_is_at_a_large_transaction_is_waited_for_however_long_it_takes(
    database: Database, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:  # M5.6, M7.3
    """The slot is read, and the log stays where it is."""
    seed(config, COUNTS, no_spark)
    monkeypatch.setattr(log_awaited, "_CATCH_UP_S", 0.5)
    monkeypatch.setattr(log_awaited, "_LOOK_AT_SLOT_S", 0.1)
    monkeypatch.setattr(log_awaited, "_QUIET_S", 0.1)
    monkeypatch.setattr(log_awaited, "_TELL_EVERY_S", 1.5)
    told: list[str] = []

    with walsender_held_up(database) as go_on:

        def on_wait(what: str) -> None:
            told.append(what)
            if len(told) == 2:
                go_on()

        assert verified(config, on_wait=on_wait).differences == ()
    assert len(told) == 2


@on_18
def test_one_that_has_ended_meanwhile_is_not(
    stopped: Config, monkeypatch: pytest.MonkeyPatch
) -> None:  # M5.6, M7.3
    monkeypatch.setattr(log_awaited, "_CATCH_UP_S", 0.5)
    monkeypatch.setattr(log_awaited, "_LOOK_AT_SLOT_S", 0.1)
    with capturing(stopped) as running:
        running.connected()
        seed(stopped, COUNTS, no_spark)
    log = LogReader(stopped.log.path)
    with pytest.raises(VerifyTimeout, match=r"for 0\.5 s nobody has read slot") as caught:
        wait_for_log(stopped.source, log, Lsn(log.end().lsn + 1), Mock())
    assert caught.value.remedy.startswith("Start it: penstock run")


@on_18
def test_one_that_writes_to_another_log_is_not(
    database: Database, config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # M5.6, M7.3: the slot is read, and this log never moves
    monkeypatch.setattr(log_awaited, "_CATCH_UP_S", 0.5)
    monkeypatch.setattr(log_awaited, "_LOOK_AT_SLOT_S", 0.1)
    copied = tmp_path / "copied"
    shutil.copytree(config.log.path, copied)
    database.run("INSERT INTO notifications VALUES (900, 's', 'a', 1)")
    now = database.wal_position()
    eventually(lambda: database.confirmed(SLOT) >= now, "capture has it")
    with pytest.raises(VerifyTimeout) as caught:
        wait_for_log(config.source, LogReader(copied), now, Mock())
    assert "correct path in [log]" in caught.value.remedy


def test_the_log_keeps_what_is_needed_until_it_is_verified(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:  # M5.6
    seed(config, COUNTS, no_spark)
    log = LogReader(config.log.path)
    # The target may be behind.
    applied = Lsn(log.end().lsn - 1)
    register(log.storage, "aggregate-counts", str(log.identity.log_id), applied)
    held: list[Lsn] = []

    def looked(*arguments: Any) -> Any:
        ours = (each for each in consumers(log.storage) if each.name.startswith("verify-"))
        held.extend(each.applied_lsn for each in ours)
        return true_sums(*arguments)

    monkeypatch.setattr(verifying, "true_sums", looked)
    verified(config)
    assert held == [applied]
    assert not any(each.name.startswith("verify-") for each in consumers(log.storage))


@on_18
def test_what_the_log_has_dropped_meanwhile_is_told_with_what_helps(
    database: Database, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:  # M5.6, M7.3
    seed(config, COUNTS, no_spark)
    database.run("INSERT INTO notifications VALUES (4, 's', '1', 9)")

    def gone(*_: Any) -> None:
        raise LogRetired("the log no longer goes back so far", remedy="Seed the target again")

    monkeypatch.setattr(verifying, "log_deltas", gone)
    with pytest.raises(LogRetired, match="the audit of aggregate counts needs") as raised:
        verified(config)
    assert raised.value.remedy.startswith("Run it again")


@on_18
def test_a_table_that_is_rewritten_meanwhile_is_not_taken_for_empty(
    database: Database, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:  # M5.5, M5.6
    seed(config, COUNTS, no_spark)
    before = database.rows("SELECT * FROM stats")

    def too_late(*arguments: Any) -> None:
        database.run("ALTER TABLE notifications ALTER id TYPE bigint")
        monkeypatch.setattr(source_snapshot_module, "keep_as_they_were", keep_as_they_were)
        keep_as_they_were(*arguments)

    for audit in (lambda: verified(config, repair=True), lambda: seed(config, COUNTS, no_spark)):
        monkeypatch.setattr(source_snapshot_module, "keep_as_they_were", too_late)
        with pytest.raises(TableRewritten):
            audit()
        assert database.rows("SELECT * FROM stats") == before
        assert audit() is not None
        database.run("ALTER TABLE notifications ALTER id TYPE int")
    assert verified(config).differences == ()


@on_18
def test_rows_of_another_server_are_not_compared_with_the_log(
    database: Database, config: Config
) -> None:  # M3.9, M5.6
    seed(config, COUNTS, no_spark)
    with Database(database.server, "another") as other:
        other.run("CREATE TABLE notifications (LIKE pg_class)")
        there = config.model_copy(
            update={"source": config.source.model_copy(update={"dsn": SecretStr(other.dsn())})}
        )
        here = COUNTS.model_copy(update={"target_dsn": SecretStr(database.dsn())})
        with pytest.raises(WrongServer):
            verify(there, here, no_spark, repair=True)


def test_two_repairs_at_once_add_a_difference_once(
    database: Database, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:  # M5.6
    seed(config, COUNTS, no_spark)
    database.run("UPDATE stats SET count = 1 WHERE service = 's'")
    waiting = (
        "SELECT pid FROM pg_stat_activity WHERE wait_event = 'advisory'"
        " AND datname = current_database()"
    )
    with ThreadPoolExecutor(1) as pool:
        others: list[Future[Verified]] = []

        def while_another_waits(*arguments: Any) -> None:
            monkeypatch.setattr(verifying, "add_missing", repair)
            others.append(pool.submit(lambda: verified(config, repair=True)))
            eventually(lambda: database.rows(waiting), "the other waits")
            repair(*arguments)

        monkeypatch.setattr(verifying, "add_missing", while_another_waits)
        assert len(verified(config, repair=True).differences) == 1
        assert others[0].result(20).differences == ()
    assert verified(config).differences == ()


@on_18
def test_a_repair_waits_for_a_batch_also_where_transactions_are_isolated_by_default(
    database: Database, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:  # M5.6
    seed(config, COUNTS, no_spark)
    database.run("UPDATE stats SET count = 1 WHERE service = 's'")
    database.isolate()

    def while_a_batch_is_applied(*arguments: Any) -> None:
        with held_up(database, "UPDATE penstock.progress SET changes = changes + 1") as run:
            repairing = run(lambda: repair(*arguments))
        repairing.result(15)

    monkeypatch.setattr(verifying, "add_missing", while_a_batch_is_applied)
    assert verified(config, repair=True).repaired
    assert verified(config).differences == ()


def test_a_target_that_was_never_set_up_is_one_of_our_errors(
    database: Database, config: Config
) -> None:  # M7.3
    database.run("DROP SCHEMA penstock CASCADE")
    with pytest.raises(TargetUnavailable, match="counts cannot be used: UndefinedTable"):
        verified(config)


@pytest.mark.usefixtures("either_way")
def test_differences_are_found_and_repaired(database: Database, config: Config) -> None:  # M5.6
    seed(config, COUNTS, no_spark)
    database.run(
        "UPDATE stats SET count = 5, cost = 1 WHERE service = 's'",
        "DELETE FROM stats WHERE service IS NULL",
        "INSERT INTO stats VALUES ('x', 7, 3, 0)",
    )
    done = verified(config, repair=True)
    found = {(each.key["service"], each.measure): each for each in done.differences}
    assert found.keys() == {("s", "count"), ("s", "cost"), (None, "count"), ("x", "count")}
    assert found["s", "cost"] == Difference(
        "public.stats", {"service": "s", "status": "1"}, "cost", Decimal("3.50"), Decimal(1)
    )
    assert verified(config).differences == ()


@pytest.mark.usefixtures("either_way")
def test_a_key_that_the_target_cannot_hold_is_compared_with_what_is_parked(
    database: Database, config: Config
) -> None:  # M5.4, M5.6
    database.run("INSERT INTO notifications VALUES (5, 's', 'not a number', 1)")
    seed(config, COUNTS, no_spark)
    done = verified(config)
    assert (done.differences, done.parked) == ((), 1)
    database.run("DELETE FROM penstock.parked")
    done = verified(config, repair=True)
    assert (done.repaired, done.parked) == (True, 1)
    (count, cost) = done.differences
    assert (count.key, count.measure, count.expected, count.found) == (
        {"service": "s", "status": "not a number"},
        "count",
        Decimal(1),
        Decimal(0),
    )
    assert (cost.measure, cost.expected) == ("cost", Decimal(1))
    assert verified(config).differences == ()


@on_18
def test_differences_are_the_same_however_many_are_compared_at_once(
    database: Database, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:  # M5.6
    database.run(
        "INSERT INTO notifications SELECT n,"
        " CASE WHEN n % 5 > 0 THEN 'so \"quoted\", \\ ' || n % 7 END,"
        " CASE n % 6 WHEN 0 THEN 'no number ' || n WHEN 1 THEN '0' || n ELSE n::text END, n / 3"
        " FROM generate_series(10, 60) AS n"
    )
    seed(config, COUNTS, no_spark)
    database.run(
        "UPDATE stats SET count = count + 1 WHERE status % 4 = 0",
        "DELETE FROM stats WHERE service IS NULL",
        "DELETE FROM penstock.parked WHERE key->>'service' IS NULL",
        "UPDATE penstock.parked SET deltas = '{\"count\": \"9\"}' WHERE key->>'status' LIKE '%2'",
        "INSERT INTO stats VALUES ('x', 7, 3, 0)",
    )
    found = []
    for most in (1, 7, 100_000):
        monkeypatch.setattr(staging, "MOST_IN_DRIVER", most)
        found.append(verified(config))
    assert len(found[0].differences) > 20
    assert found[0].differences == found[1].differences == found[2].differences


def test_what_is_seeded_or_repaired_is_parked_as_the_log_has_it(
    database: Database, config: Config
) -> None:  # M5.4, M5.5, M5.6
    """A later session reads it, with other settings perhaps."""
    database.run(
        f"ALTER DATABASE \"{database.name}\" SET datestyle = 'SQL, MDY'",
        "UPDATE notifications SET status = '2026-03-04'",
        "ALTER TABLE stats ALTER status TYPE date USING NULL, ALTER service SET NOT NULL",
    )
    parked = [({"service": None, "status": "2026-03-04"},)]
    seed(config, COUNTS, no_spark)
    assert database.rows("SELECT key FROM penstock.parked") == parked
    database.run("DELETE FROM penstock.parked")
    assert verified(config, repair=True).repaired
    assert database.rows("SELECT key FROM penstock.parked") == parked


def test_what_was_reset_since_the_audit_is_not_repaired(
    database: Database, config: Config
) -> None:  # M5.6
    seed(config, COUNTS, no_spark)
    with database.connect() as connection:
        audited = read_progress(connection, "counts")
        assert audited is not None
        seed(config, COUNTS, no_spark)
        tables = read_targets(connection, COUNTS)
        key: dict[str, str | None] = {"service": "s", "status": "1"}
        wrong = Difference("public.stats", key, "count", Decimal(2), Decimal(1))
        with pytest.raises(NotSeeded, match="was reset meanwhile"):
            repair(connection, COUNTS, tables, [wrong], audited, {})
    assert verified(config).differences == ()


NOT_IN_WAL = "update of public.notifications: the old {} is not in the WAL"
NO_NUMBER = "public.notifications: a price that Spark cannot hold"
# Of which the status, or the price, cannot be subtracted.
KEY_ONLY = "ALTER TABLE notifications REPLICA IDENTITY DEFAULT"
SKIPPED = "SELECT skipped FROM penstock.progress"


def follow(database: Database, config: Config) -> None:
    """Apply what the log has, as the job does."""
    log = complete(config.log.path, database.wal_position())
    with database.connect() as connection:
        progress = read_progress(connection, "counts")
        assert progress is not None
        types = types_of(read_tables(connection, [TableName("public", "notifications")]))
        bound = bind(COUNTS, types, log.end().lsn)
        covered = Covered(progress.log_id, progress.applied_lsn, log.end().lsn)
        aggregate = Aggregate(
            "counts", read_targets(connection, COUNTS), True, progress.epoch, COUNTS.fingerprint
        )
        apply(
            connection,
            aggregate,
            covered,
            lambda: log_deltas(log, bound, covered.start, covered.end, no_spark),
            Mock(),
        )


def test_a_repair_leaves_those_as_skipped_that_the_source_still_holds(
    database: Database, config: Config
) -> None:  # M4.5, M5.6
    seed(config, COUNTS, no_spark)
    database.run(
        KEY_ONLY,
        "INSERT INTO notifications VALUES (5, 's', '1', 'NaN'), (6, 's', '1', 'NaN')",
        "UPDATE notifications SET status = '3' WHERE id IN (1, 2)",
        "ALTER TABLE notifications REPLICA IDENTITY FULL",
        "DELETE FROM notifications WHERE id = 6",
    )
    follow(database, config)
    lost = {NOT_IN_WAL.format("service"): 2, NO_NUMBER: 3}
    assert database.rows(SKIPPED) == [(lost,)]
    # An audit changes nothing.
    assert verified(config).differences != ()
    assert database.rows(SKIPPED) == [(lost,)]
    assert verified(config, repair=True).repaired
    assert database.rows(SKIPPED) == [({NO_NUMBER: 1},)]
    # As a seeding does.
    seed(config, COUNTS, no_spark)
    assert database.rows(SKIPPED) == [({NO_NUMBER: 1},)]


def test_a_repair_that_finds_nothing_to_correct_has_nothing_to_tell_as_skipped(
    database: Database, config: Config
) -> None:  # M4.5, M5.6
    seed(config, COUNTS, no_spark)
    database.run(KEY_ONLY, "UPDATE notifications SET status = '3' WHERE id = 1")
    database.run("UPDATE notifications SET status = '1' WHERE id = 1")
    follow(database, config)
    assert database.rows(SKIPPED) == [({NOT_IN_WAL.format("service"): 2},)]
    done = verified(config, repair=True)
    assert (done.differences, done.repaired) == ((), False)
    assert database.rows(SKIPPED) == [({},)]


def test_what_was_not_to_count_is_told_after_a_repair_as_before(
    database: Database, config: Config
) -> None:  # M4.5, M5.6
    seed(config, COUNTS, no_spark)
    rule_off = {f"insert of public.archive: {RULE_OFF}": 5}
    database.run(
        f"UPDATE penstock.progress SET skipped = '{json.dumps(rule_off)}'",
        "UPDATE stats SET count = 5 WHERE service = 's'",
    )
    assert verified(config, repair=True).repaired
    assert database.rows(SKIPPED) == [(rule_off,)]


def test_what_a_repair_has_counted_before_it_comes_is_not_told_as_skipped(
    database: Database, config: Config
) -> None:  # M5.6
    """The target is behind: what is skipped between it and the snapshot is in the snapshot."""
    seed(config, COUNTS, no_spark)
    database.run(KEY_ONLY, "UPDATE notifications SET status = '3' WHERE id = 1")
    assert verified(config, repair=True).repaired
    assert database.rows(SKIPPED) == [({NOT_IN_WAL.format("service"): -1},)]
    follow(database, config)
    assert database.rows(SKIPPED) == [({},)]
    assert verified(config).differences == ()


def test_what_is_skipped_after_the_snapshot_of_a_repair_is_still_told(
    database: Database, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:  # M5.6
    seed(config, COUNTS, no_spark)
    database.run(KEY_ONLY, "UPDATE notifications SET status = '3' WHERE id = 1")
    follow(database, config)

    def then_another_is_skipped(*arguments: Any) -> Any:
        found = true_sums(*arguments)
        database.run("UPDATE notifications SET status = '3' WHERE id = 2")
        follow(database, config)
        return found

    def before_another_is_repaired(*arguments: Any) -> None:
        database.run("UPDATE notifications SET status = '3' WHERE id = 3")
        follow(database, config)
        repair(*arguments)

    monkeypatch.setattr(verifying, "true_sums", then_another_is_skipped)
    monkeypatch.setattr(verifying, "add_missing", before_another_is_repaired)
    assert verified(config, repair=True).repaired
    monkeypatch.undo()
    assert database.rows(SKIPPED) == [({NOT_IN_WAL.format("service"): 2},)]
    assert verified(config, repair=True).repaired
    assert database.rows(SKIPPED) == [({},)]
