"""Reading a log: from any process, without locks, never past what the writer has made visible.

Work depends on the range that is read, not on the length of the log: a position carries the place
where it stands, and without one a binary search over the segments' headers finds it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from penstock.changelog.format import (
    SEGMENT_HEADER_SIZE,
    ChangesMeta,
    FormatError,
    FragmentFlag,
    FrameKind,
    Head,
    Messages,
)
from penstock.changelog.frames import FrameAt, FrameHeaders
from penstock.changelog.head import HEAD, read_head
from penstock.changelog.identity import LogIdentity, read_identity
from penstock.changelog.segments import SegmentReader
from penstock.changelog.storage import LocalStorage, Storage
from penstock.changelog.tables import FILE as TABLES
from penstock.changelog.tables import TableEntry, read_tables
from penstock.changelog.waiting import HeadWatch
from penstock.errors import LogBehind, LogCorrupt, LogForeignPosition, LogMissing, LogRetired
from penstock.lsn import Lsn
from penstock.postgres.fragments import touched
from penstock.postgres.transaction import Transaction

# A head that is being written is whole again within microseconds.
_HEAD_ATTEMPTS = 100
# On storage that machines share, one may see what another has seen a little later.
_SEEN_WITHIN_S = 10.0


@dataclass(frozen=True, slots=True)
class Position:
    """Everything up to `lsn` is behind it; the next commit is at or after this place."""

    lsn: Lsn
    segment: int
    byte_pos: int


@dataclass(frozen=True, slots=True)
class FragmentRef:
    """A part of a committed transaction: where its frame is, and the seq of its first change."""

    segment: int
    byte_pos: int
    index: int
    first_seq: int


@dataclass(frozen=True, slots=True)
class CommitRef:
    """A committed transaction, without its changes."""

    xid: int
    lsn: Lsn
    time_us: int
    changes: int
    fragments: tuple[FragmentRef, ...]
    aborted: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Frame:
    """A frame of changes, read whole."""

    meta: ChangesMeta
    messages: Messages


class LogReader:
    def __init__(self, storage: Storage | Path) -> None:
        self.storage = LocalStorage(storage) if isinstance(storage, Path) else storage
        self.where = str(getattr(self.storage, "root", "log"))
        self.identity: LogIdentity = read_identity(self.storage, self.where)
        self._last: tuple[int, int, Frame] | None = None

    # --- where the log begins and ends ------------------------------------------------------------

    def head(self) -> Head:
        for _ in range(_HEAD_ATTEMPTS):
            head = read_head(self.storage)
            if head is not None:
                return head
            time.sleep(0.001)
        raise LogMissing(
            f"the change log in {self.where} has no head, or it is not whole",
            remedy="Start capture: it finds the end of the log and writes the head anew",
            path=self.where,
        )

    def head_at(self, lsn: Lsn) -> Head:
        """One that reaches a position. Whoever planned has seen it, perhaps on another machine: to
        read up to our own end only would leave out the rest without a word.
        """
        head = self.head()
        if head.complete_lsn < lsn and self.wait(Lsn(lsn - 1), _SEEN_WITHIN_S):
            head = self.head()
        if head.complete_lsn < lsn:
            raise LogBehind(self.where, head.complete_lsn, lsn)
        return head

    def start(self) -> Position:
        """Before the oldest commit from which on everything is still there.

        Commits whose fragments lie in segments that retention has removed are skipped: everybody
        has applied them.
        """
        return self.searching(self._start)

    def _start(self, head: Head) -> Position:
        start = head.first_segment
        for number in range(head.first_segment, head.last_segment + 1):
            last = number == head.last_segment
            following = None if last else self.segment(number + 1).header()
            refers_to = following.previous_refers_to if following else head.refers_to
            if 0 < refers_to < head.first_segment:
                start = number + 1
        if start > head.last_segment:
            return Position(head.complete_lsn, head.last_segment, head.position)
        return self.start_of(start)

    def start_of(self, number: int) -> Position:
        """Before all that commits in a segment."""
        return Position(self.segment(number).header().base_lsn, number, SEGMENT_HEADER_SIZE)

    def end(self) -> Position:
        """Behind the newest commit that may be read."""
        head = self.head()
        return Position(head.complete_lsn, head.last_segment, head.position)

    def wait(self, after: Lsn, timeout_s: float) -> bool:
        """Until the log is complete beyond `after`; false if the time is up."""
        with HeadWatch(self.storage, HEAD) as watch:
            deadline = time.monotonic() + timeout_s
            while self.head().complete_lsn <= after:
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                watch.wait(left)
        return True

    def locate(self, lsn: Lsn) -> Position:
        """The place of an LSN; refuses one before the oldest segment or beyond the end."""
        return self.searching(lambda head: self._locate(lsn, head))

    def searching(self, search: Callable[[Head], Position]) -> Position:
        """A position by the head; again, if retention took a segment from under the search.

        If it did not, what was asked for is really gone.
        """
        head = self.head()
        while True:
            try:
                return search(head)
            except LogRetired:
                before, head = head, self.head()
                if head.first_segment == before.first_segment:
                    raise

    def _locate(self, lsn: Lsn, head: Head) -> Position:
        if lsn > head.complete_lsn:
            raise LogForeignPosition(
                f"position {lsn} is beyond the end of the change log at {head.complete_lsn}",
                remedy="It is of another log, or this one was made anew: seed the target again",
                lsn=lsn,
            )
        low, high = head.first_segment, head.last_segment
        if lsn < self.segment(low).header().base_lsn:
            raise LogRetired(
                f"the change log in {self.where} no longer goes back to {lsn}",
                remedy="Seed the target again; a registered consumer keeps what it has not applied",
                lsn=lsn,
            )
        # The last segment that begins at or before it.
        while low < high:
            middle = (low + high + 1) // 2
            if self.segment(middle).header().base_lsn <= lsn:
                low = middle
            else:
                high = middle - 1
        segment = self.segment(low)
        byte_pos = SEGMENT_HEADER_SIZE
        for frames in segment.walk(byte_pos, self.visible_end(low, head)):
            beyond = frames.fields["complete_lsn"] > lsn
            if beyond.any():
                return Position(lsn, low, int(frames.start[np.argmax(beyond)]))
            byte_pos = int(frames.end[-1])
        return Position(lsn, low, byte_pos)

    def tables(self) -> list[TableEntry]:
        """Every table of which there was a change, as it was described last; newest last."""
        try:
            return read_tables(self.storage)
        except FormatError as error:
            raise LogCorrupt(f"{self.where}/{TABLES}", 0, str(error)) from None

    # --- what is in between -----------------------------------------------------------------------

    def frames(self, after: Position, up_to: Position) -> Iterator[FrameAt]:
        """The headers of all frames that may hold commits in (after, up_to], one by one."""
        for frames in self.headers(after, up_to):
            for index in range(len(frames)):
                yield frames.frame(index)

    def headers(self, after: Position, up_to: Position) -> Iterator[FrameHeaders]:
        """The same, many at once."""
        headers = self._headers(after, up_to)
        try:
            first = next(headers, None)
        except LogRetired:
            # The place is only a hint: its segment may go once all of it has been applied.
            headers = self._headers(self.locate(after.lsn), up_to)
            first = next(headers, None)
        if first is not None:
            yield first
            yield from headers

    def _headers(self, after: Position, up_to: Position) -> Iterator[FrameHeaders]:
        head = self.head_at(up_to.lsn)
        complete: Lsn | None = None
        for number in range(after.segment, up_to.segment + 1):
            start = after.byte_pos if number == after.segment else SEGMENT_HEADER_SIZE
            end = self.visible_end(number, head)
            segment = self.segment(number, end)
            if number > after.segment:
                base = segment.header().base_lsn
                # Where nothing was read of the one before, all of it is at or below the position.
                if base > after.lsn if complete is None else base != complete:
                    # Whole frames are missing at the end of the one before.
                    where = self.segment(number - 1).where
                    raise LogCorrupt(where, self.visible_end(number - 1, head), "it was cut off")
                complete = base
            for frames in segment.walk(start, end):
                reaches = frames.fields["complete_lsn"] >= up_to.lsn
                if reaches.any():
                    yield frames.some(slice(int(np.argmax(reaches)) + 1))
                    return
                yield frames
                complete = Lsn(int(frames.fields["complete_lsn"][-1]))
        if max(after.lsn, complete or after.lsn) < up_to.lsn:
            # As above, and nothing was read behind it.
            last = self.segment(up_to.segment)
            raise LogCorrupt(last.where, self.visible_end(last.number, head), "it was cut off")

    def commits(self, after: Position, up_to: Position) -> Iterator[CommitRef]:
        """What commits in (after, up_to], in commit order, without the changes."""
        reader: SegmentReader | None = None
        for frame in self.frames(after, up_to):
            if frame.header.kind is not FrameKind.CHANGES or not frame.header.commits:
                continue
            if reader is None or reader.number != frame.segment:
                reader = self.segment(frame.segment)
            meta = reader.meta(frame)
            for commit in _commit_refs(meta):
                if after.lsn < commit.lsn <= up_to.lsn:
                    yield commit

    def frame(self, segment: int, byte_pos: int) -> Frame:
        """A frame; the last one is kept, for many small transactions share it."""
        if self._last is None or self._last[:2] != (segment, byte_pos):
            reader = self.segment(segment)
            frame = reader.frame_at(byte_pos)
            self._last = segment, byte_pos, Frame(reader.meta(frame), reader.messages(frame))
        return self._last[2]

    def definition(self, segment: int, byte_pos: int) -> tuple[bytes, ...]:
        """A Relation message and its Types."""
        reader = self.segment(segment)
        messages = reader.messages(reader.frame_at(byte_pos))
        return tuple(messages[index] for index in range(len(messages)))

    def transactions(self, after: Position, up_to: Position) -> Iterator[Transaction]:
        """The same with their changes, one message at a time: the plain way, for few of them."""
        for commit in self.commits(after, up_to):
            payloads = tuple(self.payloads(commit))
            yield Transaction(commit.xid, commit.lsn, commit.time_us, payloads)

    def payloads(self, commit: CommitRef) -> Iterator[bytes]:
        """As those of `Transaction`, of any size: one frame at a time is in memory."""
        in_force: dict[int, bytes] = {}
        aborted = frozenset(commit.aborted)
        for ref in commit.fragments:
            for oids, payload, definitions in self._changes(ref, aborted):
                for oid in oids:
                    if in_force.get(oid) != definitions[oid]:
                        in_force[oid] = definitions[oid]
                        yield definitions[oid]
                yield payload

    def _changes(
        self, ref: FragmentRef, aborted: Collection[int]
    ) -> Iterator[tuple[list[int], bytes, dict[int, bytes]]]:
        """Surviving messages of a fragment, in the form without xid, with their definitions."""
        frame = self.frame(ref.segment, ref.byte_pos)
        fragment = frame.meta.fragments[ref.index]
        streamed = bool(fragment["flags"] & FragmentFlag.STREAMED)
        first = int(fragment["first"])
        known: dict[int, bytes] = {}
        for index in range(first, first + int(fragment["messages"])):
            payload = frame.messages[index]
            if streamed:
                if int.from_bytes(payload[1:5], "big") in aborted:
                    continue
                payload = payload[:1] + payload[5:]
            oids = touched(payload, streamed=False)
            definitions = {}
            for oid in oids:
                place = self._in_force(ref.segment, frame.meta, oid, index)
                if place not in known:
                    known[place] = self.definition(ref.segment, place)[0]
                definitions[oid] = known[place]
            yield oids, payload, definitions

    def _in_force(self, segment: int, meta: ChangesMeta, oid: int, message: int) -> int:
        """Where the Relation stands that describes a message of table `oid`."""
        relations = meta.relations
        places = relations["position"][
            (relations["oid"] == oid) & (relations["from_message"] <= message)
        ]
        if not len(places):
            raise LogCorrupt(self.segment(segment).where, 0, f"table {oid} is not described")
        return int(places[-1])

    def segment(self, number: int, limit: int | None = None) -> SegmentReader:
        return SegmentReader(self.storage, number, self.where, limit=limit)

    def visible_end(self, number: int, head: Head) -> int:
        return head.position if number == head.last_segment else self.segment(number).size()


def _commit_refs(meta: ChangesMeta) -> Iterator[CommitRef]:
    for commit in meta.commits:
        references = _slice(meta.references, commit["first_reference"], commit["references"])
        aborted = _slice(meta.aborted, commit["first_aborted"], commit["aborted"])
        yield CommitRef(
            int(commit["xid"]),
            Lsn(int(commit["lsn"])),
            int(commit["time_us"]),
            int(commit["changes"]),
            tuple(
                FragmentRef(
                    *(int(ref[name]) for name in ("segment", "position", "fragment", "first_seq"))
                )
                for ref in references
            ),
            tuple(aborted.tolist()),
        )


def _slice(array: npt.NDArray[np.generic], first: int, count: int) -> npt.NDArray[np.generic]:
    return array[int(first) : int(first) + int(count)]
