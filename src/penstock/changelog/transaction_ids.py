"""The highest transaction id that the log knows to be on disk at its server: `highest_xid`.

A server gives each id once. So one whose next id is not above the log's highest was restored from
an older image, even if its WAL has grown past the log's position in the meantime.

An id counts once the log is complete up to where the server wrote it: only WAL that is on disk is
sent, so the server has it after any crash. Ids have 64 bits here; the stream has the lower 32.
"""

from __future__ import annotations

from penstock.changelog.storage import Storage
from penstock.lsn import Lsn
from penstock.postgres.system_identity import TransactionIds

FILE = "highest_xid"
# A loss of some seconds makes the check a little weaker, and a sync has its cost.
_SAVE_INTERVAL_S = 5.0
_HALF = 2**31


def full_xid(near: int, xid: int) -> int:
    """Return the id with 64 bits that ends in the 32 of `xid` and is nearest to `near`.

    >>> hex(full_xid(0x5_0000_0010, 0xffff_fff0))
    '0x4fffffff0'
    """
    return near + (xid - near + _HALF) % 2**32 - _HALF


class HighestXid:
    """The writer's side of the file."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self.known = read_highest(storage)
        self._saved = self.known
        self._save_at = 0.0
        self._now: TransactionIds | None = None
        # The highest in commits that the log has taken, and not yet flushed.
        self._taken = 0

    def begin(self, now: TransactionIds) -> None:
        """Take the server's ids at the start of a connection; without it nothing is noted."""
        self._now = now

    def committed(self, xid: int) -> None:
        if self._now is not None:
            self._taken = max(self._taken, full_xid(max(self._now.next_xid, self._taken), xid))

    def flushed(self, complete_lsn: Lsn, now_s: float) -> None:
        """All that was taken is on disk, and the log is complete up to there."""
        if self._now is None:
            return
        ended = self._now.ended_xid if complete_lsn >= self._now.ended_lsn else 0
        self.known = max(self.known, self._taken, ended)
        if now_s >= self._save_at:
            self.save()
            self._save_at = now_s + _SAVE_INTERVAL_S

    def save(self) -> None:
        if self.known > self._saved:
            self._storage.replace(FILE, f"{self.known}\n".encode())
            self._saved = self.known


def read_highest(storage: Storage) -> int:
    """Return the highest id that was saved; 0 if there is none, as in logs of older versions."""
    try:
        return int(storage.read(FILE))
    except (FileNotFoundError, ValueError):
        return 0
