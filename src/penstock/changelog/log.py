"""A first, plain change log: one append-only file, written by capture and read by Spark.

    file    = frame*                         the first frame is the header
    frame   = length UInt32, crc32 UInt32, body           crc32 covers the body
    body    = 'H' start_lsn UInt64, timeline UInt32, system_id          header
            | 'T' commit_lsn UInt64, committed_us Int64, xid UInt32, (length UInt32, payload)*
            | 'L' lsn UInt64                 complete up to: every commit at or below is above

Integers are big-endian. Whatever follows the last whole 'L' is what a crash leaves behind: the
writer cuts it off, readers stop before it. A damaged frame with a whole 'L' somewhere behind it is
`LogCorrupt`. A position is durable after `flush`; readers see only what was flushed when they
looked, or more.
"""

from __future__ import annotations

import contextlib
import io
import os
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from penstock.capture.transactions import Transaction
from penstock.errors import LogCorrupt, LogMissing, LogNotWritten
from penstock.lsn import Lsn

_FRAME = struct.Struct(">II")
_HEADER = struct.Struct(">cQI")
_TRANSACTION = struct.Struct(">cQqI")
_COMPLETE = struct.Struct(">cQ")
_LENGTH = struct.Struct(">I")
_FILE_NAME = "changes.log"


@dataclass(frozen=True, slots=True)
class LogHeader:
    """Where the log begins, and which server it comes from."""

    start_lsn: Lsn
    timeline: int
    system_id: str


@dataclass(frozen=True, slots=True)
class Position:
    """A place between two frames: complete up to `lsn`, at `byte_pos` of the file."""

    lsn: Lsn
    byte_pos: int


class LogWriter:
    """The one writer. `durable_lsn` is complete and on disk."""

    def __init__(self, directory: Path, header: LogHeader | None = None) -> None:
        """Open the log, or begin one with `header` where there is none."""
        self._path = directory / _FILE_NAME
        self._pending = bytearray()
        with _named(self._path), contextlib.ExitStack() as on_failure:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not self._path.exists():
                if header is None:
                    raise LogMissing(
                        f"there is no change log in {directory}",
                        remedy="Start capture, which begins one",
                        path=str(directory),
                    )
                _begin(self._path, header)
            reader = LogReader(directory)
            end = reader.end()
            self._file = on_failure.enter_context(self._path.open("ab", buffering=0))
            self._file.truncate(end.byte_pos)
            # A writer that was killed between write and sync left what only seems to be on disk.
            os.fdatasync(self._file.fileno())
            on_failure.pop_all()
        self.header = reader.header
        self.durable_lsn = end.lsn
        self._durable_byte_pos = end.byte_pos

    def append(self, transaction: Transaction) -> None:
        """Take a transaction; nobody sees it before `flush`."""
        parts = [
            _TRANSACTION.pack(
                b"T", transaction.commit_lsn, transaction.committed_us, transaction.xid
            )
        ]
        for payload in transaction.payloads:
            parts += (_LENGTH.pack(len(payload)), payload)
        self._add(b"".join(parts))

    def flush(self, complete_up_to: Lsn) -> None:
        """Write everything and the position; on return both are on disk.

        After a failure the writer is of no more use. A failed sync is never tried again, for the
        next one would report success: what came since the last good one is dropped, and the server
        sends it again.
        """
        self._add(_COMPLETE.pack(b"L", complete_up_to))
        pending, self._pending = self._pending, bytearray()
        with _named(self._path):
            try:
                _write(self._file, pending)
            except OSError:
                with contextlib.suppress(OSError):
                    self._file.truncate(self._durable_byte_pos)
                self.close()
                raise
        self._durable_byte_pos += len(pending)
        self.durable_lsn = complete_up_to

    def close(self) -> None:
        self._file.close()

    def _add(self, body: bytes) -> None:
        self._pending += _frame(body)


class LogReader:
    """Reads without locks, from any process, what the writer has flushed."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / _FILE_NAME
        try:
            first = next(self._bodies(0), None)
        except FileNotFoundError:
            first = None
        if first is None or first[0][:1] != b"H":
            raise LogMissing(
                f"there is no change log in {directory}",
                remedy="Check the path, and that capture has been started",
                path=str(directory),
            )
        body, self._first_byte_pos = first
        _, start_lsn, timeline = _HEADER.unpack_from(body)
        self.header = LogHeader(Lsn(start_lsn), timeline, body[_HEADER.size :].decode())

    def start(self) -> Position:
        return Position(self.header.start_lsn, self._first_byte_pos)

    def end(self, after: Position | None = None) -> Position:
        """The last position that is complete, searched from `after` on."""
        end = after or self.start()
        for body, byte_pos in self._bodies(end.byte_pos):
            if body[:1] == b"L":
                end = Position(Lsn(_COMPLETE.unpack(body)[1]), byte_pos)
        return end

    def transactions(self, after: Position, up_to: Position) -> Iterator[Transaction]:
        """Those that commit in (after, up_to], in commit order."""
        for body, byte_pos in self._bodies(after.byte_pos):
            if byte_pos > up_to.byte_pos:
                return
            if body[:1] == b"T":
                yield _transaction(body)

    def _bodies(self, byte_pos: int) -> Iterator[tuple[bytes, int]]:
        """Each frame's body and the position behind it, up to a torn tail."""
        with self._path.open("rb") as file:
            # What is written from now on is for the next time: half of it may be here by then.
            size = os.fstat(file.fileno()).st_size
            file.seek(byte_pos)
            while byte_pos < size:
                body = _read_body(file, size - byte_pos)
                if body is None:
                    file.seek(byte_pos)
                    if _has_position(file.read(size - byte_pos)):
                        raise LogCorrupt(str(self._path), byte_pos, "a frame is not what it was")
                    return
                byte_pos += _FRAME.size + len(body)
                yield body, byte_pos


@contextlib.contextmanager
def _named(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise LogNotWritten(str(path), error.strerror or str(error)) from error


def _begin(path: Path, header: LogHeader) -> None:
    """A new log: it is there as a whole or not at all. Rows are for its owner's eyes only."""
    new = path.with_suffix(".new")
    new.unlink(missing_ok=True)
    fields = _HEADER.pack(b"H", header.start_lsn, header.timeline) + header.system_id.encode()
    with open(new, "xb", buffering=0, opener=_private) as file:
        _write(file, _frame(fields) + _frame(_COMPLETE.pack(b"L", header.start_lsn)))
    new.rename(path)
    _sync_directory(path.parent)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _write(file: io.FileIO, data: bytes | bytearray) -> None:
    view = memoryview(data)
    while view:
        view = view[file.write(view) :]
    os.fdatasync(file.fileno())


def _frame(body: bytes) -> bytes:
    return _FRAME.pack(len(body), zlib.crc32(body)) + body


def _read_body(file: BinaryIO, left: int) -> bytes | None:
    """The next frame's body, or None if it is not whole."""
    if left < _FRAME.size:
        return None
    length, checksum = _FRAME.unpack(file.read(_FRAME.size))
    if length > left - _FRAME.size:
        return None
    body = file.read(length)
    return body if zlib.crc32(body) == checksum else None


def _has_position(tail: bytes) -> bool:
    """Whether a whole 'L' frame is anywhere in it: then a flush ended there, and all was well."""
    length = _LENGTH.pack(_COMPLETE.size)
    at = tail.find(length)
    while at >= 0:
        frame = tail[at : at + _FRAME.size + _COMPLETE.size]
        body = frame[_FRAME.size :]
        if body[:1] == b"L" and frame == _frame(body):
            return True
        at = tail.find(length, at + 1)
    return False


def _transaction(body: bytes) -> Transaction:
    _, commit_lsn, committed_us, xid = _TRANSACTION.unpack_from(body)
    payloads = []
    at = _TRANSACTION.size
    while at < len(body):
        (length,) = _LENGTH.unpack_from(body, at)
        at += _LENGTH.size
        payloads.append(body[at : at + length])
        at += length
    return Transaction(xid, Lsn(commit_lsn), committed_us, tuple(payloads))


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
