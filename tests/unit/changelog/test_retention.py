"""Which segments may go, by example and against a model that knows who needs what."""

from __future__ import annotations

import errno
import random
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.changelog import consumers
from penstock.changelog.checking import check_log
from penstock.changelog.format import Compression
from penstock.changelog.maintenance import prune
from penstock.changelog.reader import LogReader
from penstock.changelog.retention import SegmentFacts, removable
from penstock.changelog.segments import segment_numbers
from penstock.changelog.settings import LogSettings, RetentionSettings
from penstock.changelog.storage import LocalStorage
from penstock.changelog.writer import LogWriter
from penstock.errors import (
    ConsumerInvalidated,
    ConsumerUnwritable,
    LogForeignPosition,
    LogRetired,
)
from penstock.lsn import Lsn
from penstock.postgres.fragments import Fragmenter
from penstock.testing import MemoryStorage
from support import wire
from support.logs import IDENTITY, apply, read, write
from support.stories import tell

TINY = LogSettings(segment_bytes=600, frame_bytes=300, compression=Compression.NONE)
AT_ONCE = RetentionSettings(min_age_s=0)
LOG_ID = str(IDENTITY.log_id)

# As it comes inside a chunk of transaction 9.
DESCRIBED = wire.relation(replace(wire.ITEMS, xid=9))


def facts(*refers_to: int) -> list[SegmentFacts]:
    """Segments 1, 2, 3, … that end at LSN 100, 200, 300, …"""
    return [
        SegmentFacts(number, Lsn(100 * number), refers, sealed_at_s=0.0, size=10)
        for number, refers in enumerate(refers_to, start=1)
    ]


def gone(
    segments: list[SegmentFacts], *applied: int, open_segment: int = 0, age: float = 0
) -> list[int]:
    return removable(
        segments,
        applied=[Lsn(lsn) for lsn in applied],
        open_segment=open_segment,
        now_s=100.0,
        min_age_s=age,
    )


def test_what_everybody_has_applied_goes_and_the_last_segment_stays() -> None:
    assert gone(facts(0, 0, 0, 0), 400, 250) == [1, 2]
    assert gone(facts(0, 0, 0, 0), 400) == [1, 2, 3]
    assert gone(facts(0, 0, 0, 0), 99) == []


def test_without_consumers_age_alone_decides() -> None:
    assert gone(facts(0, 0, 0)) == [1, 2]
    assert gone(facts(0, 0, 0), age=101) == []


def test_an_open_transaction_keeps_its_oldest_fragment_and_all_behind_it() -> None:
    assert gone(facts(0, 0, 0, 0), 400, open_segment=2) == [1]


def test_a_commit_that_is_not_applied_keeps_the_segments_of_its_fragments() -> None:
    assert gone(facts(0, 0, 0, 2, 0), 350) == [1]
    assert gone(facts(0, 0, 0, 2, 0), 400) == [1, 2, 3, 4]


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32))
def test_nothing_goes_that_a_consumer_still_needs(seed: int) -> None:
    chance = random.Random(seed)
    story = tell(chance, transactions=20)
    storage = MemoryStorage()
    write(storage, story.runs(chance), chance, TINY)
    truth = story.truth()
    positions = [IDENTITY.start_lsn, *(t.commit_lsn for t in truth)]
    applied = sorted(chance.choices(positions, k=2))
    for name, lsn in zip(("slow", "fast"), applied, strict=True):
        consumers.register(storage, name, LOG_ID, lsn)
    writer = LogWriter(storage, IDENTITY, TINY)
    prune(writer, AT_ONCE)
    writer.close()
    reader = LogReader(storage)
    for lsn in applied:
        found = list(reader.transactions(reader.locate(lsn), reader.end()))
        assert found == [t for t in truth if t.commit_lsn > lsn]


@pytest.mark.parametrize("written", [False, True], ids=["collected", "written"])
def test_a_commit_that_is_not_yet_durable_keeps_the_segments_of_its_fragments(
    written: bool,
) -> None:  # M3.5
    storage = MemoryStorage()
    writer = LogWriter(storage, IDENTITY, TINY)
    fragmenter = Fragmenter(writer.complete_lsn)

    def send(*messages: bytes) -> None:
        apply(writer, fragmenter, [memoryview(message) for message in messages])

    send(wire.stream_start(9), DESCRIBED, wire.insert("early", xid=9), wire.stream_stop())
    for number in range(1, 40):
        send(*wire.transaction(0x2000 + 16 * number, *range(5)))
        writer.flush(Lsn(0x2000 + 16 * number))
    consumers.register(storage, "quick", LOG_ID, writer.complete_lsn)
    send(wire.stream_commit(9, 0x9000))
    if written:
        size = writer.pending_bytes
        send(*wire.transaction(0x9010, *range(40)))
        assert writer.pending_bytes > size
    prune(writer, AT_ONCE)
    writer.flush(Lsn(0x9100))
    reader = LogReader(storage)
    last = list(reader.transactions(reader.locate(Lsn(0x8000)), reader.end()))
    assert last[0].xid == 9
    writer.close()


def test_a_long_open_transaction_in_old_segments_survives_pruning() -> None:
    storage = MemoryStorage()
    writer = LogWriter(storage, IDENTITY, TINY)
    fragmenter = Fragmenter(writer.complete_lsn)

    def send(*messages: bytes) -> None:
        apply(writer, fragmenter, [memoryview(message) for message in messages])

    send(
        wire.stream_start(9),
        DESCRIBED,
        wire.insert("early", xid=9),
        wire.stream_stop(),
    )
    for number in range(1, 40):
        send(*wire.transaction(0x2000 + 16 * number, *range(5)))
        writer.flush(Lsn(0x2000 + 16 * number))
        consumers.register(storage, "quick", LOG_ID, writer.complete_lsn)
        prune(writer, AT_ONCE)
    assert writer.oldest_open_segment == 1
    send(wire.stream_commit(9, 0x9000))
    writer.flush(Lsn(0x9000))
    assert writer.oldest_open_segment == 0
    prune(writer, AT_ONCE)
    # The transaction is committed but not applied: its early fragment is still there.
    reader = LogReader(storage)
    last = list(reader.transactions(reader.locate(Lsn(0x8000)), reader.end()))
    assert [t.xid for t in last] == [9]
    consumers.register(storage, "quick", LOG_ID, writer.complete_lsn)
    assert len(prune(writer, AT_ONCE).segments) > 5
    writer.close()
    with pytest.raises(LogRetired):
        reader.locate(Lsn(0x2010))


def long_log(storage: MemoryStorage) -> LogWriter:
    writer = LogWriter(storage, IDENTITY, TINY)
    fragmenter = Fragmenter(writer.complete_lsn)
    for number in range(1, 21):
        messages = wire.transaction(0x2000 + 16 * number, *range(10))
        apply(writer, fragmenter, [memoryview(message) for message in messages])
        writer.flush(Lsn(0x2000 + 16 * number))
    return writer


def test_at_the_budget_young_segments_go_but_only_as_many_as_it_takes() -> None:
    storage = MemoryStorage()
    writer = long_log(storage)
    total = sum(segment.size for segment in writer.segment_facts())
    outcome = prune(writer, RetentionSettings(min_age_s=3600, max_bytes=total // 2))
    left = sum(segment.size for segment in writer.segment_facts())
    assert total // 2 - 1000 < left <= total // 2
    assert outcome.freed_bytes == total - left
    assert outcome.up_to_lsn == LogReader(storage).start().lsn
    assert not outcome.full
    assert outcome.invalidated == ()
    writer.close()


def test_history_beyond_its_limit_goes_however_young_and_nothing_that_is_needed() -> None:
    storage = MemoryStorage()
    writer = long_log(storage)
    total = sum(segment.size for segment in writer.segment_facts())
    settings = RetentionSettings(min_age_s=3600, history_bytes=total // 4)
    consumers.register(storage, "slow", LOG_ID, IDENTITY.start_lsn)
    outcome = prune(writer, settings)
    assert (outcome.segments, outcome.full, outcome.history_bytes) == ((), False, 0)
    consumers.register(storage, "slow", LOG_ID, Lsn(0x2000 + 16 * 10))
    outcome = prune(writer, settings)
    left = writer.segment_facts()
    assert outcome.log_bytes == sum(segment.size for segment in left)
    assert total // 4 - 1000 < outcome.history_bytes <= total // 4
    # It was half of the log, of which the younger half is kept.
    assert LogReader(storage).start().lsn < Lsn(0x2000 + 16 * 10)
    assert prune(writer, RetentionSettings(min_age_s=3600)).segments == ()
    assert prune(writer, settings).segments == ()
    writer.close()


def test_wait_keeps_everything_and_says_that_the_log_is_full() -> None:
    storage = MemoryStorage()
    writer = long_log(storage)
    consumers.register(storage, "slow", LOG_ID, IDENTITY.start_lsn)
    before = read(storage)
    outcome = prune(writer, RetentionSettings(min_age_s=0, max_bytes=1000))
    assert outcome.full
    assert read(storage) == before
    writer.close()


def test_invalidate_releases_the_slowest_consumer_only_and_it_hears_of_it() -> None:
    storage = MemoryStorage()
    writer = long_log(storage)
    consumers.register(storage, "slow", LOG_ID, Lsn(0x2010))
    consumers.register(storage, "quick", LOG_ID, writer.complete_lsn)
    settings = RetentionSettings(min_age_s=0, max_bytes=1000, on_full="invalidate")
    outcome = prune(writer, settings)
    assert outcome.invalidated == ("slow",)
    assert not outcome.full
    with pytest.raises(ConsumerInvalidated):
        consumers.register(storage, "slow", LOG_ID, Lsn(0x2020))
    consumers.register(storage, "quick", LOG_ID, writer.complete_lsn)
    writer.close()


def test_a_chain_of_references_holds_nothing_back() -> None:
    # Transactions that straddle every roll: each segment refers to the one before.
    assert gone(facts(0, 1, 2, 3, 4, 5), 600) == [1, 2, 3, 4, 5]
    assert gone(facts(0, 1, 2, 3, 4, 5), 450) == [1, 2, 3]


def test_a_reader_that_starts_at_the_beginning_skips_what_can_no_longer_be_read() -> None:
    storage = MemoryStorage()
    writer = LogWriter(storage, IDENTITY, TINY)
    fragmenter = Fragmenter(writer.complete_lsn)

    def send(*messages: bytes) -> None:
        apply(writer, fragmenter, [memoryview(message) for message in messages])

    committed = []
    for xid in range(9, 15):
        # Each begins in one segment, and commits in the next.
        described = wire.relation(replace(wire.ITEMS, xid=xid))
        rows = (wire.insert("x" * 50, xid=xid) for _ in range(8))
        send(wire.stream_start(xid), described, *rows, wire.stream_stop())
        writer.flush(writer.complete_lsn)
        if xid > 9:
            committed.append(0x2000 + 16 * xid)
            send(wire.stream_commit(xid - 1, committed[-1]))
            writer.flush(Lsn(committed[-1]))
    send(wire.stream_abort(14))
    consumers.register(storage, "quick", LOG_ID, Lsn(committed[2]))
    removed = prune(writer, AT_ONCE).segments
    assert removed
    reader = LogReader(storage)
    assert reader.start().lsn <= committed[2]
    found = [t.commit_lsn for t in reader.transactions(reader.start(), reader.end())]
    assert found == committed[len(committed) - len(found) :]
    assert len(found) >= len(committed) - 3
    assert check_log(reader).transactions >= len(found)
    writer.close()


def test_invalidate_releases_nobody_if_that_frees_nothing() -> None:
    storage = MemoryStorage()
    writer = LogWriter(storage, IDENTITY, TINY)
    fragmenter = Fragmenter(writer.complete_lsn)
    # An open transaction larger than the budget: no consumer is to blame.
    chunk = [wire.stream_start(9), DESCRIBED, *(wire.insert("x" * 50, xid=9) for _ in range(60))]
    apply(writer, fragmenter, [memoryview(message) for message in [*chunk, wire.stream_stop()]])
    writer.flush(Lsn(0x2000))
    consumers.register(storage, "quick", LOG_ID, IDENTITY.start_lsn)
    for on_full in ("invalidate", "wait"):
        outcome = prune(writer, RetentionSettings(0, 1000, on_full))
        assert outcome.invalidated == ()
        assert not outcome.full
        assert outcome.over_budget
    writer.close()


def test_a_consumer_of_another_log_is_refused() -> None:  # M3.9
    storage = MemoryStorage()
    consumers.register(storage, "mine", LOG_ID, Lsn(1))
    with pytest.raises(LogForeignPosition):
        consumers.register(storage, "mine", "another", Lsn(1))
    assert consumers.forget(storage, "mine")
    assert not consumers.forget(storage, "mine")


def test_removing_segments_shows_nothing_that_is_not_synced() -> None:  # M1.8, M3.3
    storage = MemoryStorage()
    writer = LogWriter(storage, IDENTITY, TINY)
    fragmenter = Fragmenter(writer.complete_lsn)
    for number in range(1, 21):
        messages = wire.transaction(0x2000 + 16 * number, *range(10))
        apply(writer, fragmenter, [memoryview(message) for message in messages])
        if number <= 10:
            writer.flush(Lsn(0x2000 + 16 * number))
    # Frames with commits are written by now, and not synced.
    assert writer.pending_bytes > 2 * TINY.frame_bytes
    assert prune(writer, AT_ONCE).segments
    assert writer.complete_lsn == LogReader(storage).end().lsn == 0x2000 + 16 * 10
    after = storage.crash(random.Random(1))
    again = LogWriter(after, IDENTITY, TINY)
    committed = [t.commit_lsn for t in read(after)]
    assert again.complete_lsn == committed[-1], "no commit is skipped when it comes again"


def test_after_a_crash_in_the_midst_of_pruning_the_log_is_whole_and_leftovers_go() -> None:
    leftovers = set()
    for seed in range(50):
        chance = random.Random(seed)
        storage = MemoryStorage()
        writer = long_log(storage)
        consumers.register(storage, "slow", LOG_ID, Lsn(0x2000 + 16 * 10))
        removed = prune(writer, AT_ONCE).segments
        after = storage.crash(chance)
        leftovers.add(len(set(segment_numbers(after)) & set(removed)))
        LogWriter(after, IDENTITY, TINY).close()
        assert not set(segment_numbers(after)) & set(removed)
        reader = LogReader(after)
        kept = reader.transactions(reader.locate(Lsn(0x2000 + 16 * 10)), reader.end())
        assert [t.commit_lsn for t in kept] == [0x2000 + 16 * n for n in range(11, 21)]
    assert len(leftovers) > 2, "some of the removals were undone"


def test_a_check_bears_that_segments_go_meanwhile() -> None:
    storage = MemoryStorage()
    writer = long_log(storage)
    reader = LogReader(storage)
    last = writer.segment_facts()[-1].number

    def remove_some(number: int) -> None:
        if number == 3:
            writer.remove_segments(range(1, 6))

    checked = check_log(reader, remove_some)
    assert checked.segments == 2 + last - 5
    writer.close()


def test_a_reader_elsewhere_follows_while_segments_roll_and_go(tmp_path: Path) -> None:  # M3.3
    directory = tmp_path / "log"
    settings = LogSettings(segment_bytes=2_000, frame_bytes=500)
    writer = LogWriter(directory, IDENTITY, settings)
    storage = LocalStorage(directory)
    consumers.register(storage, "follower", LOG_ID, IDENTITY.start_lsn)
    seen: list[int] = []
    done = threading.Event()

    def follow() -> None:
        reader = LogReader(directory)
        position = reader.start()
        while len(seen) < 500 and not done.is_set():
            if reader.wait(position.lsn, 1.0):
                end = reader.end()
                seen.extend(int(commit.lsn) for commit in reader.commits(position, end))
                position = end
                consumers.register(storage, "follower", LOG_ID, end.lsn)

    follower = threading.Thread(target=follow)
    follower.start()
    fragmenter = Fragmenter(writer.complete_lsn)
    removed = 0
    try:
        for number in range(1, 501):
            messages = wire.transaction(0x2000 + 16 * number, *range(5))
            apply(writer, fragmenter, [memoryview(message) for message in messages])
            writer.flush(Lsn(0x2000 + 16 * number))
            removed += len(prune(writer, AT_ONCE).segments)
        follower.join(30)
    finally:
        done.set()
        follower.join()
        writer.close()
    assert seen == [0x2000 + 16 * number for number in range(1, 501)]
    assert removed > 10


def test_a_consumer_that_may_not_write_is_told_so() -> None:  # M7.3
    class ReadOnly(MemoryStorage):
        def replace(self, name: str, data: bytes) -> None:
            raise PermissionError(errno.EACCES, "Permission denied")

    with pytest.raises(
        ConsumerUnwritable, match=r"Permission denied.*leave out the option"
    ) as caught:
        consumers.register(ReadOnly(), "mine", "log", Lsn(1))
    assert 'consumer "mine" cannot be registered' in caught.value.problem
