"""A first, plain change log: one append-only file, written by capture and read by Spark.

    file    = frame*                         the first frame is the header
    frame   = length UInt32, crc32 UInt32, body           crc32 covers the body
    body    = 'H' start_lsn UInt64, timeline UInt32, system_id          header
            | 'T' commit_lsn UInt64, committed_us Int64, xid UInt32, (length UInt32, payload)*
            | 'L' lsn UInt64                 complete up to: every commit at or below is above

Integers are big-endian. A frame that is cut off or does not match its checksum at the very end of
the file is what a crash leaves behind: the writer cuts it off, readers stop before it. A position
is durable after `flush`; readers see only what was flushed when they looked, or more.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from penstock.capture.transactions import Transaction
from penstock.errors import LogCorrupt, LogMissing
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
        directory.mkdir(parents=True, exist_ok=True)
        path = directory / _FILE_NAME
        new = not path.exists()
        if new and header is None:
            raise LogMissing(
                f"there is no change log in {directory}",
                remedy="Start capture, which begins one",
                path=str(directory),
            )
        self._file = path.open("ab", buffering=0)
        self._pending = bytearray()
        if new and header is not None:
            self._add(
                _HEADER.pack(b"H", header.start_lsn, header.timeline) + header.system_id.encode()
            )
            self.header = header
            self.durable_lsn = header.start_lsn
            self.flush(header.start_lsn)
            _sync_directory(directory)
        else:
            reader = LogReader(directory)
            self.header = reader.header
            end = reader.end()
            self._file.truncate(end.byte_pos)
            self.durable_lsn = end.lsn

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
        """Write everything and the position; on return both are on disk."""
        self._add(_COMPLETE.pack(b"L", complete_up_to))
        view = memoryview(self._pending)
        while view:
            view = view[self._file.write(view) :]
        os.fdatasync(self._file.fileno())
        self._pending = bytearray()
        self.durable_lsn = complete_up_to

    def close(self) -> None:
        self._file.close()

    def _add(self, body: bytes) -> None:
        self._pending += _FRAME.pack(len(body), zlib.crc32(body))
        self._pending += body


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
            file.seek(byte_pos)
            while len(head := file.read(_FRAME.size)) == _FRAME.size:
                length, checksum = _FRAME.unpack(head)
                body = file.read(length)
                if len(body) < length:
                    return
                if zlib.crc32(body) != checksum:
                    if file.read(1):
                        raise LogCorrupt(str(self._path), byte_pos, "a checksum does not match")
                    return
                byte_pos += _FRAME.size + length
                yield body, byte_pos


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
