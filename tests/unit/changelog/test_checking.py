"""`check_log` finds every fault that the format can show, and reads a log in large pieces."""

from __future__ import annotations

import copy
import random
import struct
import zlib
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.changelog.checking import Checked, check_log
from penstock.changelog.format import (
    COMMIT,
    FRAGMENT,
    FRAME_HEADER_SIZE,
    REFERENCE,
    RELATION,
    FrameKind,
)
from penstock.changelog.frames import FrameAt
from penstock.changelog.reader import LogReader
from penstock.changelog.segments import segment_name
from penstock.errors import LogCorrupt
from penstock.testing import MemoryStorage
from support.random_logs import one_frame_each, random_log

SEGMENT = segment_name(1)
# Counts stand in front of a frame's arrays.
COUNTS = 24


def frames_of(storage: MemoryStorage) -> list[FrameAt]:
    reader = LogReader(storage)
    return [
        frame
        for frame in reader.frames(reader.start(), reader.end())
        if frame.header.kind is FrameKind.CHANGES
    ]


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32))
def test_a_whole_log_has_no_damage_and_its_content_is_counted(seed: int) -> None:  # M3.4
    reader = random_log(seed)
    commits = list(reader.commits(reader.start(), reader.end()))
    head = reader.head()
    ends = {
        number: reader.visible_end(number, head)
        for number in range(head.first_segment, head.last_segment + 1)
    }
    walks = (reader.segment(number).walk(0, end) for number, end in ends.items())
    assert check_log(reader) == Checked(
        segments=len(ends),
        frames=sum(len(frames) for walk in walks for frames in walk),
        transactions=len(commits),
        changes=sum(commit.changes for commit in commits),
        size=sum(ends.values()),
    )


def test_a_flipped_bit_is_found_in_its_frame_among_many() -> None:  # M3.4
    whole = one_frame_each(60)
    chance = random.Random(7)
    for frame in chance.sample(frames_of(whole), 20):
        for at in chance.sample(range(frame.position, frame.end), 8):
            storage = copy.deepcopy(whole)
            storage._files[SEGMENT].data[at] ^= 1 << chance.randrange(8)
            with pytest.raises(LogCorrupt) as caught:
                check_log(LogReader(storage))
            assert vars(caught.value)["byte_pos"] == frame.position


def lsn_of_before(meta: bytearray, before: bytes) -> None:
    """The commit of the frame before once more."""
    at = COUNTS + FRAGMENT.itemsize + RELATION.itemsize
    meta[at : at + 8] = before[at : at + 8]


def no_such_fragment(meta: bytearray, _before: bytes) -> None:
    at = COUNTS + FRAGMENT.itemsize + RELATION.itemsize + COMMIT.itemsize
    struct.pack_into("<I", meta, at + 16, 1)


def fragment_of_relation(meta: bytearray, _before: bytes) -> None:
    """A position at which a frame stands that is none of changes."""
    at = COUNTS + FRAGMENT.itemsize + RELATION.itemsize + COMMIT.itemsize
    meta[at + 8 : at + 16] = meta[COUNTS + FRAGMENT.itemsize + 8 : COUNTS + FRAGMENT.itemsize + 16]


def described_by_itself(meta: bytearray, _before: bytes) -> None:
    at = COUNTS + FRAGMENT.itemsize + RELATION.itemsize + COMMIT.itemsize
    meta[COUNTS + FRAGMENT.itemsize + 8 : COUNTS + FRAGMENT.itemsize + 16] = meta[at + 8 : at + 16]


@pytest.mark.parametrize(
    ("edit", "problem"),
    [
        (lsn_of_before, "out of order"),
        (no_such_fragment, "a commit refers to no fragment"),
        (fragment_of_relation, "description is cut off"),
        (described_by_itself, "a table's description is not where it should be"),
    ],
)
def test_a_frame_that_is_whole_and_wrong_is_damage(
    edit: Callable[[bytearray, bytes], None], problem: str
) -> None:  # M3.4
    storage = one_frame_each(60)
    before, frame = frames_of(storage)[30:32]
    data = storage._files[SEGMENT].data
    low = frame.position + FRAME_HEADER_SIZE
    high = low + frame.header.meta_size
    assert high - low == sum(
        (COUNTS, *(kind.itemsize for kind in (FRAGMENT, RELATION, COMMIT, REFERENCE)))
    )
    meta = bytearray(data[low:high])
    edit(meta, bytes(data[before.position + FRAME_HEADER_SIZE :][: high - low]))
    data[low:high] = meta
    struct.pack_into("<I", data, frame.position + 28, zlib.crc32(meta))
    header = data[frame.position + 8 : low]
    struct.pack_into("<I", data, frame.position + 4, zlib.crc32(header))
    with pytest.raises(LogCorrupt, match=problem):
        check_log(LogReader(storage))


def test_checking_is_not_done_frame_by_frame() -> None:  # M3.5
    reads = {}
    for transactions in (20, 2_000):
        storage = one_frame_each(transactions)
        reader = LogReader(storage)
        before = storage.reads
        assert check_log(reader).transactions == transactions
        reads[transactions] = storage.reads - before
    assert reads[2_000] <= reads[20] + 10
