"""Keeping the log small: what retention decides is read from the files here, and carried out."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Literal

from penstock.changelog.consumers import Consumer, consumers, invalidate
from penstock.changelog.retention import SegmentFacts, removable, to_invalidate
from penstock.changelog.writer import LogWriter


@dataclass(frozen=True, slots=True)
class RetentionSettings:
    # Long enough to look at yesterday's changes, or to add a consumer that replays them.
    min_age_s: float = 24 * 3600.0
    # None: no limit.
    max_bytes: int | None = None
    on_full: Literal["wait", "invalidate"] = "wait"


@dataclass(frozen=True, slots=True)
class Pruned:
    segments: tuple[int, ...]
    freed_bytes: int
    invalidated: tuple[str, ...]
    # Still beyond the budget: nothing more may go.
    full: bool


def prune(writer: LogWriter, settings: RetentionSettings) -> Pruned:
    """Remove what may go. Beyond the budget the minimum age no longer counts, and with
    `invalidate` neither do the slowest consumers."""
    gone: list[SegmentFacts] = []
    released: list[str] = []
    while True:
        segments = writer.segment_facts()
        counted = _counted(writer)
        excess = _excess(segments, settings)
        numbers = removable(
            segments,
            applied=[consumer.applied_lsn for consumer in counted],
            open_segment=writer.oldest_open_segment,
            now_s=time.time(),
            min_age_s=0.0 if excess > 0 else settings.min_age_s,
        )
        if excess > 0:
            numbers = _just_enough(segments, numbers, excess)
        writer.remove_segments(numbers)
        gone += [segment for segment in segments if segment.number in numbers]
        if settings.on_full == "wait":
            break
        segments = writer.segment_facts()
        slowest = to_invalidate(
            segments,
            applied={consumer.name: consumer.applied_lsn for consumer in counted},
            excess_bytes=_excess(segments, settings),
        )
        if slowest is None:
            break
        invalidate(writer.storage, next(c for c in counted if c.name == slowest))
        released.append(slowest)
    return Pruned(
        tuple(segment.number for segment in gone),
        sum(segment.size for segment in gone),
        tuple(released),
        _excess(writer.segment_facts(), settings) > 0,
    )


def _counted(writer: LogWriter) -> list[Consumer]:
    return [consumer for consumer in consumers(writer.storage) if not consumer.invalidated]


def _excess(segments: list[SegmentFacts], settings: RetentionSettings) -> int:
    if settings.max_bytes is None:
        return 0
    return sum(segment.size for segment in segments) - settings.max_bytes


def _just_enough(segments: list[SegmentFacts], numbers: list[int], excess: int) -> list[int]:
    """No more of them than the budget asks for: what is young and fits is kept."""
    chosen: list[int] = []
    for segment in segments:
        if segment.number not in numbers or excess <= 0:
            break
        chosen.append(segment.number)
        excess -= segment.size
    return chosen
