"""Waiting until a file changes, without spinning: inotify where there is one, else short naps.

A watch that sees nothing is not wrong, only slow: a directory on another machine tells nobody, so
every wait ends after a moment, and the caller looks for itself.
"""

from __future__ import annotations

import ctypes
import os
import select
import struct
import time

from penstock.changelog.storage import LocalStorage, Storage
from penstock.closing import Closing

_IN_MODIFY = 0x2
# Without inotify: how often to look. With it: how long to trust its silence.
_NAP_S = 0.02
_TRUST_S = 1.0
_EVENT = struct.Struct("iIII")


class HeadWatch(Closing):
    """Watches one file while it is open."""

    def __init__(self, storage: Storage, name: str) -> None:
        path = os.fspath(storage.root / name) if isinstance(storage, LocalStorage) else None
        self._descriptor = _inotify(path) if path else None

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)

    def wait(self, timeout_s: float) -> None:
        """Until the file may have changed; look before you wait for the first time."""
        if self._descriptor is None:
            time.sleep(min(timeout_s, _NAP_S))
            return
        ready, _, _ = select.select([self._descriptor], [], [], min(timeout_s, _TRUST_S))
        if ready:
            os.read(self._descriptor, 64 * _EVENT.size)


def _inotify(path: str) -> int | None:
    """A descriptor that becomes readable when the file is written to, or None."""
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        descriptor: int = libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, AttributeError):  # not Linux
        return None
    if descriptor < 0:
        return None
    if libc.inotify_add_watch(descriptor, os.fsencode(path), _IN_MODIFY) < 0:
        os.close(descriptor)
        return None
    return descriptor
