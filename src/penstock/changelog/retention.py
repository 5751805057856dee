"""Which segments may go. Pure: facts in, numbers out.

A segment goes when every registered consumer has applied it, it is older than the minimum age, and
nothing still needs its fragments: neither a transaction that is open now, nor a commit beyond a
consumer's position, wherever that stands. Segments go from the oldest on, never from the middle.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.lsn import Lsn


@dataclass(frozen=True, slots=True)
class SegmentFacts:
    """A segment as retention sees it."""

    number: int
    # Every commit in it is at or below; for the last segment, with those not yet durable.
    last_lsn: Lsn
    # The oldest segment that its commits refer to; 0: none.
    refers_to: int
    # When it was sealed: the age of its youngest commit.
    sealed_at_s: float
    size: int


def removable(
    segments: Sequence[SegmentFacts],
    *,
    applied: Sequence[Lsn],
    open_segment: int,
    now_s: float,
    min_age_s: float,
) -> list[int]:
    """The numbers of those that may go; `segments` are all there are, oldest first.

    `applied` are the positions of all consumers that count, `open_segment` the oldest segment with
    a fragment of an open transaction (0: none). The last segment always stays.
    """
    if not segments:
        return []
    keep_from = segments[-1].number
    if open_segment:
        keep_from = min(keep_from, open_segment)
    slowest = min(applied, default=segments[-1].last_lsn)
    for segment in segments:
        if segment.last_lsn > slowest or now_s - segment.sealed_at_s < min_age_s:
            # It holds commits that somebody has not applied, or that are young: it stays, and what
            # they refer to, however old that is. No further: where each segment refers to the one
            # before, nothing would ever go. `LogReader.start` skips what nobody needs.
            keep_from = min(keep_from, segment.number, segment.refers_to or segment.number)
    return [segment.number for segment in segments if segment.number < keep_from]
