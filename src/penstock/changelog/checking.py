"""Reading all of a log to see that it is what `docs/log-format.md` promises."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from penstock.changelog.format import Head
from penstock.changelog.frames import FrameHeaders
from penstock.changelog.reader import LogReader
from penstock.changelog.segments import SegmentReader
from penstock.changelog.stretches import Stretch, StretchMeta, stretches
from penstock.errors import LogCorrupt, LogRetired
from penstock.lsn import Lsn


@dataclass(slots=True)
class Checked:
    segments: int = 0
    frames: int = 0
    transactions: int = 0
    changes: int = 0
    size: int = 0


def check_log(reader: LogReader, on_segment: Callable[[int], None] = lambda _: None) -> Checked:
    """Every frame with its checksums, order and references; raises `LogCorrupt` at the first fault.

    References to segments that retention has removed are fine: everybody has applied them. So are
    segments that it removes meanwhile.
    """
    checked = Checked()
    head = reader.head()
    complete: Lsn | None = None
    for number in range(head.first_segment, head.last_segment + 1):
        on_segment(number)
        segment = reader.segment(number)
        try:
            complete = _check_segment(reader, segment, head, complete, checked)
        except LogRetired:
            if number >= reader.head().first_segment:
                raise
            complete = None
    return checked


def _check_segment(
    reader: LogReader, segment: SegmentReader, head: Head, complete: Lsn | None, checked: Checked
) -> Lsn:
    header = segment.header()
    if header.log_id != reader.identity.log_id.bytes:
        raise _fault(segment, 0, "it belongs to another log")
    if complete is not None and header.base_lsn != complete:
        raise _fault(segment, 0, f"it begins at {header.base_lsn}, after {complete}")
    end = reader.visible_end(segment.number, head)
    check = _SegmentCheck(reader, segment, checked, header.base_lsn)
    for frames in segment.walk(0, end):
        check.frames(frames)
    checked.segments += 1
    checked.size += end
    return check.complete


@dataclass(slots=True)
class _SegmentCheck:
    """What is known of a segment while it is read from its start."""

    reader: LogReader
    segment: SegmentReader
    checked: Checked
    complete: Lsn
    # Where the frames stand that describe tables.
    described: set[int] = field(default_factory=set)

    def frames(self, frames: FrameHeaders) -> None:
        """Check frames that follow those before."""
        complete = frames.fields["complete_lsn"]
        before = np.append(np.uint64(self.complete), complete[:-1])
        if (less := complete < before).any():
            at = int(frames.start[np.argmax(less)])
            raise _fault(self.segment, at, "it is complete up to less than the one before")
        of_changes = frames.of_changes
        for index in np.flatnonzero(~of_changes).tolist():
            frame = frames.frame(index)
            self.segment.messages(frame)
            self.described.add(frame.position)
        done = 0
        before = before[of_changes]
        for stretch in stretches(self.segment, frames.some(of_changes)):
            self._stretch(stretch, before[done : done + len(stretch.frames)])
            done += len(stretch.frames)
        self.complete = Lsn(int(complete[-1]))
        self.checked.frames += len(frames)

    def _stretch(self, stretch: Stretch, before: npt.NDArray[np.uint64]) -> None:
        """Check frames of changes; `before` says how far the log was complete before each."""
        stretch.messages()
        meta = stretch.meta()
        positions = meta.arrays.relations["position"]
        for position in np.unique(positions).tolist():
            if position not in self.described:
                raise self._fault(
                    stretch,
                    int(meta.relation_frame[np.argmax(positions == position)]),
                    "a table's description is not where it should be",
                )
        self._order(stretch, meta, before)
        self._references(stretch, meta)
        self.checked.transactions += len(meta.arrays.commits)
        self.checked.changes += int(meta.arrays.commits["changes"].sum())

    def _order(self, stretch: Stretch, meta: StretchMeta, before: npt.NDArray[np.uint64]) -> None:
        lsn = meta.arrays.commits["lsn"]
        frame = np.repeat(np.arange(len(stretch.frames)), np.diff(meta.commit))
        is_wrong = (lsn <= before[frame]) | (lsn > stretch.frames.fields["complete_lsn"][frame])
        is_wrong[1:] |= lsn[1:] <= lsn[:-1]
        if is_wrong.any():
            wrong = int(np.argmax(is_wrong))
            raise self._fault(
                stretch, int(frame[wrong]), f"a commit at {Lsn(int(lsn[wrong]))} is out of order"
            )

    def _references(self, stretch: Stretch, meta: StretchMeta) -> None:
        """Check that every fragment that a commit names is there."""
        references = meta.arrays.references
        elsewhere = np.flatnonzero(stretch.named(meta) < 0)
        if not len(elsewhere):
            return
        first_segment = self.reader.head().first_segment
        counts: dict[tuple[int, int], int] = {}
        for index in elsewhere.tolist():
            number, position = int(references["segment"][index]), int(references["position"][index])
            if number < first_segment:
                continue
            if (number, position) not in counts:
                counts[number, position] = self._fragments(number, position)
            if references["fragment"][index] >= counts[number, position]:
                commit = np.searchsorted(meta.arrays.commits["first_reference"], index, "right") - 1
                frame = np.searchsorted(meta.commit, commit, "right") - 1
                raise self._fault(stretch, int(frame), "a commit refers to no fragment")

    def _fragments(self, number: int, position: int) -> int:
        """How many fragments a frame of changes has."""
        is_this = number == self.segment.number
        segment = self.segment if is_this else self.reader.segment(number)
        return len(segment.meta(segment.frame_at(position)).fragments)

    def _fault(self, stretch: Stretch, frame: int, what: str) -> LogCorrupt:
        return _fault(self.segment, int(stretch.frames.start[frame]), what)


def _fault(segment: SegmentReader, position: int, what: str) -> LogCorrupt:
    return LogCorrupt(segment.where, position, what)
