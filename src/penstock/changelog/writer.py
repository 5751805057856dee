"""The one writer of a log: append fragments as they come, commit as a separate step, flush.

Invariants: the head is written only after the sync of what it points to; a commit at or below
`complete_lsn` never comes (the fragmenter drops it); after any failed write or sync the segment is
cut off at the last good one and the writer is of no more use: open a new one, and ask the server
again from its `complete_lsn`.
"""

from __future__ import annotations

import contextlib
import errno
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from penstock.changelog.building import (
    CommitEntry,
    Definition,
    FrameBuilder,
    relation_frame,
)
from penstock.changelog.definitions import Definitions
from penstock.changelog.fencing import Fence
from penstock.changelog.format import (
    SEGMENT_HEADER_SIZE,
    Head,
    SegmentHeader,
)
from penstock.changelog.head import HEAD
from penstock.changelog.identity import (
    LogIdentity,
    check_empty,
    read_identity,
    write_identity,
)
from penstock.changelog.recovery import End, find_end
from penstock.changelog.retention import SegmentFacts
from penstock.changelog.segments import SegmentReader, segment_name, segment_numbers
from penstock.changelog.settings import LogSettings
from penstock.changelog.storage import Appender, LocalStorage, Storage
from penstock.changelog.tables import TableBook, TableEntry
from penstock.changelog.transaction_ids import HighestXid
from penstock.changelog.unfinished import Unfinished
from penstock.closing import Closing
from penstock.errors import (
    LogCorrupt,
    LogFenced,
    LogFull,
    LogInUse,
    LogMissing,
    LogNotWritten,
    LogUnwritable,
)
from penstock.lsn import Lsn
from penstock.postgres.fragments import Abort, Commit, Description, Fragment
from penstock.postgres.system_identity import TransactionIds

_LOCK = "writer.lock"
# Of a commit, before the caller has a turn: a few milliseconds of work.
_PIECES_AT_ONCE = 256
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})
# Waiting does not help: a person must change the path or its permissions.
_NOT_OURS = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR})


class LogWriter(Closing):
    """Appends to the log in one directory. It holds the lock until it is closed."""

    def __init__(
        self,
        storage: Storage | Path,
        identity: LogIdentity | None = None,
        settings: LogSettings | None = None,
    ) -> None:
        """Open the log, or begin one with `identity` where there is none."""
        self._storage = LocalStorage(storage) if isinstance(storage, Path) else storage
        self.where = str(getattr(self._storage, "root", "log"))
        self._settings = settings or LogSettings()
        self._builder = FrameBuilder()
        self._unfinished = Unfinished()
        self._definitions = Definitions()
        # Definitions in force when the current frame began, and where this segment has them.
        self._in_force: dict[int, tuple[bytes, ...]] = {}
        self._defined_at: dict[tuple[bytes, ...], int] = {}
        self._file: Appender | None = None
        self._opened = False
        # Called now and then during the commit of a transaction that has very many pieces.
        self.between_pieces: Callable[[], None] = lambda: None
        # What is known of the segments before the last, by number.
        self._sealed: dict[int, SegmentFacts] = {}
        with contextlib.ExitStack() as on_failure, self.failures():
            if not on_failure.enter_context(self._storage.lock(_LOCK)):
                raise LogInUse(
                    f"another process writes to the change log in {self.where}",
                    remedy="Stop it first; one log has one writer",
                    path=self.where,
                )
            self.identity = self._identify(identity)
            self._fence = Fence(self._storage, self.where)
            self._xids = HighestXid(self._storage)
            end = find_end(self._storage, self.where)
            self._tables = TableBook(self._storage, end.last_segment if end is not None else 1)
            self._start(end)
            self._last_commit_lsn = self.complete_lsn
            self._lock = on_failure.pop_all()
        self._opened = True

    @property
    def pending_bytes(self) -> int:
        """Appended since the last flush."""
        return self._unsynced_bytes + self._builder.size

    def append(self, fragment: Fragment) -> None:
        self._unfinished.add(self._builder.add(fragment))
        if self._builder.size >= self._settings.frame_bytes:
            with self.failures():
                self._write_frame(self._written_lsn)

    def describe(self, description: Description) -> None:
        for oid, content, is_news in self._definitions.take(description.payload):
            if is_news:
                self._builder.define(oid, content)
            if description.xid:
                self._unfinished.describe(description.xid, description.subxid, content)
            else:
                self._tables.note(TableEntry(self._last_commit_lsn, content), self._segment)

    def abort(self, abort: Abort) -> None:
        self._unfinished.abort(abort)

    def commit(self, xid: int, commit: Commit) -> None:
        if commit.lsn <= self.complete_lsn:
            raise RuntimeError(f"a commit at {commit.lsn}, and {self.complete_lsn} is complete")
        self._xids.committed(xid)
        finished = self._unfinished.finish(xid)
        for content in finished.definitions:
            # Its own changes from before it was described so commit here too.
            self._tables.note(TableEntry(commit.lsn, content), self._segment)
        self._last_commit_lsn = commit.lsn
        pieces, seq = [], 0
        for number, piece in enumerate(finished.pieces):
            if number % _PIECES_AT_ONCE == _PIECES_AT_ONCE - 1:
                self.between_pieces()
            surviving = self._builder.surviving(piece, finished.aborted)
            if surviving:
                pieces.append((piece, seq))
                seq += surviving
        if pieces:  # a transaction without changes only moves `complete_lsn`
            self._builder.commit(CommitEntry(xid, commit, tuple(pieces), finished.aborted, seq))

    def flush(self, complete_up_to: Lsn) -> None:
        if complete_up_to <= self.complete_lsn and not self.pending_bytes and self._builder.empty:
            return
        with self.failures():
            if complete_up_to > self._written_lsn or not self._builder.empty:
                self._write_frame(max(complete_up_to, self._written_lsn))
            self._sync()
            self._publish()
            self._xids.flushed(self.complete_lsn, time.monotonic())
            if self._is_full():
                self._roll()

    @property
    def highest_xid(self) -> int:
        """The highest transaction id that the log knows; 0: none."""
        return self._xids.known

    def begin_ids(self, now: TransactionIds) -> None:
        """Note transaction ids from here on; `now` are the server's."""
        self._xids.begin(now)

    def follow_timeline(self, timeline: int) -> None:
        """The server was promoted, and its history agrees with the log."""
        self.identity = replace(self.identity, timeline=timeline)
        with self.failures():
            write_identity(self._storage, self.identity)

    def close(self) -> None:
        """Let go of the log; what was not flushed was not confirmed, and comes again."""
        if self._file is not None:
            # What is not saved only makes a check weaker.
            with contextlib.suppress(OSError, LogFenced):
                self._fence.check()
                self._xids.save()
            self._file.close()
            self._file = None
        self._lock.close()

    # --- retention --------------------------------------------------------------------------------

    @property
    def storage(self) -> Storage:
        return self._storage

    @property
    def oldest_open_segment(self) -> int:
        """The oldest segment with a fragment of an open transaction; 0: none."""
        return self._unfinished.oldest_segment(self._segment)

    def segment_facts(self) -> list[SegmentFacts]:
        """All segments, oldest first."""
        for number in range(self._first_segment, self._segment):
            if number not in self._sealed:
                following = SegmentReader(self._storage, number + 1, self.where).header()
                self._sealed[number] = SegmentFacts(
                    number,
                    last_lsn=following.base_lsn,
                    refers_to=following.previous_refers_to,
                    sealed_at_s=following.created_us / 1e6,
                    size=self._storage.size(segment_name(number)),
                )
        # With the commits that nobody sees yet: nobody can have applied them.
        last = SegmentFacts(
            self._segment,
            last_lsn=self._builder.last_commit_lsn or self._written_lsn,
            refers_to=self._oldest_reference(self._builder),
            sealed_at_s=time.time(),
            size=self._synced_pos,
        )
        return [*self._sealed.values(), last]

    def remove_segments(self, numbers: Sequence[int]) -> None:
        """Remove the oldest segments; readers hear of it before the files go."""
        if not numbers:
            return
        self._first_segment = max(numbers) + 1
        self._tables.forget_before(self._first_segment)
        with self.failures():
            self._publish()
            # On disk first: a head that still named them would make their absence look like damage.
            self._storage.sync(HEAD)
            for number in sorted(numbers):
                self._storage.remove(segment_name(number))
                self._sealed.pop(number, None)

    # --- opening ----------------------------------------------------------------------------------

    def _identify(self, identity: LogIdentity | None) -> LogIdentity:
        try:
            return read_identity(self._storage, self.where)
        except LogMissing:
            if identity is None:
                raise
            check_empty(self._storage, self.where)
            write_identity(self._storage, identity)
            return identity

    def _start(self, end: End | None) -> None:
        if end is None:
            self._first_segment, self._counter = 1, 0
            self.complete_lsn = self._written_lsn = self.identity.start_lsn
            self._open_segment(1, refers_to=0)
        else:
            self._first_segment, self._counter = end.first_segment, end.counter
            self.complete_lsn = self._written_lsn = end.complete_lsn
            self._segment, self._refers_to = end.last_segment, end.refers_to
            for number in segment_numbers(self._storage):
                if not end.first_segment <= number <= end.last_segment:
                    self._storage.remove(segment_name(number))
            header = SegmentReader(self._storage, self._segment, self.where).header()
            if header.log_id != self.identity.log_id.bytes:
                raise LogCorrupt(
                    f"{self.where}/{segment_name(self._segment)}", 0, "it belongs to another log"
                )
            self._created_us = header.created_us
            self._synced_pos = end.position
            self._file = self._storage.append_to(segment_name(self._segment))
            self._file.truncate(end.position)
            self._write_again(end.trusted_pos, end.position)
            self._sync()
        self._publish()

    def _write_again(self, start: int, end: int) -> None:
        """What a writer left before its sync only seems to be on disk.

        If that sync failed, the kernel has marked the pages clean, and the next one would report
        success without writing a byte. The same bytes once more make it write them.
        """
        name = segment_name(self._segment)
        for at in range(start, end, self._settings.frame_bytes):
            size = min(self._settings.frame_bytes, end - at)
            self._storage.overwrite(name, self._storage.read(name, at, size), at)

    def _open_segment(self, number: int, refers_to: int) -> None:
        """Make a segment; its header is on disk before the first frame follows."""
        self._created_us = time.time_ns() // 1000
        header = SegmentHeader(
            self.identity.log_id.bytes, number, self._written_lsn, self._created_us, refers_to
        )
        self._storage.remove(segment_name(number))
        self._synced_pos = 0
        self._file = self._storage.append_to(segment_name(number))
        self._file.write(header.pack())
        self._segment = number
        self._refers_to = 0
        self._defined_at = {}
        self._sync()

    # --- writing ----------------------------------------------------------------------------------

    def _appender(self) -> Appender:
        if self._file is None:
            raise LogNotWritten(self.where, "this writer was closed or has failed")
        return self._file

    def _write_frame(self, complete_lsn: Lsn) -> None:
        """Write what has been collected, after the definitions it needs."""
        self._fence.check()
        builder, self._builder = self._builder, FrameBuilder()
        file = self._appender()
        complete_lsn = max(complete_lsn, builder.last_commit_lsn or complete_lsn)
        places = []
        if not builder.empty:
            places = [
                (definition, self._define(definition))
                for definition in builder.definitions(self._in_force)
            ]
        builder.place.segment = self._segment
        builder.place.position = file.size
        frame = builder.build(
            places,
            epoch=self._fence.epoch,
            complete_lsn=complete_lsn,
            synced_pos=self._synced_pos,
            compression=self._settings.compression,
        )
        file.write(frame)
        self._in_force = self._definitions.in_force()
        self._written_lsn = complete_lsn
        self._refers_to = self._oldest_reference(builder)

    def _oldest_reference(self, builder: FrameBuilder) -> int:
        """The oldest segment that commits in this one refer to, those in `builder` too; 0: none."""
        found = (builder.oldest_reference(self._segment), self._refers_to)
        return min(filter(None, found), default=0)

    def _define(self, definition: Definition) -> int:
        """Where in this segment the definition stands; it is written if it does not yet."""
        content = definition.content
        if content not in self._defined_at:
            file = self._appender()
            self._defined_at[content] = file.size
            self._tables.used(content, self._segment)
            file.write(
                relation_frame(
                    content,
                    epoch=self._fence.epoch,
                    complete_lsn=self._written_lsn,
                    synced_pos=self._synced_pos,
                )
            )
        return self._defined_at[content]

    def _sync(self) -> None:
        file = self._appender()
        file.sync()
        self._synced_pos = file.size
        self._synced_lsn = self._written_lsn

    @property
    def _unsynced_bytes(self) -> int:
        return self._file.size - self._synced_pos if self._file is not None else 0

    def _publish(self) -> None:
        """Let readers see what has been synced, and no more: frames behind it may be written."""
        self._fence.check()
        self._tables.save()
        self.complete_lsn = self._synced_lsn
        self._counter += 1
        head = Head(
            epoch=self._fence.epoch,
            first_segment=self._first_segment,
            last_segment=self._segment,
            position=self._synced_pos,
            complete_lsn=self.complete_lsn,
            open_segment=self.oldest_open_segment,
            refers_to=self._refers_to,
            counter=self._counter,
        )
        self._storage.overwrite(HEAD, head.pack())

    def _is_full(self) -> bool:
        if self._synced_pos == SEGMENT_HEADER_SIZE:
            return False
        age_s = time.time() - self._created_us / 1e6
        return (
            self._synced_pos >= self._settings.segment_bytes
            or age_s >= self._settings.segment_age_s
        )

    def _roll(self) -> None:
        """The segment is full and synced: go on in the next one."""
        self._appender().close()
        self._file = None  # should the next one fail, there is nothing here to cut off
        self._open_segment(self._segment + 1, refers_to=self._refers_to)
        self._publish()

    @contextlib.contextmanager
    def failures(self) -> Iterator[None]:
        """Whatever the disk refuses ends this writer, with the segment cut off at the last sync."""
        try:
            yield
        except OSError as error:
            if self._file is not None:
                with contextlib.suppress(OSError, LogFenced):
                    self._fence.check()
                    self._file.truncate(self._synced_pos)
                self._file.close()
                self._file = None
            reason = error.strerror or str(error)
            if error.errno in _NOT_OURS and not self._opened:
                raise LogUnwritable(self.where, reason) from error
            kind = LogFull if error.errno in _NO_ROOM else LogNotWritten
            raise kind(self.where, reason) from error
