"""Runs hold what the plain reader gives, whatever the frames, and however a range is shared."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.changelog.reader import LogReader, Position
from penstock.changelog.runs import Share, runs
from penstock.changelog.settings import LogSettings
from penstock.lsn import Lsn
from penstock.testing import MemoryStorage
from support.logs import write
from support.stories import tell

SEEDS = st.integers(0, 2**32)


def changes(reader: LogReader, *shares: Share) -> list[tuple[int, int, bytes, bytes]]:
    """Commit LSN, seq, definition and payload of each change."""
    found = []
    for share in shares:
        for run in runs(reader, share):
            for index, (start, end) in enumerate(zip(run.start, run.end, strict=True)):
                payload = run.buffer[start:end]
                if run.streamed[index]:
                    payload = payload[:1] + payload[5:]
                relation = run.definitions[run.definition[index]][0]
                found.append((run.commit_lsn[index], run.seq[index], relation, payload))
    return found


def expected(reader: LogReader, after: Position, up_to: Position) -> list[tuple[object, ...]]:
    found: list[tuple[object, ...]] = []
    for transaction in reader.transactions(after, up_to):
        relation, seq = b"", 0
        for payload in transaction.payloads:
            if payload[:1] == b"R":
                relation = payload
            else:
                found.append((transaction.commit_lsn, seq, relation, payload))
                seq += 1
    return found


def a_log(seed: int, settings: LogSettings) -> tuple[LogReader, list[int]]:
    chance = random.Random(seed)
    story = tell(chance, transactions=15)
    storage = MemoryStorage()
    write(storage, story.runs(chance), chance, settings)
    return LogReader(storage), [int(t.commit_lsn) for t in story.truth()]


@settings(max_examples=60, deadline=None)
@given(SEEDS, st.sampled_from([300, 1000, 2**20]))
def test_a_range_gives_its_changes_in_commit_order_with_their_ordinals(
    seed: int, frame_bytes: int
) -> None:  # M3.3, M5.1
    reader, lsns = a_log(seed, LogSettings(segment_bytes=4_000, frame_bytes=frame_bytes))
    low, high = sorted(random.Random(seed).choices([int(reader.start().lsn), *lsns], k=2))
    after, up_to = reader.locate(Lsn(low)), reader.locate(Lsn(high))
    assert changes(reader, Share(after, up_to)) == expected(reader, after, up_to)


@settings(max_examples=30, deadline=None)
@given(SEEDS)
def test_the_fragments_of_a_commit_can_be_shared_out(seed: int) -> None:  # M5.1
    reader, _ = a_log(seed, LogSettings(frame_bytes=300))
    after = reader.start()
    for commit in list(reader.commits(after, reader.end())):
        up_to = reader.locate(commit.lsn)
        count = len(commit.fragments)
        cut = random.Random(seed).randint(0, count)
        shares = [Share(after, up_to, part) for part in ((0, cut), (cut, count))]
        assert changes(reader, *shares) == expected(reader, after, up_to)
        after = up_to
