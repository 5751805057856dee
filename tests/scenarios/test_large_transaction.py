"""Long work on our side or the server's: its questions are answered all the while."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from penstock.capture import pump
from penstock.changelog.writer import LogWriter
from penstock.lsn import Lsn
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
