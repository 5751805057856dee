"""The disk is full, or fails: nothing is confirmed that is not on it, and nothing is lost."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import ClassVar

import pytest

from penstock.capture import disk_forecast, pump
from penstock.changelog import writer
from penstock.changelog.checking import check_log
from penstock.changelog.reader import LogReader
from penstock.changelog.storage import Appender, LocalAppender, LocalStorage
from support.capturing import RunningCapture, capture_config, capturing
from support.database import Database
from support.disk import small_disk
from support.oracle import Mirror
from support.repeats import repeats
from support.waiting import eventually
from support.workload import SLOT, Writers, insert_items, prepare


def must_not_confirm_more_than_the_log_has(database: Database, log: Path) -> None:
    # First the slot, then the log, which may have moved on meanwhile.
    confirmed = database.confirmed(SLOT)
    assert confirmed <= LogReader(log).end().lsn


def test_capture_waits_for_space_and_goes_on_by_itself(database: Database, tmp_path: Path) -> None:
    # M7.3, M1.8
    prepare(database)
    with small_disk(tmp_path / "disk", mib=3) as disk:
        log = disk.path / "log"
        # Compressed, all of it would fit.
        settings = {"segment_mib": 0.5, "compression": "none"}
        config = capture_config(database.dsn(), log, log=settings)
        mirror = Mirror(log)
        with capturing(config) as running:
            running.connected()
            with database.connect() as connection:
                insert_items(connection, 10)
                mirror.must_equal(database)
                for _ in range(6):
                    insert_items(connection, 5_000)
            # First a little more may fit each time, which is news; then nothing does.
            eventually(
                lambda: len(running.reasons()) >= 4 and repeated(running),
                "it has tried several times, and does not tell each of them",
                within_s=60,
            )
            assert "No space left on device" in running.reasons()[-1]
            assert str(log) in running.reasons()[-1]
            assert running.running
            must_not_confirm_more_than_the_log_has(database, log)
            before = mirror.read().commits
            assert 2 <= len(before) < 8, "some of it fitted"
            assert database.confirmed(SLOT) < database.wal_position()
            disk.resize(64)
            mirror.must_equal(database)
            assert mirror.commits[: len(before)] == before
            told = [entry for entry in running.said if entry["log_level"] != "debug"]
        # Not with each attempt; but some of the data may fit meanwhile, which is news.
        full = [entry for entry in told if "No space left" in entry.get("reason", "")]
        tried = [reason for reason in running.reasons() if "No space left" in reason]
        assert 1 <= len(full) < len(tried)
        assert [entry["event"] for entry in told].count("following") == 1 + len(full)
        assert check_log(LogReader(log)).changes == 30_000 + 10 + 2


def repeated(running: RunningCapture) -> bool:
    """An attempt failed for a reason that was told before."""
    return any(
        entry["event"] == "reconnecting" and entry["log_level"] == "debug" for entry in running.said
    )


def test_a_disk_that_is_full_from_the_start_is_waited_for(
    database18: Database, tmp_path: Path
) -> None:
    # M7.3: not even the log's own small files fit.
    prepare(database18)
    with small_disk(tmp_path / "disk", mib=1) as disk:
        filler = disk.path / "filler"
        with pytest.raises(OSError, match="No space"):
            filler.write_bytes(bytes(2**21))
        before = database18.confirmed(SLOT)
        mirror = Mirror(disk.path / "log")
        with capturing(capture_config(database18.dsn(), disk.path / "log")) as running:
            eventually(lambda: len(running.reasons()) >= 2, "it has tried several times")
            assert "No space left on device" in running.reasons()[-1]
            assert database18.confirmed(SLOT) == before
            filler.unlink()
            mirror.must_equal(database18)


class FailingStorage(LocalStorage):
    """Every so often a write or a sync of a segment fails, and takes with it what was not synced.

    So does Linux: after a failed fsync the pages count as clean, and may be anything.
    """

    every: ClassVar[int] = 0
    operation: ClassVar[str] = ""
    done: ClassVar[int] = 0
    failed: ClassVar[int] = 0

    def append_to(self, name: str) -> Appender:
        super().append_to(name).close()
        return FailingAppender(self.root / name)


class FailingAppender(LocalAppender):
    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._path = path
        self._synced = self.size

    def write(self, data: bytes) -> None:
        if self._fails("write"):
            super().write(data[: len(data) // 2])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        super().write(data)

    def sync(self) -> None:
        if self._fails("sync"):
            with self._path.open("r+b") as file:
                file.seek(self._synced)
                file.write(bytes(self.size - self._synced))
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        super().sync()
        self._synced = self.size

    def truncate(self, size: int) -> None:
        super().truncate(size)
        self._synced = min(self._synced, size)

    def _fails(self, operation: str) -> bool:
        if operation != FailingStorage.operation:
            return False
        FailingStorage.done += 1
        if FailingStorage.done % FailingStorage.every:
            return False
        FailingStorage.failed += 1
        return True


@pytest.mark.parametrize("operation", ["write", "sync"])
def test_after_a_failed_write_or_sync_the_rest_is_asked_for_again(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    # M1.8, M3.4: nothing since the last good sync is trusted.
    monkeypatch.setattr(writer, "LocalStorage", FailingStorage)
    monkeypatch.setattr(FailingStorage, "operation", operation)
    monkeypatch.setattr(FailingStorage, "every", 7)
    monkeypatch.setattr(FailingStorage, "done", 0)
    monkeypatch.setattr(FailingStorage, "failed", 0)
    prepare(database)
    mirror = Mirror(tmp_path)
    times = repeats(4, soak=60)
    with capturing(capture_config(database.dsn(), tmp_path)) as running:
        with Writers(database, 2, small=True) as writers:
            while FailingStorage.failed < times:
                writers.await_commits(1)
                mirror.await_marker(database)
                must_not_confirm_more_than_the_log_has(database, tmp_path)
        monkeypatch.setattr(FailingStorage, "every", 10**9)
        mirror.must_equal(database)
        assert running.connections > times
        assert any("cannot be written" in reason for reason in running.reasons())
    check_log(LogReader(tmp_path))


def test_a_disk_that_is_filling_is_reported_before_it_is_full(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # M7.3: what is measured for minutes is measured for a moment here.
    monkeypatch.setattr(disk_forecast, "_LEAST_SPAN_S", 0.5)
    monkeypatch.setattr(disk_forecast, "_EVERY_S", 0.1)
    monkeypatch.setattr(pump, "_PRUNE_INTERVAL_S", 0.1)
    prepare(database)
    with small_disk(tmp_path / "disk", mib=64) as disk:
        config = capture_config(database.dsn(), disk.path / "log", log={"segment_mib": 0.5})

        def reported(running: RunningCapture) -> list[dict[str, object]]:
            filling = "the disk of the log is filling"
            return [dict(each) for each in running.said if each["event"] == filling]

        with capturing(config) as running, Writers(database, 2):
            eventually(lambda: reported(running), "it is reported")
            (warning,) = reported(running)
            assert LogReader(disk.path / "log").end().lsn
    assert "MiB" in str(warning["free"])
    assert "a day" in str(warning["grows_by"])
    assert "max_history_gib in [log]" in str(warning["remedy"])
