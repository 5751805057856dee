"""Epochs: the newest writer of a log wins, also over one that a lock on its disk did not stop."""

from __future__ import annotations

from penstock.changelog.storage import Storage
from penstock.errors import LogFenced

_EPOCH = "epoch"


class Fence:
    """Taken by each writer when it opens the log, and checked before it shows anything."""

    def __init__(self, storage: Storage, where: str) -> None:
        """Be the newest writer: an older one that still runs will see it and stop."""
        self._storage = storage
        self._where = where
        try:
            before = int(storage.read(_EPOCH) or b"0")
        except FileNotFoundError:
            before = 0
        self.epoch = before + 1
        storage.replace(_EPOCH, b"%d" % self.epoch)

    def check(self) -> None:
        """Raises `LogFenced` if another writer came later."""
        newest = int(self._storage.read(_EPOCH))
        if newest != self.epoch:
            raise LogFenced(
                f"writer {newest} has taken over the change log in {self._where}",
                remedy="Only one capture may run for a log: stop one of them",
                epoch=newest,
            )
