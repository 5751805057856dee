"""Batches end where a transaction ends, and hold what fits; shares hold all of it, each once."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.changelog.planning import Limit, at_time, limited, shares
from penstock.changelog.reader import LogReader, Position
from penstock.changelog.runs import Share
from penstock.changelog.segments import SegmentReader, segment_name
from penstock.changelog.settings import LogSettings
from penstock.changelog.writer import LogWriter
from penstock.errors import LogRetired
from penstock.lsn import Lsn
from penstock.postgres.fragments import Fragmenter
from penstock.testing import MemoryStorage
from support import wire
from support.logs import IDENTITY, apply, write
from support.random_logs import crowded_log, identities, random_log
from support.repeats import repeats
from support.stories import tell

SEEDS = st.integers(0, 2**32)


@settings(max_examples=repeats(25, soak=60), deadline=None)
@given(SEEDS, st.integers(1, 30), st.one_of(st.none(), st.integers(1, 600)))
def test_batches_are_whole_transactions_that_fit_and_leave_nothing_out(
    seed: int, max_rows: int, max_bytes: int | None
) -> None:  # M5.1
    reader = random_log(seed)
    commits = list(reader.commits(reader.start(), reader.end()))
    position, taken = reader.start(), []
    while position.lsn < reader.end().lsn:
        end = limited(reader, position, reader.end(), Limit(max_bytes, max_rows))
        assert end.lsn > position.lsn, "it always goes on"
        batch = list(reader.commits(position, end))
        assert len(batch) <= 1 or sum(commit.changes for commit in batch) <= max_rows
        taken += batch
        position = end
    assert taken == commits


@settings(max_examples=repeats(25, soak=60), deadline=None)
@given(SEEDS, st.integers(1, 2_000))
def test_shares_hold_every_change_once_and_in_order(seed: int, share_bytes: int) -> None:  # M5.1
    reader = random_log(seed)
    after = limited(reader, reader.start(), reader.end(), Limit(max_rows=3))
    for up_to in (reader.end(), limited(reader, after, reader.end(), Limit(max_rows=9))):
        parts = shares(reader, after, up_to, share_bytes)
        assert identities(reader, *parts) == identities(reader, Share(after, up_to))


@settings(max_examples=repeats(25, soak=60), deadline=None)
@given(SEEDS, st.integers(1, 400))
def test_shares_of_ranges_that_end_in_the_midst_of_a_frame_hold_each_commit_once(
    seed: int, share_bytes: int
) -> None:  # M5.1
    reader = crowded_log(seed)
    everything = Share(reader.start(), reader.end())
    commits = list(reader.commits(everything.after, everything.up_to))
    for step in (1, 3):
        position, parts = reader.start(), []
        while position.lsn < reader.end().lsn:
            # As a stream goes on: from where the batch before ended.
            ahead = [commit for commit in commits if commit.lsn > position.lsn][:step]
            rows = sum(commit.changes for commit in ahead)
            up_to = limited(reader, position, reader.end(), Limit(max_rows=max(rows, 1)))
            assert position.lsn < up_to.lsn <= reader.end().lsn
            of_batch = shares(reader, position, up_to, share_bytes)
            assert all(position.lsn <= part.after.lsn for part in of_batch)
            assert all(part.up_to.lsn <= up_to.lsn for part in of_batch)
            parts += of_batch
            position = up_to
        assert identities(reader, *parts) == identities(reader, everything)
    for commit in commits:
        up_to = reader.locate(commit.lsn)
        parts = shares(reader, reader.start(), up_to, share_bytes)
        assert all(part.up_to.lsn <= up_to.lsn for part in parts)
        assert identities(reader, *parts) == identities(reader, Share(reader.start(), up_to))


def test_an_empty_range_has_no_shares() -> None:
    reader = random_log(1)
    assert shares(reader, reader.end(), reader.end()) == []


def test_a_moment_is_found_by_the_commits_around_it() -> None:
    storage = MemoryStorage()
    writer = LogWriter(storage, IDENTITY, LogSettings(segment_bytes=400, frame_bytes=150))
    fragmenter = Fragmenter(writer.complete_lsn)
    for number in range(1, 21):
        lsn = 0x2000 + 16 * number
        run = [
            *(wire.begin(lsn - 8), wire.relation(), wire.insert(number)),
            wire.commit(lsn, time_us=number * 1_000_000),
        ]
        apply(writer, fragmenter, [memoryview(message) for message in run])
        if number % 3 == 0:
            writer.flush(Lsn(lsn))
    writer.flush(Lsn(lsn))
    writer.close()
    reader = LogReader(storage)
    for second in range(1, 21):
        found = at_time(reader, datetime(2000, 1, 1, 0, 0, second, tzinfo=UTC))
        after = [commit.time_us for commit in reader.commits(found, reader.end())]
        assert after == [number * 1_000_000 for number in range(second, 21)]
    assert at_time(reader, datetime(1999, 1, 1, tzinfo=UTC)).lsn == reader.start().lsn
    assert at_time(reader, datetime(2999, 1, 1, tzinfo=UTC)) == reader.end()


BEGAN = datetime(2026, 11, 16, tzinfo=UTC)


def hourly(segments: int) -> MemoryStorage:
    """Three commits in each segment, 20 minutes apart; a segment is made every hour."""
    storage = MemoryStorage()
    writer = LogWriter(storage, IDENTITY, LogSettings(segment_bytes=1))
    fragmenter = Fragmenter(writer.complete_lsn)
    since_2000_us = (BEGAN - datetime(2000, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    for number in range(segments):
        for part in range(3):
            lsn = 0x2000 + 48 * number + 16 * part
            time_us = since_2000_us + (3 * number + part) * 1200 * 1_000_000
            run = [
                wire.begin(lsn - 8),
                wire.relation(),
                wire.insert(1),
                wire.commit(lsn, None, time_us),
            ]
            apply(writer, fragmenter, [memoryview(message) for message in run])
        writer.flush(Lsn(lsn))
    writer.close()
    for number in range(1, segments + 2):
        created_us = int((BEGAN + timedelta(hours=number - 1)).timestamp() * 1e6)
        header = replace(SegmentReader(storage, number, "log").header(), created_us=created_us)
        storage.overwrite(segment_name(number), header.pack())
    return storage


def committed_after(reader: LogReader, moment: datetime) -> list[int]:
    return [commit.lsn for commit in reader.commits(at_time(reader, moment), reader.end())]


def test_a_moment_is_found_among_segments_of_all_ages() -> None:  # M5.1
    reader = LogReader(hourly(12))
    lsns = [commit.lsn for commit in reader.commits(reader.start(), reader.end())]
    for number in range(len(lsns)):
        at = BEGAN + timedelta(minutes=20 * number)
        assert committed_after(reader, at) == lsns[number:]
        assert committed_after(reader, at + timedelta(seconds=1)) == lsns[number + 1 :]
    assert committed_after(reader, BEGAN - timedelta(days=1)) == lsns


def test_a_moment_costs_the_same_in_a_log_of_any_length() -> None:  # M5.1
    reads = {}
    for segments in (10, 640):
        storage = hourly(segments)
        reader = LogReader(storage)
        before = storage.reads
        at_time(reader, BEGAN + timedelta(hours=5))
        reads[segments] = storage.reads - before
    assert reads[640] <= reads[10] + 10, "a few more steps of a binary search"


def test_a_moment_from_before_what_retention_has_left_is_refused() -> None:  # M5.1
    storage = hourly(12)
    reader = LogReader(storage)
    lsns = [commit.lsn for commit in reader.commits(reader.start(), reader.end())]
    writer = LogWriter(storage, IDENTITY)
    before = reader.head()
    writer.remove_segments([1, 2, 3])
    for minutes in (-60, 0, 170, 180):
        with pytest.raises(LogRetired, match="no longer goes back to 2026-11-1"):
            at_time(reader, BEGAN + timedelta(minutes=minutes))
    assert committed_after(reader, BEGAN + timedelta(minutes=181)) == lsns[10:]

    # Retention while the search is under way.
    heads = iter([before])
    newest = reader.head
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(reader, "head", lambda: next(heads, None) or newest())
        assert at_time(reader, BEGAN + timedelta(minutes=181)).lsn == lsns[9]
    # Nothing is left but the last segment, in which nothing has committed.
    writer.remove_segments(range(4, 13))
    with pytest.raises(LogRetired):
        at_time(reader, BEGAN + timedelta(hours=11))
    assert at_time(reader, BEGAN + timedelta(hours=13)) == reader.end()
    writer.close()


def test_planning_reads_as_much_of_a_log_of_ten_segments_as_of_a_thousand() -> None:  # M5.1
    reads = {}
    for transactions in (40, 2_000):
        chance = random.Random(5)
        storage = MemoryStorage()
        story = tell(chance, transactions=transactions)
        write(storage, story.runs(chance), chance, LogSettings(600, 3600, 300))
        reader = LogReader(storage)
        after: Position = reader.locate(list(reader.commits(reader.start(), reader.end()))[-5].lsn)
        before = storage.reads
        shares(reader, after, limited(reader, after, reader.end(), Limit(max_rows=100)))
        reads[transactions] = storage.reads - before
    assert reads[2_000] <= reads[40] + 5
