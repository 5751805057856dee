"""Which part of the log to read next, and how to share it out: by frames' headers, without data.

The work depends on the range, never on the length of the log.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from penstock.changelog.format import Head, Records
from penstock.changelog.frames import FrameAt, FrameHeaders, Integers
from penstock.changelog.reader import LogReader, Position
from penstock.changelog.runs import Share
from penstock.changelog.stretches import Stretch, StretchMeta, stretches
from penstock.errors import LogRetired
from penstock.lsn import Lsn

# One task's work. Large: what a task groups by itself need not be sent on (`bench source`, four
# tasks instead of seventeen: a quarter less time).
SHARE_BYTES = 64 * 2**20
# The server's clock and ours may differ by so much.
_CLOCKS = timedelta(minutes=10)
_POSTGRES_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Limit:
    """How much one batch may hold. Its first transaction is taken whole, however large."""

    max_bytes: int | None = None
    max_rows: int | None = None

    def exceeded(self, size: int, rows: int) -> bool:
        return (self.max_bytes is not None and size > self.max_bytes) or (
            self.max_rows is not None and rows > self.max_rows
        )

    def fitting(self, sizes: Integers, rows: Integers) -> int:
        """How many of these growing sums do not exceed it."""
        most = len(sizes)
        if self.max_bytes is not None:
            most = int(np.searchsorted(sizes, self.max_bytes, side="right"))
        if self.max_rows is not None:
            most = min(most, int(np.searchsorted(rows, self.max_rows, side="right")))
        return most


def limited(reader: LogReader, after: Position, up_to: Position, limit: Limit) -> Position:
    """Behind the last transaction that fits into one batch; `up_to` if all of them do."""
    size = rows = 0
    last = after
    for frames in reader.headers(after, up_to):
        at = 0
        while at < len(frames):
            sizes = size + _sums(frames.fields["committed_bytes"][at:])
            row_sums = rows + _sums(frames.fields["committed_changes"][at:])
            fitting = limit.fitting(sizes, row_sums)
            if fitting:
                size, rows = int(sizes[fitting - 1]), int(row_sums[fitting - 1])
                at += fitting
                last = _behind(frames, at - 1, after)
                continue
            frame = frames.frame(at)
            for commit in _commits(reader, frame, after, up_to):
                more = size + int(commit["size"]), rows + int(commit["changes"])
                if limit.exceeded(*more) and rows:
                    return last
                size, rows = more
                last = Position(Lsn(int(commit["lsn"])), frame.segment, frame.position)
            last = _behind(frames, at, after)
            at += 1
    return up_to


def _behind(frames: FrameHeaders, index: int, after: Position) -> Position:
    complete = Lsn(int(frames.fields["complete_lsn"][index]))
    return Position(max(after.lsn, complete), frames.segment, int(frames.end[index]))


def _sums(values: npt.NDArray[np.integer]) -> Integers:
    return np.cumsum(values, dtype=np.int64)


def shares(
    reader: LogReader, after: Position, up_to: Position, share_bytes: int = SHARE_BYTES
) -> list[Share]:
    """The range in parts of about one size, in commit order; none if nothing commits in it."""
    found: list[Share] = []
    if after.lsn >= up_to.lsn:
        return found
    # The current share: where it begins, how far it goes, what it weighs.
    start = end = after
    size = 0

    def close() -> None:
        nonlocal start, size
        if size:
            found.append(Share(start, end))
        start, size = end, 0

    for frames in reader.headers(after, up_to):
        at = 0
        while at < len(frames):
            sizes = size + _sums(frames.fields["committed_bytes"][at:])
            fitting = int(np.searchsorted(sizes, share_bytes))
            if fitting:
                size = int(sizes[fitting - 1])
                at += fitting
                end = _within(frames, at - 1, up_to)
                continue
            frame = frames.frame(at)
            if frame.header.committed_bytes < share_bytes:
                size += frame.header.committed_bytes
            else:
                for commit in _commits(reader, frame, after, up_to):
                    here = Position(Lsn(int(commit["lsn"])), frame.segment, frame.position)
                    if commit["size"] < share_bytes:
                        size += int(commit["size"])
                        end = here
                        if size >= share_bytes:
                            close()
                    else:
                        # Large by itself: its fragments are shared out.
                        close()
                        found += _parts(end, here, commit, share_bytes)
                        start = end = here
            end = _within(frames, at, up_to)
            if size >= share_bytes:
                close()
            at += 1
    end = up_to
    close()
    return found


def _within(frames: FrameHeaders, index: int, up_to: Position) -> Position:
    """Behind a frame. The last one may hold commits beyond the range: the next batch has those."""
    complete = Lsn(int(frames.fields["complete_lsn"][index]))
    if complete < up_to.lsn:
        return Position(complete, frames.segment, int(frames.end[index]))
    return up_to


def _parts(after: Position, up_to: Position, commit: Records, share_bytes: int) -> Iterator[Share]:
    count = -(-int(commit["size"]) // share_bytes)
    bounds = np.linspace(0, int(commit["references"]), count + 1).astype(int).tolist()
    for low, high in pairwise(bounds):
        if high > low:
            yield Share(after, up_to, (low, high))


def at_time(reader: LogReader, moment: datetime) -> Position:
    """Before the first transaction that committed then or later.

    Raises `LogRetired` if there may have been such a one in what retention has removed.
    """
    return reader.searching(lambda head: _at_time(reader, moment, head))


def _at_time(reader: LogReader, moment: datetime, head: Head) -> Position:
    # A segment holds what was received before the next one was made, and so committed before.
    early_us = (moment - _CLOCKS).timestamp() * 1e6
    low, high = head.first_segment, head.last_segment
    while low < high:
        middle = (low + high + 1) // 2
        if reader.segment(middle).header().created_us <= early_us:
            low = middle
        else:
            high = middle - 1
    # Nothing before this place is of that time: there never was anything, or it was too early.
    is_known = low == 1 or reader.segment(low).header().created_us <= early_us
    start = last = reader.start_of(low)
    end = Position(head.complete_lsn, head.last_segment, head.position)
    since_us = (moment - _POSTGRES_EPOCH) / timedelta(microseconds=1)
    for stretch, meta, chosen in _all_commits(reader, start, end):
        is_early = meta.arrays.commits["time_us"][chosen] < since_us
        early = int(np.argmin(np.append(is_early, False)))
        if early:
            last = _place(stretch, meta, int(chosen[early - 1]))
            is_known = True
        if early < len(chosen):
            break
    else:
        last = end
    if not is_known:
        raise LogRetired(
            f"the change log in {reader.where} no longer goes back to {moment.isoformat()}",
            remedy="Seed the target again, or begin with what is there: earliest",
        )
    return last


def _all_commits(
    reader: LogReader, after: Position, up_to: Position
) -> Iterator[tuple[Stretch, StretchMeta, Integers]]:
    """Many at once: which commits of each stretch are in the range."""
    for frames in reader.headers(after, up_to):
        segment = reader.segment(frames.segment)
        for stretch in stretches(segment, frames.some(frames.of_changes)):
            meta = stretch.meta()
            lsn = meta.arrays.commits["lsn"]
            yield stretch, meta, np.flatnonzero((lsn > after.lsn) & (lsn <= up_to.lsn))


def _place(stretch: Stretch, meta: StretchMeta, commit: int) -> Position:
    """Behind a commit, in the frame that has it."""
    frame = int(np.searchsorted(meta.commit, commit, side="right")) - 1
    lsn = Lsn(int(meta.arrays.commits["lsn"][commit]))
    return Position(lsn, stretch.segment.number, int(stretch.frames.start[frame]))


def _commits(
    reader: LogReader, frame: FrameAt, after: Position, up_to: Position
) -> Iterator[Records]:
    if not frame.header.commits:
        return
    commits = reader.segment(frame.segment).meta(frame).commits
    yield from commits[(commits["lsn"] > after.lsn) & (commits["lsn"] <= up_to.lsn)]
