"""Where a log ends after whatever happened to it: the tail is found, damage is named. Only reads.

Tail or damage? A frame that is not whole is the tail if nothing shows that it was ever synced. It
is damage if it lies before the position in the head, or if a whole frame behind it says that the
segment was synced beyond it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from penstock.changelog.format import (
    FRAME_HEADER_SIZE,
    FRAME_MAGIC,
    SEGMENT_HEADER_SIZE,
    FormatError,
    FrameHeader,
    FrameKind,
    Head,
)
from penstock.changelog.frames import FrameAt
from penstock.changelog.head import read_head
from penstock.changelog.segments import SegmentReader, segment_name, segment_numbers
from penstock.changelog.storage import Storage
from penstock.errors import LogCorrupt
from penstock.lsn import Lsn


@dataclass(frozen=True, slots=True)
class End:
    """The end of what is whole. Segments behind `last_segment` are unfinished, and those before
    `first_segment` were about to be removed: both may go."""

    first_segment: int
    last_segment: int
    position: int
    # Before it everything is known to be on disk; behind it, it only looks so.
    trusted_pos: int
    complete_lsn: Lsn
    refers_to: int
    counter: int


def find_end(storage: Storage, where: str) -> End | None:
    """The end of the log, or None if it has no segment yet."""
    head = read_head(storage)
    # Older ones are on their way out: a crash left some of them.
    oldest = head.first_segment if head is not None else 0
    numbers = [number for number in segment_numbers(storage) if number >= oldest]
    if numbers and _unfinished(SegmentReader(storage, numbers[-1], where), head):
        numbers.pop()
    if not numbers:
        if head is not None:
            raise LogCorrupt(f"{where}/{segment_name(head.last_segment)}", 0, "it is missing")
        return None
    first, last = oldest or numbers[0], numbers[-1]
    for expected, number in enumerate(numbers, start=first):
        if number != expected:
            raise LogCorrupt(f"{where}/{segment_name(expected)}", 0, "it is missing")
    if head is not None and head.last_segment > last:
        raise LogCorrupt(f"{where}/{segment_name(head.last_segment)}", 0, "it is missing")
    segment = SegmentReader(storage, last, where)
    header = segment.header()
    if head is not None and head.last_segment == last:
        start = End(
            *(first, last, head.position, head.position),
            *(head.complete_lsn, head.refers_to, head.counter),
        )
        if segment.size() < head.position:
            raise LogCorrupt(f"{where}/{segment_name(last)}", segment.size(), "it was cut off")
    else:
        counter = head.counter if head is not None else 0
        start = End(first, last, SEGMENT_HEADER_SIZE, 0, header.base_lsn, 0, counter)
    return _follow(storage, segment, start, where)


def _unfinished(segment: SegmentReader, head: Head | None) -> bool:
    """A segment that was being made when the writer died: not even its header is whole."""
    if head is not None and segment.number <= head.last_segment:
        return False
    try:
        segment.header()
    except LogCorrupt:
        # A whole header was synced before the first frame: with frames behind it, it is damage.
        return segment.size() <= SEGMENT_HEADER_SIZE
    return False


def _follow(storage: Storage, segment: SegmentReader, start: End, where: str) -> End:
    """Go from frame to frame to the first that is not whole."""
    position, complete, refers_to = start.position, start.complete_lsn, start.refers_to
    size = segment.size()
    while position < size:
        try:
            frame = segment.frame_at(position)
            if frame.end > size:
                break
            segment.messages(frame)
            if frame.header.kind is FrameKind.CHANGES:
                refers_to = oldest_reference(segment, frame, refers_to)
        except LogCorrupt:
            break
        complete = max(complete, frame.header.complete_lsn)
        position = frame.end
    name = segment_name(segment.number)
    if position < size and synced_beyond(storage.read(name, position), position):
        raise LogCorrupt(f"{where}/{name}", position, "a frame is not what it was")
    return replace(start, position=position, complete_lsn=complete, refers_to=refers_to)


def oldest_reference(segment: SegmentReader, frame: FrameAt, known: int) -> int:
    """The oldest segment that the frame's commits, or `known`, refer to; 0: none."""
    references = segment.meta(frame).references
    oldest = int(references["segment"].min()) if len(references) else 0
    return min(filter(None, (oldest, known)), default=0)


def synced_beyond(rest: bytes, position: int) -> bool:
    """Whether a whole header in `rest`, a file from `position` on, shows a sync beyond it."""
    at = rest.find(FRAME_MAGIC)
    while at >= 0:
        try:
            header = FrameHeader.unpack(rest[at : at + FRAME_HEADER_SIZE])
        except FormatError:
            pass
        else:
            if header.synced_pos > position:
                return True
        at = rest.find(FRAME_MAGIC, at + 1)
    return False
