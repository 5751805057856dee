"""Reading all of a log to see that it is what `docs/log-format.md` promises."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from penstock.changelog.format import FrameKind, Head
from penstock.changelog.reader import LogReader
from penstock.changelog.segments import FrameAt, SegmentReader
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
    complete = header.base_lsn
    for frame in segment.walk(0, end):
        complete = _check_frame(reader, segment, frame, complete, checked)
    checked.segments += 1
    checked.size += end
    return complete


def _check_frame(
    reader: LogReader, segment: SegmentReader, frame: FrameAt, complete: Lsn, checked: Checked
) -> Lsn:
    header = frame.header
    checked.frames += 1
    segment.messages(frame)
    if header.complete_lsn < complete:
        raise _fault(segment, frame.position, "it is complete up to less than the one before")
    if header.kind is not FrameKind.CHANGES:
        return complete
    meta = segment.meta(frame)
    for position in meta.relations["position"].tolist():
        if segment.frame_at(position).header.kind is not FrameKind.RELATION:
            raise _fault(segment, frame.position, "a table's description is not where it should be")
    last = complete
    for commit in meta.commits["lsn"].tolist():
        if not last < commit <= header.complete_lsn:
            raise _fault(segment, frame.position, f"a commit at {Lsn(commit)} is out of order")
        last = Lsn(commit)
    first_segment = reader.head().first_segment
    for reference in meta.references:
        if reference["segment"] >= first_segment:
            target = reader.frame(int(reference["segment"]), int(reference["position"]))
            if reference["fragment"] >= len(target.meta.fragments):
                raise _fault(segment, frame.position, "a commit refers to no fragment")
    checked.transactions += len(meta.commits)
    checked.changes += int(meta.commits["changes"].sum())
    return header.complete_lsn


def _fault(segment: SegmentReader, position: int, what: str) -> LogCorrupt:
    return LogCorrupt(segment.where, position, what)
