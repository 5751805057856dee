"""A snapshot at an exact position, of tables that stay as they were."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

import psycopg
import pytest

from penstock.changelog.transaction_ids import read_highest
from penstock.errors import SetupBlocked, TableRewritten
from penstock.lsn import ZERO, Lsn
from penstock.names import TableName
from penstock.pipelines.in_flight import unseen_ranges
from penstock.pipelines.log_deltas import log_deltas
from penstock.pipelines.source_snapshot import source_snapshot
from penstock.pipelines.sums import rolled_up
from penstock.postgres.embedded import EmbeddedPostgres
from penstock.postgres.snapshots import Snapshot, keep_as_they_were, snapshot
from penstock.postgres.waiting import Blocker
from support.capturing import capturing
from support.database import Database
from support.ops import on_18
from support.targets import declared
from support.truth import NOTIFICATIONS, complete, no_spark, published, truth, truth_of
from support.waiting import eventually

Sums = dict[Any, tuple[Any, ...]]


@contextmanager
def writers(database: Database, count: int = 3) -> Iterator[None]:
    """Sessions that insert, update and delete until the block ends; some of it rolled back."""
    stop = threading.Event()

    def write(writer: int) -> None:
        chance = random.Random(writer)
        with database.connect(autocommit=False) as connection:
            number = 0
            while not stop.is_set():
                for _ in range(chance.randint(1, 4)):
                    number += 1
                    service, status = chance.choice("st"), chance.choice("abc")
                    connection.execute(
                        "INSERT INTO notifications VALUES (%s, %s, %s, %s)",
                        [writer * 10**6 + number, service, status, chance.randint(-500, 500) / 100],
                    )
                    some = [writer * 10**6 + chance.randint(1, number)]
                    connection.execute(
                        "UPDATE notifications SET status = 'd', price = NULL WHERE id = %s", some
                    )
                    some = [writer * 10**6 + chance.randint(1, number)]
                    connection.execute("DELETE FROM notifications WHERE id = %s", some)
                if chance.random() < 0.2:
                    connection.rollback()
                else:
                    connection.commit()

    with ThreadPoolExecutor(count) as pool:
        futures = [pool.submit(write, number) for number in range(1, count + 1)]
        try:
            yield
        finally:
            stop.set()
        for future in futures:
            future.result(10)


@pytest.mark.parametrize("polled", [False, True], ids=["exported", "polled"])
def test_two_snapshots_differ_by_exactly_what_the_log_has_between_them(
    database: Database, tmp_path: Path, polled: bool
) -> None:  # M5.5, M5.6, M4.3: the polled one together with what was in flight
    database.run(*NOTIFICATIONS)
    config = published(database, tmp_path)
    found: list[tuple[Snapshot, Sums]] = []
    with capturing(config), writers(database):
        for _ in range(6):
            with snapshot(database.dsn(), polled=polled) as source:
                bound, sums = truth_of(source)
                # The session goes on seeing what it saw.
                again = source.connection.execute(
                    "SELECT service, status, count(*), coalesce(sum(price), 0)"
                    "  FROM public.notifications GROUP BY 1, 2"
                ).fetchall()
            assert sums == {tuple(row[:2]): tuple(row[2:]) for row in again}
            found.append((source, sums))
        log = complete(tmp_path, found[-1][0].lsn)
    assert len({source.lsn for source, _ in found}) == len(found)

    def between(sums: Sums, start: Lsn, end: Lsn) -> Sums:
        """The sums at the end of a range, with those at its start."""
        deltas = log_deltas(log, bound, start, end, no_spark)
        assert deltas.changes > 0
        added = rolled_up(deltas.sums, ["service", "status"], ["count", "cost"])
        together = {
            key: tuple(
                a + b for a, b in zip(sums.get(key, (0, 0)), added.get(key, (0, 0)), strict=True)
            )
            for key in sums.keys() | added.keys()
        }
        return {key: sums for key, sums in together.items() if any(sums)}

    exact: list[tuple[Lsn, Sums]] = []
    for source, sums in found:
        if (doubt := source.in_flight) is not None:
            commits = log.commits(log.locate(doubt.start), log.locate(doubt.end))
            for start, end in unseen_ranges(commits, doubt):
                sums = between(sums, start, end)
        exact.append((source.lsn, sums))
    for (start, before), (end, after) in pairwise(exact):
        assert between(before, start, end) == after


def test_a_commit_that_waits_for_a_standby_is_in_no_polled_snapshot_by_halves(
    own_server: EmbeddedPostgres, tmp_path: Path
) -> None:  # M5.5, M4.3: its record is in the WAL, and nobody sees it as committed yet
    with Database(own_server, "app") as database:
        database.run(*NOTIFICATIONS)
        config = published(database, tmp_path)
        insert = "INSERT INTO notifications VALUES (1, 's', 'a', 1)"
        with (
            capturing(config),
            database.connect() as waiting,
            ThreadPoolExecutor(1) as pool,
            no_standby(database),
        ):
            committing = pool.submit(lambda: waiting.execute(insert))
            pid = waiting.info.backend_pid
            waits = "SELECT wait_event FROM pg_stat_activity WHERE pid = %s"
            eventually(lambda: database.value(waits, pid) == "SyncRep", "it waits")
            with (
                pytest.raises(SetupBlocked, match=f"process {pid}"),
                snapshot(database.dsn(), polled=True, deadline_s=0.5),
            ):
                pass
        committing.result(10)
        with snapshot(database.dsn(), polled=True) as source:
            assert truth_of(source)[1] == {("s", "a"): (1, Decimal("1.00"))}


@pytest.mark.parametrize("mode", ["stream", "poll"])
def test_a_snapshot_that_waits_while_capture_goes_on_is_of_the_same_server(
    database: Database, tmp_path: Path, mode: str
) -> None:  # M1.8: the ids that the log learns meanwhile are newer than the server's answer
    database.run(*NOTIFICATIONS)
    config = published(database, tmp_path)
    source = config.source.model_copy(update={"mode": mode})
    config = config.model_copy(update={"source": source})
    log = None
    with (
        capturing(config) as running,
        database.connect(autocommit=False) as open_transaction,
        ThreadPoolExecutor(1) as pool,
    ):
        running.connected()
        open_transaction.execute("INSERT INTO notifications VALUES (-1, 's', 'a', 1)")
        log = complete(tmp_path, database.wal_position())
        told: list[Any] = []

        def taken() -> Lsn:
            with source_snapshot(config, declared(), log, on_wait=told.append) as found:
                return found.lsn

        waiting = pool.submit(taken)
        try:
            eventually(lambda: told, "it waits")
            before = read_highest(log.storage)
            numbers = iter(range(1, 10_000))

            def is_noted() -> bool:
                database.run(f"INSERT INTO notifications VALUES ({next(numbers)}, 's', 'b', 1)")
                return read_highest(log.storage) > before

            eventually(is_noted, "the log knows newer ids", within_s=30)
        finally:
            open_transaction.commit()
        assert waiting.result(20) > ZERO
    assert not (tmp_path / "refused.json").exists()


@contextmanager
def no_standby(database: Database) -> Iterator[None]:
    """Commits wait for a standby that does not exist."""
    name = "SHOW synchronous_standby_names"
    database.run("ALTER SYSTEM SET synchronous_standby_names = 'none'", "SELECT pg_reload_conf()")
    try:
        eventually(lambda: database.value(name) == "none", "commits wait")
        yield
    finally:
        database.run("ALTER SYSTEM RESET synchronous_standby_names", "SELECT pg_reload_conf()")


def test_the_slot_goes_as_soon_as_the_snapshot_is_taken_over(database: Database) -> None:  # M5.5
    database.run(*NOTIFICATIONS, "INSERT INTO notifications VALUES (1, 's', 'a', 1)")
    with snapshot(database.dsn()) as source:
        eventually(
            lambda: not database.rows("SELECT FROM pg_replication_slots WHERE temporary"),
            "no slot while the snapshot is read",
        )
        database.run("DELETE FROM notifications")
        assert truth_of(source)[1] == {("s", "a"): (1, Decimal("1.00"))}
        assert source.lsn <= database.wal_position()
    assert truth(database) == {}


def test_a_server_that_goes_when_all_is_read_is_no_failure(database18: Database) -> None:  # M5.5
    with snapshot(database18.dsn()) as source:
        database18.run(f"SELECT pg_terminate_backend({source.connection.info.backend_pid})")
    assert source.connection.closed


def test_a_snapshot_that_has_to_wait_says_for_whom_and_gives_up_in_time(
    database: Database,
) -> None:  # M5.5, M7.3
    database.run(*NOTIFICATIONS)
    told: list[tuple[Blocker, ...]] = []
    with database.connect(autocommit=False) as writer:
        writer.execute("INSERT INTO notifications VALUES (1, 'hidden', 'a', 1)")
        pid = writer.info.backend_pid
        with (
            pytest.raises(
                SetupBlocked, match=rf"no snapshot within 1 s: .* process {pid}"
            ) as raised,
            snapshot(database.dsn(), on_wait=told.append, deadline_s=1.0),
        ):
            pass
        assert "hidden" not in str(raised.value)
        assert [blocker.pid for blocker in told[-1]] == [pid]
        eventually(lambda: not database.rows("SELECT FROM pg_replication_slots"), "no slot")
        # Whoever ends in time is waited for, and is in it.
        with ThreadPoolExecutor(1) as pool:
            told.clear()
            waiting = pool.submit(_truth_waiting, database, told)
            eventually(lambda: told, "told who blocks")
            writer.commit()
            assert waiting.result(10) == {("hidden", "a"): (1, Decimal("1.00"))}


def _truth_waiting(database: Database, told: list[tuple[Blocker, ...]]) -> dict[Any, Any]:
    with snapshot(database.dsn(), on_wait=told.append) as source:
        return truth_of(source)[1]


# What does not regard snapshots: to a snapshot from before, the table is empty.
REWRITES = [
    "ALTER TABLE notifications ALTER id TYPE bigint",
    "TRUNCATE notifications",
    "ALTER TABLE notifications_1 SET UNLOGGED",
]


def partitioned(database: Database) -> None:
    database.run(
        "CREATE TABLE notifications (id int, service text, status text) PARTITION BY LIST (status)",
        "CREATE TABLE notifications_1 PARTITION OF notifications DEFAULT",
        "INSERT INTO notifications VALUES (1, 's', 'a')",
    )


@on_18
@pytest.mark.parametrize("rewrite", REWRITES)
def test_a_table_stays_as_the_snapshot_has_it_while_others_are_read(
    database: Database, rewrite: str
) -> None:  # M5.5, M5.6
    partitioned(database)
    # Whoever may read some columns may keep the table.
    database.run(
        f"CREATE ROLE reader_of_{database.name}",
        f"GRANT SELECT (service) ON notifications TO reader_of_{database.name}",
    )
    try:
        with snapshot(database.dsn()) as source, database.connect() as other:
            source.connection.execute(f"SET ROLE reader_of_{database.name}")
            keep_as_they_were(source.connection, [TableName("public", "notifications")])
            other.execute("SET lock_timeout = 100")
            with pytest.raises(psycopg.errors.LockNotAvailable):
                other.execute(rewrite.encode())
    finally:
        database.run(
            f"DROP OWNED BY reader_of_{database.name}", f"DROP ROLE reader_of_{database.name}"
        )


@on_18
@pytest.mark.parametrize("rewrite", REWRITES)
def test_one_that_was_rewritten_since_is_not_taken_for_empty(
    database: Database, rewrite: str
) -> None:  # M5.5, M5.6
    partitioned(database)
    with snapshot(database.dsn()) as source:
        database.run(rewrite)
        with pytest.raises(TableRewritten, match=r"^public\.notifications_1 was rewritten"):
            keep_as_they_were(source.connection, [TableName("public", "notifications")])
    with snapshot(database.dsn()) as source:
        keep_as_they_were(source.connection, [TableName("public", "notifications")])


def test_limits_on_the_time_of_others_are_not_for_a_snapshot(database: Database) -> None:  # M5.5
    database.run(*NOTIFICATIONS)
    limits = (
        *("statement_timeout", "idle_in_transaction_session_timeout", "transaction_timeout"),
        "lock_timeout",
    )
    known = "SELECT FROM pg_settings WHERE name = %s"
    options = " ".join(f"-c {name}=100" for name in limits if database.rows(known, name))
    with database.connect(autocommit=False) as writer, ThreadPoolExecutor(1) as pool:
        writer.execute("INSERT INTO notifications VALUES (1, 's', 'a', 1)")
        told: list[tuple[Blocker, ...]] = []

        def taken() -> dict[Any, Any]:
            limited = database.dsn(options=options)
            with snapshot(limited, on_wait=told.append, deadline_s=10) as source:
                source.connection.execute("SELECT pg_sleep(0.2)")
                time.sleep(0.2)
                return truth_of(source)[1]

        waiting = pool.submit(taken)
        eventually(lambda: told, "it waits")
        writer.commit()
        assert waiting.result(10) == {("s", "a"): (1, Decimal("1.00"))}
