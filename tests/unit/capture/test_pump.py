"""Capture's loop with a connection that says what the test wants: what is confirmed, and when."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.capture import flushing
from penstock.capture.heartbeat import HeartbeatMeter
from penstock.capture.pump import Pump
from penstock.changelog.format import Compression
from penstock.changelog.reader import LogReader
from penstock.changelog.settings import LogSettings, RetentionSettings
from penstock.changelog.writer import LogWriter
from penstock.errors import LogNotWritten
from penstock.lsn import Lsn
from penstock.postgres.envelope import StatusUpdate
from penstock.postgres.fragments import Fragmenter
from penstock.postgres.session import ReplicationSession, SessionSettings
from penstock.testing import MemoryStorage
from support import wire
from support.logs import IDENTITY, apply
from support.wire import begin, insert, keepalive, relation, transaction

START = Lsn(0x100)


class ScriptedConnection:
    """Hands out the runs, then has capture stopped; checks each confirmation against the log."""

    protocol_version = 4
    took_a_step = False

    def __init__(self, stop: threading.Event, directory: Path, runs: Sequence[list[bytes]]) -> None:
        self._stop = stop
        self._directory = directory
        self._runs = list(runs)
        self.confirmed: list[Lsn] = []
        self.ended = False

    def read(self, timeout_s: float) -> list[memoryview]:
        if not self._runs:
            self._stop.set()
            return []
        return [memoryview(message) for message in self._runs.pop(0)]

    def pause(self, seconds: float) -> None:
        time.sleep(seconds)

    def send(self, update: StatusUpdate) -> None:
        # M1.8: another process that looks at the log now sees all that is confirmed.
        assert update.durable_lsn <= LogReader(self._directory).end().lsn
        self.confirmed.append(update.durable_lsn)

    def end(self) -> None:
        self.ended = True


def pump(directory: Path, *runs: list[bytes]) -> ScriptedConnection:
    stop = threading.Event()
    connection = ScriptedConnection(stop, directory, runs)
    run_pump(connection, LogWriter(directory, replace(IDENTITY, start_lsn=START)), stop)
    return connection


def run_pump(
    connection: ScriptedConnection | EndlessConnection, log: LogWriter, stop: threading.Event
) -> None:
    session = ReplicationSession(log.complete_lsn, SessionSettings(), now=time.monotonic())
    try:
        Pump(
            connection,  # type: ignore[arg-type]
            session,
            log,
            RetentionSettings(),
            HeartbeatMeter("test"),
            stop,
        ).run()
    finally:
        log.close()


class EndlessConnection:
    """A server that always has more: a megabyte at a time, as one open transaction."""

    protocol_version = 4
    run_bytes = 2**20
    took_a_step = False

    def __init__(self, stop: threading.Event, runs: int) -> None:
        self._stop = stop
        self._left = runs
        # Handed out, and not yet on disk.
        self.in_flight = 0
        self.most_in_flight = 0

    def read(self, timeout_s: float) -> list[memoryview]:
        if not self._left:
            self._stop.set()
            return []
        self._left -= 1
        run = [begin(0x2F8), relation()] if not self.most_in_flight else []
        run.append(insert("x" * self.run_bytes))
        self.in_flight += sum(map(len, run))
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        return [memoryview(message) for message in run]

    def send(self, update: StatusUpdate) -> None:
        pass

    def end(self) -> None:
        pass


def test_the_server_is_answered_during_a_commit_of_very_many_pieces(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # M1.6
    sent: list[StatusUpdate] = []
    log = LogWriter(MemoryStorage(), replace(IDENTITY, start_lsn=START), LogSettings(frame_bytes=1))
    stop = threading.Event()
    connection = EndlessConnection(stop, runs=0)
    monkeypatch.setattr(connection, "send", sent.append)
    # Something is due every 20 ms.
    settings = SessionSettings(wal_sender_timeout_s=0.06)
    session = ReplicationSession(log.complete_lsn, settings, now=time.monotonic())
    Pump(
        connection,  # type: ignore[arg-type]
        session,
        log,
        RetentionSettings(),
        HeartbeatMeter("test"),
        stop,
    )
    fragmenter = Fragmenter(log.complete_lsn)
    described = wire.xlog(replace(wire.ITEMS, xid=7))
    piece = [wire.stream_start(7), described, wire.insert(1, xid=7), wire.stream_stop()]
    for _ in range(2_000):
        apply(log, fragmenter, [memoryview(message) for message in piece])
    answer = log.between_pieces

    def slowly() -> None:
        time.sleep(0.03)
        answer()

    log.between_pieces = slowly
    apply(log, fragmenter, [memoryview(wire.stream_commit(7, 0x9000))])
    log.close()
    assert len(sent) >= 5
    assert {update.durable_lsn for update in sent} == {START}


def test_a_slow_disk_slows_the_reader_and_does_not_fill_the_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # M2.5: bytes alone decide here, for on a fast machine they come before the time is over.
    monkeypatch.setattr(flushing, "_LONGEST_WAIT_S", float("inf"))
    stop = threading.Event()
    connection = EndlessConnection(stop, runs=40)
    synced = []

    def slow(operation: str, name: str) -> None:
        if operation == "sync" and name.startswith("segments/"):
            time.sleep(0.01)
            synced.append(log.pending_bytes)
            connection.in_flight = 0

    storage = MemoryStorage()
    # What is stored is what was received: nothing gets smaller.
    plain = LogSettings(compression=Compression.NONE)
    log = LogWriter(storage, replace(IDENTITY, start_lsn=START), plain)
    storage.fault = slow
    run_pump(connection, log, stop)
    bound = 4 * 2**20 + connection.run_bytes
    assert max(synced) <= bound
    assert connection.most_in_flight <= bound
    assert len(synced) >= 40 * connection.run_bytes // bound


def commits(directory: Path) -> list[int]:
    log = LogReader(directory)
    return [int(t.commit_lsn) for t in log.transactions(log.start(), log.end())]


def test_what_was_received_is_in_the_log_and_confirmed_at_the_end(tmp_path: Path) -> None:
    # M1.8
    connection = pump(
        tmp_path,
        transaction(0x200, "a"),
        [*transaction(0x300, "b"), *transaction(0x400, "c"), keepalive(0x480, reply=True)],
        [keepalive(0x500)],
    )
    assert commits(tmp_path) == [0x200, 0x300, 0x400]
    assert connection.confirmed[-1] == 0x500
    assert connection.confirmed == sorted(connection.confirmed)
    assert connection.ended


def test_small_commits_that_follow_each_other_share_a_flush_and_a_lone_one_does_not_wait(
    tmp_path: Path,
) -> None:  # M1.8, M3.3
    # A server that has one commit each time it is asked, and after a pause all that came meanwhile.
    lone, followed = 0x200, range(0x300, 0x300 + 16 * 100, 16)
    seen: list[Lsn] = []

    class Steady(ScriptedConnection):
        def read(self, timeout_s: float) -> list[memoryview]:
            seen.append(LogReader(tmp_path).end().lsn)
            return super().read(timeout_s)

        def pause(self, seconds: float) -> None:
            super().pause(seconds)
            come = self._runs[:20]
            self._runs[:20] = [[message for run in come for message in run]]

    stop = threading.Event()
    runs = [run for lsn in (lone, *followed) for run in (transaction(lsn, "a"), [])]
    connection = Steady(stop, tmp_path, runs)
    run_pump(connection, LogWriter(tmp_path, replace(IDENTITY, start_lsn=START)), stop)
    assert seen[2] == lone
    assert commits(tmp_path) == [lone, *followed]
    log = LogReader(tmp_path)
    frames = [frame for frame in log.frames(log.start(), log.end()) if frame.header.commits]
    assert len(frames) <= 30
    assert connection.confirmed == sorted(connection.confirmed)


def test_what_a_step_brought_is_durable_before_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It has come together already. With time alone none of this would be flushed before the end.
    monkeypatch.setattr(flushing, "_LONGEST_WAIT_S", float("inf"))
    seen = []

    class Stepping(ScriptedConnection):
        took_a_step = True

        def read(self, timeout_s: float) -> list[memoryview]:
            seen.append(LogReader(tmp_path).end().lsn)
            return super().read(timeout_s)

    stop = threading.Event()
    connection = Stepping(stop, tmp_path, [transaction(0x200, "a"), transaction(0x300, "b")])
    run_pump(connection, LogWriter(tmp_path, replace(IDENTITY, start_lsn=START)), stop)
    assert seen == [START, Lsn(0x200), Lsn(0x300)]


def test_a_transaction_that_the_log_has_is_dropped(tmp_path: Path) -> None:
    # M1.8: whatever a server sends again, and from wherever it starts.
    pump(tmp_path, transaction(0x80, "old"), transaction(0x100, "old"), transaction(0x200, "a"))
    pump(tmp_path, transaction(0x200, "a"), transaction(0x300, "b"))
    assert commits(tmp_path) == [0x200, 0x300]


def test_half_a_transaction_is_neither_logged_nor_confirmed(tmp_path: Path) -> None:
    # M1.3
    connection = pump(
        tmp_path,
        [*transaction(0x200, "a"), begin(0x2F8), relation(), insert("b"), keepalive(0x2F8)],
    )
    assert commits(tmp_path) == [0x200]
    assert connection.confirmed[-1] == 0x200


def test_nothing_is_confirmed_after_a_failed_sync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # M1.8, M7.3
    pump(tmp_path, transaction(0x200, "a"))
    stop = threading.Event()
    connection = ScriptedConnection(stop, tmp_path, [transaction(0x300, "b"), [keepalive(0x400)]])
    log = LogWriter(tmp_path)

    def fail(_: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", fail)
        with pytest.raises(LogNotWritten):
            run_pump(connection, log, stop)
    assert all(position <= 0x200 for position in connection.confirmed)
    assert commits(tmp_path) == [0x200]
