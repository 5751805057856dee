"""Keeping the log small: what retention decides is read from the files here, and carried out."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from penstock.changelog.consumers import Consumer, consumers, forget_left, invalidate
from penstock.changelog.retention import SegmentFacts, removable
from penstock.changelog.settings import RetentionSettings
from penstock.changelog.writer import LogWriter
from penstock.lsn import Lsn


@dataclass(frozen=True, slots=True)
class Pruned:
    segments: tuple[int, ...]
    # Every commit in them is at or below; None: none was removed.
    up_to_lsn: Lsn | None
    freed_bytes: int
    invalidated: tuple[str, ...]
    # Beyond the budget, and consumers hold segments back: waiting for them helps.
    full: bool
    # Beyond the budget, and nobody does: an open transaction needs what is there.
    over_budget: bool
    # What is left, and the part of it that is only kept for its age.
    log_bytes: int = 0
    history_bytes: int = 0


def prune(writer: LogWriter, settings: RetentionSettings) -> Pruned:
    """Remove what may go. Beyond the budget the minimum age no longer counts, and with
    `invalidate` neither do the slowest consumers, as far as that frees anything. The age does not
    count either for history, the part that nobody needs any more, beyond its own limit.
    """
    with writer.failures():
        return _prune(writer, settings)


def _prune(writer: LogWriter, settings: RetentionSettings) -> Pruned:
    gone: list[SegmentFacts] = []
    released: list[str] = []
    forget_left(writer.storage)
    while True:
        segments = writer.segment_facts()
        counted = [consumer for consumer in consumers(writer.storage) if not consumer.invalidated]
        excess = _excess(segments, settings)
        numbers = _removable(writer, segments, counted, 0.0 if excess > 0 else settings.min_age_s)
        if excess > 0:
            numbers = _just_enough(segments, numbers, excess)
        numbers = max(numbers, _beyond_history(writer, segments, counted, settings), key=len)
        writer.remove_segments(numbers)
        gone += [segment for segment in segments if segment.number in numbers]
        segments = writer.segment_facts()
        excess = _excess(segments, settings)
        held_back = excess > 0 and bool(_removable(writer, segments, [], 0.0))
        if not held_back or settings.on_full == "wait":
            break
        slowest = min(counted, key=lambda consumer: consumer.applied_lsn)
        invalidate(writer.storage, slowest)
        released.append(slowest.name)
    history = _removable(writer, segments, counted, 0.0)
    return Pruned(
        tuple(segment.number for segment in gone),
        gone[-1].last_lsn if gone else None,
        sum(segment.size for segment in gone),
        tuple(released),
        full=held_back,
        over_budget=excess > 0 and not held_back,
        log_bytes=_size(segments),
        history_bytes=_size(segments, history),
    )


def _removable(
    writer: LogWriter,
    segments: Sequence[SegmentFacts],
    counted: Sequence[Consumer],
    min_age_s: float,
) -> list[int]:
    return removable(
        segments,
        applied=[consumer.applied_lsn for consumer in counted],
        open_segment=writer.oldest_open_segment,
        now_s=time.time(),
        min_age_s=min_age_s,
    )


def _beyond_history(
    writer: LogWriter,
    segments: Sequence[SegmentFacts],
    counted: Sequence[Consumer],
    settings: RetentionSettings,
) -> list[int]:
    """Return the oldest of those that are kept for their age only, beyond the limit of these."""
    if settings.history_bytes is None:
        return []
    history = _removable(writer, segments, counted, 0.0)
    return _just_enough(segments, history, _size(segments, history) - settings.history_bytes)


def _size(segments: Sequence[SegmentFacts], numbers: Sequence[int] | None = None) -> int:
    return sum(each.size for each in segments if numbers is None or each.number in numbers)


def _excess(segments: Sequence[SegmentFacts], settings: RetentionSettings) -> int:
    if settings.max_bytes is None:
        return 0
    return _size(segments) - settings.max_bytes


def _just_enough(
    segments: Sequence[SegmentFacts], numbers: Sequence[int], excess: int
) -> list[int]:
    """No more of them than the budget asks for: what is young and fits is kept."""
    chosen: list[int] = []
    for segment in segments:
        if segment.number not in numbers or excess <= 0:
            break
        chosen.append(segment.number)
        excess -= segment.size
    return chosen
