"""The log against a model: whatever is sent, and whatever happens, what committed is there."""

from __future__ import annotations

import contextlib
import errno
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.changelog.format import Compression
from penstock.changelog.reader import LogReader, Position
from penstock.changelog.segments import segment_name
from penstock.changelog.settings import LogSettings
from penstock.changelog.storage import Appender, LocalStorage
from penstock.changelog.writer import LogWriter
from penstock.errors import LogFenced, LogFull, LogInUse, LogMissing, LogNotWritten, LogUnreadable
from penstock.lsn import Lsn
from penstock.postgres.fragments import Fragmenter
from penstock.postgres.messages import Insert
from penstock.testing import MemoryStorage, RecordingLog
from support import wire
from support.logs import IDENTITY, SMALL, all_compressed, append_transaction, apply, read, write
from support.repeats import repeats
from support.stories import tell

# Everything that a disk may refuse.
OPERATIONS = ["write", "sync", "overwrite", "replace", "create"]
SEEDS = st.integers(0, 2**32)


@settings(max_examples=repeats(60, soak=150), deadline=None)
@given(SEEDS, st.sampled_from(Compression))
def test_what_committed_is_read_back_whole_once_and_in_order(
    seed: int, compression: Compression
) -> None:  # M3.2, M3.3, M3.5
    chance = random.Random(seed)
    story = tell(chance)
    storage = MemoryStorage()
    with all_compressed():
        write(storage, story.runs(chance), chance, LogSettings(3_000, 3600, 400, compression))
    assert read(storage) == story.truth()


def test_a_frame_is_compressed_where_that_makes_it_smaller() -> None:
    chance = random.Random(3)
    noise = bytes(chance.choices(range(33, 127), k=2_000))
    cases = [(b"x" * 100, False), (b"x" * 2_000, True), (noise[:600], False)]
    storage = MemoryStorage()
    with LogWriter(storage, IDENTITY) as writer:
        for number, (value, _) in enumerate(cases):
            lsn = 0x2000 + 16 * number
            append_transaction(writer, lsn, wire.ITEMS, Insert(wire.ITEMS.oid, (value,)))
    log = LogReader(storage)
    frames = [frame for frame in log.frames(log.start(), log.end()) if frame.header.commits]
    kinds = [frame.header.compression for frame in frames]
    assert kinds == [Compression.LZ4 if smaller else Compression.NONE for _, smaller in cases]
    assert len(read(storage)) == len(cases)


@settings(max_examples=repeats(40, soak=100), deadline=None)
@given(SEEDS)
def test_any_range_of_positions_gives_its_own_commits(seed: int) -> None:
    chance = random.Random(seed)
    story = tell(chance)
    storage = MemoryStorage()
    write(storage, story.runs(chance), chance)
    reader = LogReader(storage)
    positions = sorted(
        {reader.start().lsn, reader.end().lsn, *(t.commit_lsn for t in story.truth())}
    )
    first, last = sorted(chance.choices(positions, k=2))
    found = list(reader.transactions(reader.locate(first), reader.locate(last)))
    assert found == [t for t in story.truth() if first < t.commit_lsn <= last]


@settings(max_examples=repeats(40, soak=100), deadline=None)
@given(SEEDS)
def test_the_ordinal_of_a_change_counts_what_survives(seed: int) -> None:
    chance = random.Random(seed)
    story = tell(chance)
    storage = MemoryStorage()
    write(storage, story.runs(chance), chance)
    reader = LogReader(storage)
    changes = {t.commit_lsn: sum(p[0] in b"IUDT" for p in t.payloads) for t in story.truth()}
    for commit in reader.commits(reader.start(), reader.end()):
        assert commit.changes == changes[commit.lsn]
        seq = 0
        for ref in commit.fragments:
            assert ref.first_seq == seq
            seq += sum(1 for _ in reader._changes(ref, commit.aborted))
        assert seq == commit.changes


@settings(max_examples=repeats(60, soak=150), deadline=None)
@given(SEEDS, st.integers(1, 6))
def test_a_crash_at_any_moment_loses_nothing_and_doubles_nothing(
    seed: int, crashes: int
) -> None:  # M3.4, M1.8
    chance = random.Random(seed)
    story = tell(chance)
    storage = MemoryStorage()
    for _ in range(crashes):
        stop_after = chance.randrange(1, 60)
        storage.fault = _dies_after(stop_after)
        with contextlib.suppress(PowerCut):
            write(storage, story.runs(chance), chance)
        before = _visible(storage)
        storage = storage.crash(chance)
        # What a reader has seen is never taken back.
        LogWriter(storage, IDENTITY, SMALL).close()
        after = read(storage)
        assert after[: len(before)] == before
        assert after == story.truth()[: len(after)]
    write(storage, story.runs(chance), chance)
    assert read(storage) == story.truth()


@settings(max_examples=repeats(60, soak=150), deadline=None)
@given(SEEDS, st.sampled_from([errno.ENOSPC, errno.EIO]), st.sampled_from(OPERATIONS))
def test_after_a_failed_write_or_sync_nothing_since_the_last_good_one_is_trusted(
    seed: int, code: int, operation: str
) -> None:
    chance = random.Random(seed)
    story = tell(chance)
    storage = MemoryStorage()
    failed: list[str] = []
    storage.fault = _fails_at(chance.randrange(1, 30), operation, code, failed)
    expected = LogFull if code == errno.ENOSPC else LogNotWritten
    with contextlib.suppress(expected):
        write(storage, story.runs(chance), chance)
    visible = _visible(storage)
    storage.fault = lambda _operation, _name: None
    LogWriter(storage, IDENTITY, SMALL).close()
    # What was synced and not yet shown may show now; nothing else may.
    found = read(storage)
    assert found[: len(visible)] == visible
    assert found == story.truth()[: len(found)]
    # The book of tables is written when the segment is synced.
    if operation in ("write", "sync") and failed != ["tables"]:
        assert found == visible
    write(storage, story.runs(chance), chance)
    assert read(storage) == story.truth()


# As it comes inside a chunk of transaction 9.
DESCRIBED = wire.relation(replace(wire.ITEMS, xid=9))


def test_nothing_is_visible_before_the_flush() -> None:  # M3.2, M3.3
    storage = MemoryStorage()
    writer = LogWriter(storage, IDENTITY, SMALL)
    apply(writer, Fragmenter(writer.complete_lsn), _views(wire.transaction(0x2000, 1, 2, 3)))
    assert read(storage) == []
    writer.flush(Lsn(0x2000))
    assert [t.commit_lsn for t in read(storage)] == [0x2000]
    writer.close()


def test_each_fragment_is_appended_before_the_commit_and_nothing_shows_in_between() -> None:
    # M3.2, M3.3
    log = RecordingLog()
    fragmenter = Fragmenter(Lsn(0))
    chunks = [
        [
            wire.stream_start(9),
            DESCRIBED,
            wire.insert(1, xid=9),
            wire.stream_stop(),
        ],
        [wire.stream_start(9, first=False), wire.insert(2, xid=9), wire.stream_stop()],
        [wire.stream_commit(9, 0x2000)],
    ]
    for chunk in chunks:
        apply(log, fragmenter, _views(chunk))
        assert log.visible == []
    assert [name for name, _ in log.calls] == ["describe", "append", "append", "commit"]
    log.flush(Lsn(0x2000))
    assert log.visible == [(9, Lsn(0x2000))]


def test_complete_moves_without_commits_and_never_back() -> None:  # M3.8
    storage = MemoryStorage()
    writer = LogWriter(storage, IDENTITY, SMALL)
    writer.flush(Lsn(0x5000))
    writer.flush(Lsn(0x4000))
    assert LogReader(storage).end().lsn == 0x5000
    writer.close()
    reopened = LogWriter(storage, IDENTITY, SMALL)
    assert reopened.complete_lsn == 0x5000
    reopened.close()


def test_a_second_writer_is_refused_and_a_stale_one_is_fenced() -> None:
    storage = MemoryStorage()
    stale = LogWriter(storage, IDENTITY, SMALL)
    with pytest.raises(LogInUse):
        LogWriter(storage, IDENTITY, SMALL)
    storage._locked.clear()  # its lock was lost, as on a network file system
    newer = LogWriter(storage, IDENTITY, SMALL)
    newer.flush(Lsn(0x3000))
    with pytest.raises(LogFenced):
        stale.flush(Lsn(0x2000))
    newer.flush(Lsn(0x4000))
    assert LogReader(storage).end().lsn == 0x4000
    newer.close()


@pytest.mark.parametrize("doing", ["append", "prune", "fail"])
def test_a_stale_writer_touches_nothing_of_the_new_ones(doing: str) -> None:
    storage = MemoryStorage()
    stale = LogWriter(storage, IDENTITY, SMALL)
    storage._locked.clear()
    newer = LogWriter(storage, IDENTITY, SMALL)
    append_transaction(newer, 0x3000, wire.ITEMS, *[Insert(1000, (b"x" * 300,))] * 3)
    before = storage.read(segment_name(1)), read(storage)
    fragmenter = Fragmenter(stale.complete_lsn)
    with pytest.raises((LogFenced, LogNotWritten)):  # noqa: PT012 - one of three ways to go wrong
        if doing == "prune":
            stale.remove_segments([0])
        if doing == "fail":
            storage.fault = _fails_at(1, "write", errno.EIO)
        apply(stale, fragmenter, _views(wire.transaction(0x2000, "y" * 500)))
        stale.flush(Lsn(0x2000))
    storage.fault = lambda _operation, _name: None
    assert (storage.read(segment_name(1)), read(storage)) == before
    newer.close()


def test_what_a_failed_sync_left_behind_is_written_again_before_it_is_trusted() -> None:
    storage = MemoryStorage()
    writer = LogWriter(storage, IDENTITY, SMALL)
    append_transaction(writer, 0x2000, wire.ITEMS, Insert(1000, (b"1",)))

    def fails(operation: str, _name: str) -> None:
        if operation in ("sync", "truncate"):
            raise OSError(errno.EIO, "the disk is failing")

    storage.fault = fails
    with pytest.raises(LogNotWritten):
        append_transaction(writer, 0x3000, Insert(1000, (b"2",)))
    writer.close()
    rewritten: list[str] = []
    storage.fault = lambda operation, name: rewritten.append(f"{operation} {name}")
    LogWriter(storage, IDENTITY, SMALL).close()
    assert f"overwrite {segment_name(1)}" in rewritten
    assert rewritten.index(f"overwrite {segment_name(1)}") < rewritten.index(
        f"sync {segment_name(1)}"
    )


def test_a_commit_alone_is_something_to_flush() -> None:
    storage = MemoryStorage()
    writer = LogWriter(storage, IDENTITY, SMALL)
    fragmenter = Fragmenter(writer.complete_lsn)
    chunk = [wire.stream_start(9), DESCRIBED, wire.insert(1, xid=9), wire.stream_stop()]
    apply(writer, fragmenter, _views(chunk))
    writer.flush(writer.complete_lsn)
    assert writer.pending_bytes == 0
    apply(writer, fragmenter, _views([wire.stream_commit(9, 0x2000)]))
    assert writer.pending_bytes > 0
    writer.close()


def test_files_can_be_read_by_their_owner_only(tmp_path: Path) -> None:  # M7.3
    writer = LogWriter(tmp_path / "log", IDENTITY)
    append_transaction(writer, 0x2000, wire.ITEMS, Insert(1000, (b"1",)))
    writer.close()
    for path in [tmp_path / "log", *(tmp_path / "log").rglob("*")]:
        assert path.stat().st_mode & 0o077 == 0, path


def test_finding_a_position_costs_the_same_in_a_short_and_in_a_very_long_log() -> None:
    costs = []
    for segments in (10, 10_000):
        storage = MemoryStorage()
        writer = LogWriter(storage, IDENTITY, LogSettings(segment_bytes=65))
        for number in range(segments):
            writer.flush(Lsn(0x2000 + 16 * number))
        writer.close()
        reader = LogReader(storage)
        middle = Lsn(0x2000 + 8 * segments)
        storage.reads = 0
        assert isinstance(reader.locate(middle), Position)
        costs.append(storage.reads)
    assert costs[1] <= costs[0] + 12  # the logarithm of a thousand, and a little


class PowerCut(Exception):
    """The machine stops here."""


def _dies_after(operations: int) -> Callable[[str, str], None]:
    left = operations

    def fault(_operation: str, _name: str) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise PowerCut

    return fault


def _fails_at(
    count: int, operation: str, code: int, failed: list[str] | None = None
) -> Callable[[str, str], None]:
    """`failed` is given the name of the file."""
    left = count

    def fault(what: str, name: str) -> None:
        nonlocal left
        left -= what == operation
        if what == operation and left == 0:
            if failed is not None:
                failed.append(name)
            raise OSError(code, "as the test asked")

    return fault


def _visible(storage: MemoryStorage) -> list[object]:
    if "head" not in storage._files or "log.json" not in storage._files:
        return []
    return list(read(storage))


def _views(messages: list[bytes]) -> list[memoryview]:
    return [memoryview(message) for message in messages]


class NoSecondSegment(LocalStorage):
    """A disk that is full just when the log rolls: not even a file can be made."""

    def append_to(self, name: str) -> Appender:
        if name.endswith("2.seg"):
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().append_to(name)


def test_a_roll_without_room_is_a_full_log_and_loses_nothing(tmp_path: Path) -> None:  # M7.3
    writer = LogWriter(NoSecondSegment(tmp_path), IDENTITY, LogSettings(segment_bytes=100))
    fragmenter = Fragmenter(writer.complete_lsn)
    apply(writer, fragmenter, _views(wire.transaction(0x2000, 1, 2, 3)))
    with pytest.raises(LogFull):
        writer.flush(Lsn(0x2000))
    writer.close()
    storage = LocalStorage(tmp_path)
    LogWriter(storage, IDENTITY).close()
    assert [t.commit_lsn for t in read(storage)] == [0x2000]


def test_a_rolled_back_savepoint_is_not_read_again_to_count_its_changes() -> None:  # M3.2
    storage = MemoryStorage()
    writer = LogWriter(storage, IDENTITY, LogSettings(frame_bytes=400))
    fragmenter = Fragmenter(writer.complete_lsn)
    described = wire.relation(replace(wire.ITEMS, xid=9))
    rows = [wire.insert("x" * 50, xid=9 if row % 2 else 10 + row // 20) for row in range(400)]
    run = [wire.stream_start(9), described, *rows, wire.stream_stop(), wire.stream_abort(9, 20)]
    apply(writer, fragmenter, _views(run))
    before = storage.reads
    apply(writer, fragmenter, _views([wire.stream_commit(9, 0x3000)]))
    assert storage.reads - before == 0, "how many changes it made is known"
    writer.flush(Lsn(0x3000))
    writer.close()
    (committed,) = read(storage)
    assert sum(1 for _ in committed.changes()) == 390


def test_a_log_without_a_head_asks_for_capture() -> None:  # M7.3
    storage = MemoryStorage()
    LogWriter(storage, IDENTITY).close()
    storage.remove("head")
    with pytest.raises(LogMissing, match="head") as caught:
        LogReader(storage).end()
    assert "Start capture" in caught.value.remedy


def test_a_segment_ends_when_it_is_old() -> None:
    storage = MemoryStorage()
    writer = LogWriter(storage, IDENTITY, LogSettings(segment_age_s=0))
    for number in range(3):
        append_transaction(writer, 0x2000 + 16 * number, wire.ITEMS, Insert(1000, (b"1",)))
    assert len(storage.names("segments")) == 4
    writer.close()
    assert len(read(storage)) == 3


def test_a_reader_goes_on_when_retention_takes_the_segment_that_it_has_finished(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    storage = MemoryStorage()
    writer = LogWriter(storage, IDENTITY, LogSettings(segment_bytes=100))
    append_transaction(writer, 0x2000, wire.ITEMS, Insert(1000, (b"1",)))
    reader = LogReader(storage)
    # Right before the roll: the place is in a segment that has been read to its end.
    at_roll = Position(Lsn(0x2000), 1, storage.size(segment_name(1)))
    append_transaction(writer, 0x3000, wire.ITEMS, Insert(1000, (b"2",)))
    stale = reader.head()
    writer.remove_segments([1])
    heads = iter([stale])
    head = reader.head
    monkeypatch.setattr(reader, "head", lambda: next(heads, None) or head())
    assert [c.lsn for c in reader.commits(at_roll, reader.end())] == [0x3000]
    writer.close()


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:  # M7.3
    LogWriter(tmp_path, IDENTITY).close()
    (tmp_path / "log.json").unlink()
    (tmp_path / "log.json").mkdir()
    with pytest.raises(LogUnreadable, match=r"log\.json cannot be read"):
        LogReader(tmp_path)
