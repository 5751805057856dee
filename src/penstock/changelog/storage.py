"""Where the log's files are: the only module of the log that touches a file system.

The log needs little: append to a file and sync it, replace a small file whole, overwrite the head
in place, read ranges, list, remove. Local files do this here; tests put one in between that fails.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from penstock.errors import (
    LogFolderUnsafe,
    LogOfAnotherUser,
    LogOpenToOthers,
    LogUnreadable,
    LogUnwritable,
)


class Appender(Protocol):
    """A file that grows at its end."""

    @property
    def size(self) -> int: ...

    def write(self, data: bytes) -> None:
        """Append all of it; it may be lost until `sync`."""

    def sync(self) -> None:
        """On return everything written is on disk. A failed sync is never tried again."""

    def truncate(self, size: int) -> None: ...

    def close(self) -> None: ...


class Storage(Protocol):
    """Names are relative paths with `/`."""

    def append_to(self, name: str) -> Appender:
        """Open for appending; the file is made, durably, if it does not exist."""

    def replace(self, name: str, data: bytes) -> None:
        """All of the new content or all of the old, whatever happens; durable on return."""

    def overwrite(self, name: str, data: bytes, at: int = 0) -> None:
        """Write in place, in one call, without a sync."""

    def sync(self, name: str) -> None:
        """On return what was overwritten in the file is on disk."""

    def read(self, name: str, at: int = 0, size: int | None = None) -> bytes:
        """What is there of that range; `FileNotFoundError` if the file is not."""

    def size(self, name: str) -> int: ...

    def names(self, folder: str) -> list[str]:
        """What is in a folder ("": the log's own), sorted; nothing if there is no such folder."""

    def remove(self, name: str) -> None: ...

    def lock(self, name: str) -> contextlib.AbstractContextManager[bool]:
        """Hold an exclusive lock; says whether it was to be had. Ends with the process."""


class LocalAppender:
    def __init__(self, path: Path) -> None:
        self._descriptor = _open_own(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self.size = os.fstat(self._descriptor).st_size

    def write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            written = os.write(self._descriptor, view)
            self.size += written
            view = view[written:]

    def sync(self) -> None:
        os.fdatasync(self._descriptor)

    def truncate(self, size: int) -> None:
        os.ftruncate(self._descriptor, size)
        self.size = size

    def close(self) -> None:
        os.close(self._descriptor)


class LocalStorage:
    """A directory. Its files can be read by their owner only: they hold rows.

    Nothing is written to a folder or a file that another user may change, nor through a link:
    `LogFolderUnsafe`. Whoever only reads may read what the system lets them.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._our_own: set[Path] = set()

    def append_to(self, name: str) -> Appender:
        path = self.root / name
        new = not path.exists()
        self._make_folder(path.parent)
        appender = LocalAppender(path)
        if new:
            try:
                appender.sync()
                _sync_folder(path.parent)
            except OSError:
                appender.close()
                raise
        return appender

    def replace(self, name: str, data: bytes) -> None:
        path = self.root / name
        self._make_folder(path.parent)
        # Another process may replace the same file at this moment: a name of its own.
        new = path.with_name(f".{path.name}.{uuid.uuid4().hex}.new")
        try:
            appender = LocalAppender(new)
            try:
                appender.write(data)
                appender.sync()
            finally:
                appender.close()
            new.replace(path)
        except OSError:
            new.unlink(missing_ok=True)
            raise
        _sync_folder(path.parent)

    def overwrite(self, name: str, data: bytes, at: int = 0) -> None:
        path = self.root / name
        self._check_folder(path.parent)
        descriptor = _open_own(path, os.O_WRONLY | os.O_CREAT)
        try:
            view = memoryview(data)
            while view:
                written = os.pwrite(descriptor, view, at)
                view, at = view[written:], at + written
        finally:
            os.close(descriptor)

    def sync(self, name: str) -> None:
        path = self.root / name
        self._check_folder(path.parent)
        descriptor = _open_own(path, os.O_WRONLY)
        try:
            os.fdatasync(descriptor)
        finally:
            os.close(descriptor)

    def read(self, name: str, at: int = 0, size: int | None = None) -> bytes:
        try:
            # Not by a file object: each flush reads the writer's epoch (`bench latency`).
            descriptor = os.open(f"{self.root}/{name}", os.O_RDONLY)
            try:
                left = os.fstat(descriptor).st_size - at
                size = max(0, left if size is None else min(size, left))
                return os.pread(descriptor, size, at)
            finally:
                os.close(descriptor)
        except (PermissionError, IsADirectoryError) as error:
            raise LogUnreadable(str(self.root / name), error.strerror or "") from None

    def size(self, name: str) -> int:
        try:
            # Opened, for network file systems may answer from what they saw some seconds ago.
            with (self.root / name).open("rb") as file:
                return os.fstat(file.fileno()).st_size
        except PermissionError as error:
            raise LogUnreadable(str(self.root / name), error.strerror or "") from None

    def names(self, folder: str) -> list[str]:
        try:
            names = [entry.name for entry in (self.root / folder).iterdir()]
        except FileNotFoundError:
            return []
        except (PermissionError, NotADirectoryError) as error:
            raise LogUnreadable(str(self.root / folder), error.strerror or "") from None
        return sorted(name for name in names if not name.startswith("."))

    def remove(self, name: str) -> None:
        path = self.root / name
        try:
            self._check_folder(path.parent)
            path.unlink(missing_ok=True)
        except FileNotFoundError:
            return  # not even the folder is there
        except (PermissionError, IsADirectoryError) as error:
            raise LogUnwritable(str(path), error.strerror or "") from None

    @contextlib.contextmanager
    def lock(self, name: str) -> Iterator[bool]:
        with self.held(name) as descriptor:
            yield descriptor is not None

    @contextlib.contextmanager
    def held(self, name: str) -> Iterator[int | None]:
        """As `lock`, with the descriptor: a process that inherits it holds the lock too."""
        path = self.root / name
        self._make_folder(path.parent)
        descriptor = _open_own(path, os.O_RDWR | os.O_CREAT)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield None
            else:
                yield descriptor
        finally:
            os.close(descriptor)

    def _make_folder(self, folder: Path) -> None:
        """Make a folder of the log, and those above it, where they are missing."""
        _make(folder)
        self._check_folder(folder)

    def _check_folder(self, folder: Path) -> None:
        """Refuse a folder that is not ours alone. Each is looked at once: only we can change it."""
        if folder in self._our_own:
            return
        found = folder.lstat()
        if stat.S_ISLNK(found.st_mode):
            # The path to the log is the operator's choice, and so is a link of theirs in it.
            if folder != self.root:
                raise LogFolderUnsafe(str(folder), "it is a symbolic link")
            if found.st_uid not in (0, os.geteuid()):
                raise LogOfAnotherUser(str(folder))
            found = folder.stat()
        if found.st_uid != os.geteuid():
            raise LogOfAnotherUser(str(folder))
        if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise LogOpenToOthers(str(folder))
        self._our_own.add(folder)


def _make(folder: Path) -> None:
    if not folder.exists():
        _make(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)
        _sync_folder(folder.parent)


def _open_own(path: Path, flags: int) -> int:
    """Open a file to write to it; readable by its owner only if it is made here."""
    try:
        descriptor = os.open(path, flags | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise LogFolderUnsafe(str(path), "it is a symbolic link") from None
    if os.fstat(descriptor).st_uid != os.geteuid():
        os.close(descriptor)
        raise LogOfAnotherUser(str(path))
    return descriptor


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
