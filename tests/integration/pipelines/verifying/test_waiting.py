"""What an audit waits for: capture, and the log."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from penstock.changelog.consumers import consumers, register
from penstock.changelog.reader import LogReader
from penstock.config import Config
from penstock.errors import (
    LogRetired,
    NotSeeded,
    VerifyTimeout,
)
from penstock.lsn import Lsn
from penstock.pipelines import log_awaited, verifying
from penstock.pipelines.log_awaited import wait_for_log
from penstock.pipelines.seeding import seed
from penstock.pipelines.truth import true_sums
from support.capturing import capturing
from support.database import Database
from support.ops import on_18
from support.truth import no_spark
from support.verifying import COUNTS, verified
from support.waiting import eventually
from support.workload import SLOT


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
