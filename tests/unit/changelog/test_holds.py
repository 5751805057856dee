"""Temporary consumers: they hold the log while their process lives, and no longer."""

from __future__ import annotations

import contextlib
import errno
import random
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.changelog import consumers
from penstock.changelog.maintenance import prune
from penstock.changelog.reader import LogReader
from penstock.changelog.settings import LogSettings, RetentionSettings
from penstock.changelog.storage import LocalStorage, Storage
from penstock.changelog.writer import LogWriter
from penstock.errors import ConsumerUnwritable, LogNotWritten
from penstock.lsn import Lsn
from penstock.postgres.messages import Insert
from penstock.testing import MemoryStorage
from support import wire
from support.logs import IDENTITY, append_transaction

TINY = LogSettings(segment_bytes=600, frame_bytes=300)
AT_ONCE = RetentionSettings(min_age_s=0)
LOG_ID = str(IDENTITY.log_id)
ROWS = [Insert(wire.ITEMS.oid, (b"x" * 40,))] * 5


@pytest.fixture(params=["memory", "local"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    return MemoryStorage() if request.param == "memory" else LocalStorage(tmp_path / "log")


def hold(
    storage: Storage, lsn: Lsn = IDENTITY.start_lsn
) -> contextlib.AbstractContextManager[None]:
    return consumers.held(storage, "verify", LOG_ID, lsn)


def long_log(storage: Storage) -> LogWriter:
    writer = LogWriter(storage, IDENTITY, TINY)
    for number in range(1, 21):
        append_transaction(writer, 0x2000 + 16 * number, wire.ITEMS, *ROWS)
    return writer


def test_it_keeps_what_comes_after_it_until_it_ends_and_leaves_nothing(storage: Storage) -> None:
    # M5.6
    with long_log(storage) as writer:
        with hold(storage):
            (known,) = consumers.consumers(storage)
            assert known.name.startswith("verify-")
            assert known.temporary
            assert prune(writer, AT_ONCE).segments == ()
            assert consumers.consumers(storage) == [known]
        assert storage.names(consumers.FOLDER) == []
        assert prune(writer, AT_ONCE).segments


def test_also_if_what_it_is_for_fails(storage: Storage) -> None:  # M5.6
    with pytest.raises(ZeroDivisionError), hold(storage):
        raise ZeroDivisionError
    assert storage.names(consumers.FOLDER) == []


def test_one_whose_process_is_gone_holds_nothing_and_the_others_hold_on() -> None:  # M5.6
    storage = MemoryStorage()
    long_log(storage).close()
    consumers.register(storage, "slow", LOG_ID, Lsn(0x2000 + 16 * 10))
    with hold(storage):
        after = storage.crash(random.Random(1))  # its locks are gone
    with LogWriter(after, IDENTITY, TINY) as writer, hold(after, Lsn(0x2000 + 16 * 5)):
        assert prune(writer, AT_ONCE).segments
        first, second = sorted(consumers.consumers(after), key=lambda each: each.applied_lsn)
        assert (first.temporary, second.name) == (True, "slow")
        reader = LogReader(after)
        kept = reader.commits(reader.locate(first.applied_lsn), reader.end())
        assert [commit.lsn for commit in kept] == [0x2000 + 16 * n for n in range(6, 21)]


def test_one_that_was_released_and_left_is_forgotten_too() -> None:  # M5.6
    storage = MemoryStorage()
    with long_log(storage) as writer, hold(storage):
        full = RetentionSettings(min_age_s=0, max_bytes=1000, on_full="invalidate")
        (released,) = prune(writer, full).invalidated
        assert released.startswith("verify-")
        after = storage.crash(random.Random(1))
    with LogWriter(after, IDENTITY, TINY) as writer:
        prune(writer, AT_ONCE)
    assert after.names(consumers.FOLDER) == []


class PrunedMeanwhile(MemoryStorage):
    """Somebody prunes before and after each lock of a temporary consumer is taken."""

    prunes = 0

    @contextlib.contextmanager
    def lock(self, name: str) -> Iterator[bool]:
        outermost = name.startswith(consumers.FOLDER) and not self._locked
        if outermost:
            consumers.forget_left(self)
        with super().lock(name) as mine:
            if outermost:
                consumers.forget_left(self)
                self.prunes += 1
            yield mine


def test_it_is_not_taken_for_left_while_it_begins() -> None:  # M5.6
    storage = PrunedMeanwhile()
    with hold(storage):
        consumers.forget_left(storage)
        assert storage.prunes == 1
        assert len(consumers.consumers(storage)) == 1
    assert storage.names(consumers.FOLDER) == []


def test_many_come_and_go_while_somebody_prunes_and_none_is_dropped(tmp_path: Path) -> None:
    # M5.6
    storage = LocalStorage(tmp_path)
    dropped: list[int] = []

    def come_and_go(number: int) -> None:
        for _ in range(50):
            with hold(storage, Lsn(number)):
                known = [each.applied_lsn for each in consumers.consumers(storage)]
                if Lsn(number) not in known:
                    dropped.append(number)

    threads = [threading.Thread(target=come_and_go, args=(number,)) for number in (1, 2, 3)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        consumers.forget_left(storage)
    assert dropped == []
    assert storage.names(consumers.FOLDER) == []


def test_a_consumer_of_an_older_version_is_not_temporary() -> None:  # M3.9
    storage = MemoryStorage()
    file = '{"log": "%s", "applied_lsn": "0/1", "updated_at": "then", "invalidated": false}'
    storage.replace("consumers/old.json", (file % LOG_ID).encode())
    consumers.forget_left(storage)
    assert [each.temporary for each in consumers.consumers(storage)] == [False]


def test_who_may_not_write_is_told_so_and_leaves_nothing() -> None:  # M7.3
    class ReadOnly(MemoryStorage):
        def replace(self, name: str, data: bytes) -> None:
            raise PermissionError(errno.EACCES, "Permission denied")

    storage = ReadOnly()
    with pytest.raises(ConsumerUnwritable, match="Permission denied"), hold(storage):
        pass
    assert storage._locked == set()


def test_nor_is_a_file_left_where_there_is_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # M7.3
    def full(_self: LocalStorage, _name: str, _data: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(LocalStorage, "replace", full)
    storage = LocalStorage(tmp_path)
    with pytest.raises(LogNotWritten, match="No space left"), hold(storage):
        pass
    assert storage.names(consumers.FOLDER) == []
