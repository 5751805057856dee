"""Torn tails and damage: recovery gives exactly the committed prefix, or names the place."""

from __future__ import annotations

import copy
import random

import pytest

from penstock.changelog.recovery import find_end
from penstock.changelog.segments import segment_name
from penstock.changelog.settings import LogSettings
from penstock.changelog.writer import LogWriter
from penstock.errors import LogCorrupt, LogFormatUnknown
from penstock.postgres.transaction import Transaction
from penstock.testing import MemoryStorage
from support.logs import IDENTITY, read, write
from support.stories import tell

ONE_SEGMENT = LogSettings(segment_bytes=2**20, frame_bytes=400)
SEGMENT = segment_name(1)


def a_log(seed: int = 5) -> tuple[MemoryStorage, list[Transaction]]:
    chance = random.Random(seed)
    story = tell(chance, transactions=10)
    storage = MemoryStorage()
    write(storage, story.runs(chance), chance, ONE_SEGMENT)
    return storage, story.truth()


def recovered(storage: MemoryStorage) -> list[Transaction]:
    LogWriter(storage, IDENTITY, ONE_SEGMENT).close()
    return read(storage)


def test_cut_at_every_byte_without_a_head_it_gives_the_committed_prefix() -> None:  # M3.4
    whole, truth = a_log()
    lengths = set()
    for size in range(64, whole.size(SEGMENT)):
        storage = copy.deepcopy(whole)
        storage.remove("head")
        del storage._files[SEGMENT].data[size:]
        found = recovered(storage)
        assert found == truth[: len(found)]
        lengths.add(len(found))
    assert 0 in lengths
    assert len(lengths) >= 3


def test_cut_before_what_the_head_promised_it_is_damage() -> None:  # M3.4
    whole, _ = a_log()
    for size in range(64, whole.size(SEGMENT), 7):
        storage = copy.deepcopy(whole)
        del storage._files[SEGMENT].data[size:]
        with pytest.raises(LogCorrupt) as caught:
            recovered(storage)
        assert caught.value.byte_pos == size  # type: ignore[attr-defined]


def test_any_flipped_byte_is_never_a_wrong_change() -> None:  # M3.4
    whole, truth = a_log()
    outcomes = set()
    for at in range(whole.size(SEGMENT)):
        for head in (True, False):
            storage = copy.deepcopy(whole)
            storage._files[SEGMENT].data[at] ^= 1 << (at % 8)
            if not head:
                storage.remove("head")
            try:
                found = recovered(storage)
            except LogFormatUnknown:
                assert 8 <= at < 12
            except LogCorrupt:
                outcomes.add("named")
            else:
                outcomes.add("prefix")
                assert found == truth[: len(found)]
                # Only an unsynced tail may be dropped; all of this was covered by the head.
                assert not head or found == truth
    assert "named" in outcomes


def test_a_damaged_head_is_made_anew() -> None:
    whole, truth = a_log()
    for at in range(72):
        storage = copy.deepcopy(whole)
        storage._files["head"].data[at] ^= 0x10
        assert recovered(storage) == truth


def test_a_segment_that_was_being_made_is_dropped() -> None:
    whole, truth = a_log()
    for size in (0, 1, 63):
        storage = copy.deepcopy(whole)
        storage.append_to(segment_name(2)).write(b"PENSTOCK" + bytes(size))
        del storage._files[segment_name(2)].data[size:]
        assert recovered(storage) == truth
        assert storage.names("segments") == ["0000000001.seg"]


def test_a_segment_that_a_newer_version_has_begun_is_kept() -> None:  # M7.4
    storage, _ = a_log()
    header = bytearray(storage.read(SEGMENT, 0, 64))
    header[8] = 2
    storage.append_to(segment_name(2)).write(bytes(header))
    with pytest.raises(LogFormatUnknown):
        recovered(storage)
    assert storage.names("segments") == ["0000000001.seg", "0000000002.seg"]


def test_a_missing_segment_is_damage() -> None:
    chance = random.Random(3)
    storage = MemoryStorage()
    write(storage, tell(chance).runs(chance), chance, LogSettings(800, 3600, 400))
    names = storage.names("segments")
    assert len(names) >= 3
    for name in names:
        broken = copy.deepcopy(storage)
        broken.remove(f"segments/{name}")
        with pytest.raises(LogCorrupt, match="missing"):
            find_end(broken, "log")
