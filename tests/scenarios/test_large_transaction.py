"""Long work on our side or the server's: its questions are answered all the while."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from penstock.capture import flushing, pump
from penstock.changelog import writer
from penstock.changelog.storage import Appender, LocalAppender, LocalStorage
from penstock.changelog.writer import LogWriter
from penstock.lsn import Lsn
from penstock.postgres.connection import ReplicationConnection
from penstock.postgres.fragments import Event, Fragmenter
from support.capturing import capture_config, capturing
from support.database import Database
from support.oracle import Mirror
from support.workload import insert_items, prepare

# The shortest that can be configured: the server hangs up after a second without an answer.
TIMEOUT_S = 1.0
ROWS = 30_000


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
def test_a_large_transaction_is_received_without_a_disconnect(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, streamed: bool
) -> None:
    # M1.6: it takes us much longer than the server's patience, in the middle of one transaction.
    monkeypatch.setattr(pump, "Fragmenter", SlowFragmenter)
    prepare(database)
    mirror = Mirror(tmp_path)
    options = "" if streamed else "-c logical_decoding_work_mem=1GB"
    config = capture_config(database.dsn(options=options), tmp_path, wal_sender_timeout_s=TIMEOUT_S)
    with capturing(config) as running:
        running.connected()
        started = time.monotonic()
        with database.connect() as connection:
            insert_items(connection, ROWS)
        mirror.await_marker(database)
        assert time.monotonic() - started > 1.1 * TIMEOUT_S
        assert running.connections == 1
        assert len(mirror.rows("items")) == ROWS
        assert len(mirror.commits) == 2


class SlowFragmenter(Fragmenter):
    """Takes 40 µs a message: 25,000 a second."""

    def feed(self, run: Sequence[memoryview]) -> list[Event]:
        until = time.perf_counter() + 40e-6 * len(run)
        while time.perf_counter() < until:
            pass
        return super().feed(run)


def test_a_slow_disk_does_not_cost_the_connection(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # M1.6
    flush = LogWriter.flush

    def slow_flush(log: LogWriter, complete_up_to: Lsn) -> None:
        time.sleep(0.3)
        flush(log, complete_up_to)

    monkeypatch.setattr(LogWriter, "flush", slow_flush)
    prepare(database)
    mirror = Mirror(tmp_path)
    config = capture_config(database.dsn(), tmp_path, wal_sender_timeout_s=TIMEOUT_S)
    with capturing(config) as running:
        started = time.monotonic()
        with database.connect() as connection:
            while time.monotonic() < started + 2 * TIMEOUT_S:
                insert_items(connection, 100)
                mirror.await_marker(database)
        mirror.must_equal(database)
        assert running.connections == 1


class SlowStorage(LocalStorage):
    """A disk whose syncs take long enough for the server to fill every buffer on the way."""

    def append_to(self, name: str) -> Appender:
        super().append_to(name).close()
        return SlowAppender(self.root / name)


class SlowAppender(LocalAppender):
    def sync(self) -> None:
        time.sleep(0.1)
        super().sync()


@dataclass
class InFlight:
    """What is received and not yet durable: as the connection counts it, and as the log does."""

    received: int = 0
    since_flush: int = 0
    largest_run: int = 0
    most_since_flush: int = 0
    most_pending: int = 0

    def watch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        read, flush = ReplicationConnection.read, LogWriter.flush

        def watched_read(connection: ReplicationConnection, timeout_s: float) -> list[memoryview]:
            run = read(connection, timeout_s)
            size = sum(map(len, run))
            self.received += size
            self.since_flush += size
            self.largest_run = max(self.largest_run, size)
            self.most_since_flush = max(self.most_since_flush, self.since_flush)
            return run

        def watched_flush(log: LogWriter, complete_up_to: Lsn) -> None:
            self.most_pending = max(self.most_pending, log.pending_bytes)
            flush(log, complete_up_to)
            self.since_flush = 0

        monkeypatch.setattr(ReplicationConnection, "read", watched_read)
        monkeypatch.setattr(LogWriter, "flush", watched_flush)


def test_a_slow_disk_slows_the_server_and_does_not_fill_our_memory(
    database18: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # M2.5: all that is received is in flight until it is durable, and that is bounded by bytes. The
    # time after which it is flushed anyway is switched off, for a slow machine would never get far.
    monkeypatch.setattr(flushing, "_LONGEST_WAIT_S", float("inf"))
    monkeypatch.setattr(writer, "LocalStorage", SlowStorage)
    in_flight = InFlight()
    in_flight.watch(monkeypatch)
    prepare(database18)
    database18.run(  # rows as large as they come without TOAST: 60 MB in one transaction
        "INSERT INTO items (writer, seq, body)"
        " SELECT 0, n, repeat(md5(n::text), 60) FROM generate_series(1, 30000) AS n"
    )
    mirror = Mirror(tmp_path)
    # What is compressed takes less memory than was received.
    config = capture_config(database18.dsn(), tmp_path, log={"compression": "none"})
    with capturing(config) as running:
        mirror.must_equal(database18)
        assert running.connections == 1
    assert in_flight.largest_run <= 2**20 + 2**19, "a step, and what one read brings"
    bound = 4 * 2**20 + in_flight.largest_run
    assert in_flight.received > 8 * bound, "the server had much more to send"
    assert in_flight.most_pending <= bound
    assert in_flight.most_since_flush <= 1.1 * bound, "with envelopes, which the log leaves out"
