"""Doubles for tests, ours and users': a disk in memory that fails and crashes, a log that records.

`MemoryStorage` tells what is written from what is synced, so that a crash can be played: at any
moment, with any part of what was not synced.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from penstock.lsn import ZERO, Lsn
from penstock.postgres.fragments import Abort, Commit, Description, Fragment

# Called with the operation ("write", "sync", …) and the file's name before it happens; it may
# raise OSError. A write that fails so has written half of its data.
Fault: TypeAlias = Callable[[str, str], None]


def no_fault(_operation: str, _name: str) -> None:
    """All is well."""


@dataclass
class _File:
    data: bytearray = field(default_factory=bytearray)
    synced: bytes = b""


class MemoryStorage:
    """A `Storage` without a disk."""

    def __init__(self, fault: Fault = no_fault) -> None:
        self.fault = fault
        self.reads = 0
        self._files: dict[str, _File] = {}
        # A removal is not synced either: after a crash the file may be back.
        self._removed: dict[str, _File] = {}
        self._locked: set[str] = set()

    def crash(self, chance: random.Random) -> MemoryStorage:
        """What another process finds after a power cut: all that was synced, some of the rest."""
        after = MemoryStorage()
        back = {name: file for name, file in self._removed.items() if chance.random() < 0.5}
        for name, file in (back | self._files).items():
            kept = bytes(file.data)
            if kept != file.synced:
                shared = min(len(kept), len(file.synced))
                if kept[:shared] == file.synced[:shared]:
                    cut = chance.randint(shared, max(len(kept), len(file.synced)))
                    kept = kept[:cut] if len(kept) > shared else file.synced
                else:  # overwritten in place
                    kept = chance.choice([kept, file.synced])
            after._files[name] = _File(bytearray(kept), kept)
        return after

    def append_to(self, name: str) -> MemoryAppender:
        self.fault("create", name)
        return MemoryAppender(self, name, self._files.setdefault(name, _File()))

    def replace(self, name: str, data: bytes) -> None:
        self.fault("replace", name)
        self._files[name] = _File(bytearray(data), data)

    def overwrite(self, name: str, data: bytes, at: int = 0) -> None:
        self.fault("overwrite", name)
        file = self._files.setdefault(name, _File())
        file.data[at : at + len(data)] = data

    def sync(self, name: str) -> None:
        self.fault("sync", name)
        file = self._file(name)
        file.synced = bytes(file.data)

    def read(self, name: str, at: int = 0, size: int | None = None) -> bytes:
        self.reads += 1
        data = self._file(name).data
        return bytes(data[at:] if size is None else data[at : at + size])

    def size(self, name: str) -> int:
        return len(self._file(name).data)

    def names(self, folder: str) -> list[str]:
        prefix = f"{folder}/" if folder else ""
        inside = (name.removeprefix(prefix) for name in self._files if name.startswith(prefix))
        return sorted({name.partition("/")[0] for name in inside})

    def remove(self, name: str) -> None:
        if (file := self._files.pop(name, None)) is not None:
            self._removed[name] = file

    @contextlib.contextmanager
    def lock(self, name: str) -> Iterator[bool]:
        if name in self._locked:
            yield False
            return
        self._locked.add(name)
        try:
            yield True
        finally:
            self._locked.discard(name)

    def _file(self, name: str) -> _File:
        try:
            return self._files[name]
        except KeyError:
            raise FileNotFoundError(name) from None


class MemoryAppender:
    def __init__(self, storage: MemoryStorage, name: str, file: _File) -> None:
        self._storage = storage
        self._name = name
        self._file = file

    @property
    def size(self) -> int:
        return len(self._file.data)

    def write(self, data: bytes) -> None:
        try:
            self._storage.fault("write", self._name)
        except OSError:
            self._file.data += data[: len(data) // 2]
            raise
        self._file.data += data

    def sync(self) -> None:
        self._storage.fault("sync", self._name)
        self._file.synced = bytes(self._file.data)

    def truncate(self, size: int) -> None:
        self._storage.fault("truncate", self._name)
        del self._file.data[size:]

    def close(self) -> None:
        pass


class RecordingLog:
    """A `ChangeLog` in memory that remembers every call, and what is visible."""

    def __init__(self, complete_lsn: Lsn = ZERO) -> None:
        self.complete_lsn = complete_lsn
        self.calls: list[tuple[str, object]] = []
        # Committed and flushed: xid and commit LSN, in commit order.
        self.visible: list[tuple[int, Lsn]] = []
        self._committed: list[tuple[int, Lsn]] = []

    def append(self, fragment: Fragment) -> None:
        self.calls.append(("append", fragment))

    def describe(self, description: Description) -> None:
        self.calls.append(("describe", description))

    def abort(self, abort: Abort) -> None:
        self.calls.append(("abort", abort))

    def commit(self, xid: int, commit: Commit) -> None:
        self.calls.append(("commit", xid))
        self._committed.append((xid, commit.lsn))

    def flush(self, complete_up_to: Lsn) -> None:
        self.calls.append(("flush", complete_up_to))
        self.visible += self._committed
        self._committed = []
        self.complete_lsn = max(self.complete_lsn, complete_up_to)
