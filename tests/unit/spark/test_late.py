"""Tasks that read on: whatever was planned, each change is read once, and ranges join up."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.changelog.planning import shares
from penstock.changelog.reader import LogReader, Position
from penstock.changelog.runs import Share
from penstock.decode.deltas import WantedDeltas
from penstock.spark import late, reading
from penstock.spark.late import LateStreamReader, read_late
from penstock.spark.options import SourceOptions
from penstock.spark.reading import Part
from support.random_logs import crowded_log, identities, random_log
from support.repeats import repeats


class Growing(LogReader):
    """A log of which only the beginning is there yet."""

    until: Position

    def end(self) -> Position:
        return self.until


def growing(log: LogReader) -> tuple[Growing, list[Position]]:
    """With all positions at which it may have ended."""
    places = [log.locate(commit.lsn) for commit in log.commits(log.start(), log.end())]
    return Growing(log.storage), [log.start(), *places, log.end()]


def planned(log: LogReader, after: Position, up_to: Position) -> list[Part]:
    options = SourceOptions.parse({"path": "-", "tables": "*", "batchRange": "true"})
    parts = LateStreamReader(options, WantedDeltas(()))._parts(log, after, up_to)
    return [part for part in parts if isinstance(part, Part)]


@pytest.mark.parametrize("written", [random_log, crowded_log])
@settings(max_examples=repeats(25, soak=60), deadline=None)
@given(seed=st.integers(0, 2**32), share_bytes=st.integers(1, 2_000), most=st.integers(0, 2_000))
def test_batches_of_both_kinds_hold_each_change_once_and_in_order(
    written: Callable[[int], LogReader], seed: int, share_bytes: int, most: int
) -> None:  # M5.3
    chance = random.Random(seed)
    log, places = growing(written(seed))
    start = plan = reached = places[0]
    found: list[tuple[int, int]] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reading, "shares", partial(shares, share_bytes=share_bytes))
        patch.setattr(late, "_MOST_BYTES", most)
        while reached.lsn < places[-1].lsn:
            # Planned up to somewhere; when it is read there may be more.
            at, log.until = sorted(
                chance.choices([place for place in places if place.lsn >= plan.lsn], k=2),
                key=lambda place: place.lsn,
            )
            parts = planned(log, plan, at)
            to_the_end = chance.random() < 0.7
            parts = [read_late(log, part, reached.lsn, to_the_end=to_the_end) for part in parts]
            (covered,) = (part.covered for part in parts if part.covered)
            assert covered[0].lsn == reached.lsn
            assert max(at.lsn, reached.lsn) <= covered[1].lsn <= max(log.until.lsn, reached.lsn)
            found += identities(log, *(share for part in parts for share in part.shares))
            plan, reached = at, covered[1]
            assert found == identities(log, Share(start, log.locate(reached.lsn)))


def test_a_little_more_is_read_with_a_batch_and_much_is_left_to_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # M5.3
    log, (start, first, *_, last) = growing(random_log(1))
    log.until = last
    part = planned(log, start, first)[-1]
    assert read_late(log, part, start.lsn, to_the_end=True) == Part(
        (Share(start, last),), (start, last)
    )
    assert read_late(log, part, start.lsn, to_the_end=False) == part
    monkeypatch.setattr(late, "_MOST_BYTES", 10)
    assert read_late(log, part, start.lsn, to_the_end=True) == part


def test_without_being_told_a_task_reads_what_was_planned() -> None:  # M5.1
    log, (start, first, *_, last) = growing(random_log(1))
    log.until = last
    part = planned(log, start, first)[-1]
    options = SourceOptions.parse({"path": "-", "tables": "*"})
    assert LateStreamReader(options, WantedDeltas(()))._read_now(log, part) == part
