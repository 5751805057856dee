"""Capture's loop with a connection that says what the test wants: what is confirmed, and when."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from penstock.capture.engine import Capture
from penstock.changelog.log import LogHeader, LogReader, LogWriter
from penstock.errors import LogNotWritten
from penstock.lsn import Lsn
from penstock.postgres.envelope import StatusUpdate
from support.capturing import capture_config
from support.wire import begin, insert, keepalive, relation, transaction

START = Lsn(0x100)


class ScriptedConnection:
    """Hands out the runs, then has capture stopped; checks each confirmation against the log."""

    protocol_version = 4

    def __init__(self, capture: Capture, directory: Path, runs: Sequence[list[bytes]]) -> None:
        self._capture = capture
        self._directory = directory
        self._runs = list(runs)
        self.confirmed: list[Lsn] = []
        self.ended = False

    def read(self, timeout_s: float) -> list[memoryview]:
        if not self._runs:
            self._capture.stop()
            return []
        return [memoryview(message) for message in self._runs.pop(0)]

    def send(self, update: StatusUpdate) -> None:
        # M1.8: another process that looks at the log now sees all that is confirmed.
        assert update.durable_lsn <= LogReader(self._directory).end().lsn
        self.confirmed.append(update.durable_lsn)

    def end(self) -> None:
        self.ended = True


def pump(directory: Path, *runs: list[bytes]) -> ScriptedConnection:
    capture = Capture(capture_config("", directory))
    connection = ScriptedConnection(capture, directory, runs)
    log = LogWriter(directory, LogHeader(START, 1, "1"))
    try:
        capture._pump(connection, log)  # type: ignore[arg-type]
    finally:
        log.close()
    return connection


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
    capture = Capture(capture_config("", tmp_path))
    connection = ScriptedConnection(
        capture, tmp_path, [transaction(0x300, "b"), [keepalive(0x400)]]
    )
    log = LogWriter(tmp_path)

    def fail(_: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", fail)
        with pytest.raises(LogNotWritten):
            capture._pump(connection, log)  # type: ignore[arg-type]
    log.close()
    assert all(position <= 0x200 for position in connection.confirmed)
    assert commits(tmp_path) == [0x200]
