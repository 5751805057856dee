"""A reader that sees an older end of the log than whoever planned: it waits, or says so."""

from __future__ import annotations

import pytest

from penstock.changelog import reader as reading
from penstock.changelog.frames import FrameAt
from penstock.changelog.head import HEAD
from penstock.changelog.reader import LogReader, Position
from penstock.changelog.runs import Share, runs
from penstock.changelog.segments import segment_name
from penstock.changelog.settings import LogSettings
from penstock.changelog.writer import LogWriter
from penstock.errors import LogBehind, LogCorrupt
from penstock.postgres.messages import Insert
from penstock.testing import MemoryStorage
from support import wire
from support.logs import IDENTITY, append_transaction

COMMITS = [0x2000 + 16 * number for number in range(1, 21)]
# One frame for each transaction: in segments of a few, or all in one.
FEW = LogSettings(segment_bytes=600, frame_bytes=300)
ALL = LogSettings()


class SharedStorage(MemoryStorage):
    """As another machine sees it: for some reads, or for ever, with an older head."""

    def __init__(self) -> None:
        super().__init__()
        self.old_head = b""
        self.old_reads = 0

    def read(self, name: str, at: int = 0, size: int | None = None) -> bytes:
        if name == HEAD and self.old_reads > 0:
            self.old_reads -= 1
            return self.old_head
        return super().read(name, at, size)


def written(settings: LogSettings, seen: int) -> tuple[SharedStorage, Position]:
    """A log with all commits, of which the head had so many when it was seen; and its end."""
    storage = SharedStorage()
    with LogWriter(storage, IDENTITY, settings) as writer:
        for number, lsn in enumerate(COMMITS):
            if number == seen:
                storage.old_head = storage.read(HEAD)
            append_transaction(writer, lsn, wire.ITEMS, Insert(wire.ITEMS.oid, (b"x" * 200,)))
    return storage, LogReader(storage).end()


def all_commits(log: LogReader, up_to: Position) -> list[int]:
    start = Position(IDENTITY.start_lsn, 1, 0)
    found = [commit.lsn for commit in log.commits(start, up_to)]
    read = [int(lsn) for run in runs(log, Share(start, up_to)) for lsn in run.commit_lsn]
    assert read == found
    return list(map(int, found))


@pytest.mark.parametrize("seen", [0, 7, 19])
@pytest.mark.parametrize("settings", [FEW, ALL], ids=["many segments", "one"])
def test_a_reader_waits_until_it_sees_what_was_planned(settings: LogSettings, seen: int) -> None:
    # M3.8, M5.7
    storage, planned = written(settings, seen)
    log = LogReader(storage)
    storage.old_reads = 3
    assert all_commits(log, planned) == COMMITS
    assert storage.old_reads == 0


@pytest.mark.parametrize("settings", [FEW, ALL], ids=["many segments", "one"])
def test_one_that_never_sees_it_reads_nothing_and_says_why(
    settings: LogSettings, monkeypatch: pytest.MonkeyPatch
) -> None:  # M3.8, M5.7, M7.3
    monkeypatch.setattr(reading, "_SEEN_WITHIN_S", 0.05)
    storage, planned = written(settings, 7)
    log = LogReader(storage)
    storage.old_reads = 10**9
    with pytest.raises(LogBehind, match=r"up to 0/2070 only.*up to 0/2140\. Mount"):
        next(log.frames(Position(IDENTITY.start_lsn, 1, 0), planned))
    # What it sees it reads, without waiting.
    assert all_commits(log, log.end()) == COMMITS[:7]


def test_the_head_is_read_no_more_often_than_before() -> None:  # M3.8
    storage, planned = written(ALL, 7)
    storage.old_head, storage.old_reads = storage.read(HEAD), 10
    assert len(list(LogReader(storage).frames(Position(IDENTITY.start_lsn, 1, 0), planned)))
    assert storage.old_reads == 9


def frames_of(log: LogReader, segment: int) -> list[FrameAt]:
    frames = log.frames(Position(IDENTITY.start_lsn, 1, 0), log.end())
    return [frame for frame in frames if frame.segment == segment]


def test_frames_that_are_gone_from_the_end_of_the_last_segment_read_are_damage() -> None:  # M3.4
    storage, _ = written(FEW, 7)
    log = LogReader(storage)
    (*_, last) = frames_of(log, 2)
    up_to = Position(last.header.complete_lsn, last.segment, last.end)
    storage.replace(segment_name(2), storage.read(segment_name(2))[: last.position])
    with pytest.raises(LogCorrupt, match=r"0000000002\.seg is damaged .* it was cut off"):
        list(log.frames(Position(IDENTITY.start_lsn, 1, 0), up_to))


def test_frames_that_are_gone_from_where_reading_begins_are_damage() -> None:  # M3.4
    storage, end = written(FEW, 7)
    log = LogReader(storage)
    (*_, before, last) = frames_of(log, 2)
    after = Position(before.header.complete_lsn, before.segment, before.end)
    rest = [int(commit.lsn) for commit in log.commits(after, end)]
    assert rest == [lsn for lsn in COMMITS if lsn > after.lsn]
    storage.replace(segment_name(2), storage.read(segment_name(2))[: last.position])
    with pytest.raises(LogCorrupt, match=r"0000000002\.seg is damaged .* it was cut off"):
        list(log.frames(after, end))
