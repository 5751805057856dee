"""What has been collected of one transaction: on disk, and behind that what is still in memory.

The file is made at the first spill and unlinked at once, so that no other process can open it and
nothing is left of it when ours ends, however it ends. Its mode is 0600, for it holds rows.

    entry   size UInt32, xid UInt32, payload (size bytes)       little-endian

Memory and file hold the same entries, and only whole ones: a spill moves the bytes as they are.
"""

from __future__ import annotations

import contextlib
import os
import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from penstock.errors import SpillFailed

_ENTRY = struct.Struct("<II")
# What is read back at once, unless one entry is larger.
_CHUNK_BYTES = 64 * 2**10


def prepare_directory(directory: Path) -> None:
    """Make it if need be, and refuse one without use now, not in the midst of a transaction."""
    with _failures(directory):
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=directory).close()


class Spill:
    """Entries in the order added. One thread adds, and reads when all has been added."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._memory = bytearray()
        self._file: IO[bytes] | None = None
        self._file_bytes = 0
        self._closed = False

    @property
    def memory_bytes(self) -> int:
        return len(self._memory)

    def add(self, xid: int, *payload: bytes | memoryview) -> int:
        """Append an entry, whose payload may come in parts; returns its size."""
        size = sum(map(len, payload))
        self._memory += _ENTRY.pack(size, xid)
        for part in payload:
            self._memory += part
        return _ENTRY.size + size

    def to_disk(self) -> None:
        """Move what is in memory to the file. After an error it is of no more use."""
        with _failures(self._directory):
            if self._file is None:
                self._file = tempfile.TemporaryFile(  # noqa: SIM115 - until `close`
                    buffering=0, dir=self._directory
                )
            with memoryview(self._memory) as left:
                written = 0
                while written < len(left):
                    written += os.write(self._file.fileno(), left[written:])
        self._file_bytes += len(self._memory)
        # A new one: clearing it would keep its room.
        self._memory = bytearray()

    def entries(self) -> Iterator[tuple[int, bytes]]:
        """Each xid and payload, from the start, as often as it is asked for."""
        at, want = 0, _CHUNK_BYTES
        while at < self._file_bytes:
            data = self._read(at, want)
            used = 0
            for end, xid, payload in _whole_entries(data):
                used = end
                yield xid, payload
            at += used
            # The next one is in part beyond the chunk, and may be larger than any chunk.
            rest = data[used : used + _ENTRY.size]
            need = _ENTRY.unpack(rest)[0] + _ENTRY.size if len(rest) == _ENTRY.size else 0
            want = max(_CHUNK_BYTES, need)
        self._must_be_open()
        for _, xid, payload in _whole_entries(self._memory):
            yield xid, payload

    def close(self) -> None:
        """Give memory and disk back."""
        self._closed = True
        self._memory = bytearray()
        if self._file is not None:
            self._file.close()
            self._file = None

    def _read(self, at: int, size: int) -> bytes:
        self._must_be_open()
        assert self._file is not None  # noqa: S101 - something was written to it
        size = min(size, self._file_bytes - at)
        with _failures(self._directory):
            data = os.pread(self._file.fileno(), size, at)
            if len(data) < size:
                raise OSError("the file is shorter than what was written to it")
        return data

    def _must_be_open(self) -> None:
        # Else it would seem to have no entries.
        if self._closed:
            raise ValueError("the transaction was closed")


def _whole_entries(data: bytes | bytearray) -> Iterator[tuple[int, int, bytes]]:
    """Where each entry ends, its xid and its payload, as far as they are whole."""
    at = 0
    while at + _ENTRY.size <= len(data):
        size, xid = _ENTRY.unpack_from(data, at)
        start = at + _ENTRY.size
        at = start + size
        if at > len(data):
            return
        yield at, xid, bytes(data[start:at])


@contextlib.contextmanager
def _failures(directory: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise SpillFailed(str(directory), error.strerror or str(error)) from error
