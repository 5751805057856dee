"""Folders for what is thrown away. Shared word: imports only `errors`.

A process that is killed leaves its folder. Each is locked for as long as its process lives, so that
the next one knows which were left, and removes them.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from penstock.errors import ScratchUnwritable

# Short, for the names of sockets in it are limited.
_PREFIX, _NEW = "penstock-tmp-", "penstock-new-"


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """A new folder, which is gone afterwards."""
    new = _made()
    with _open(new) as descriptor:
        # Where folders cannot be locked, nobody else removes it.
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Only now, for one that is not locked is taken for left.
        folder = new.rename(new.with_name(new.name.replace(_NEW, _PREFIX, 1)))
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _made() -> Path:
    try:
        _tidy(Path(tempfile.gettempdir()))
        return Path(tempfile.mkdtemp(prefix=_NEW))
    except OSError as error:  # no room, or no folder that we may write to
        raise ScratchUnwritable(
            f"no temporary folder can be made: {error.strerror}",
            remedy="Make room there, or let TMPDIR name a folder that has some",
        ) from error


def _tidy(place: Path) -> None:
    for left in place.glob(f"{_PREFIX}*"):
        with suppress(OSError), _open(left) as descriptor:
            # Not if it is in use, or another user's, which root could remove.
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(descriptor).st_uid == os.geteuid():
                shutil.rmtree(left, ignore_errors=True)


@contextmanager
def _open(folder: Path) -> Iterator[int]:
    """Its lock ends with the descriptor, which no process that we start inherits."""
    # Anybody may have put anything of that name into a folder for all.
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
