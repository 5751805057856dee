"""What a log is to those who write to it: the interface. `writer.py` is the one on disk."""

from __future__ import annotations

from typing import Protocol

from penstock.lsn import Lsn
from penstock.postgres.fragments import Abort, Commit, Description, Fragment


class ChangeLog(Protocol):
    """What capture needs of a log that hides uncommitted data. One thread calls it.

    append / abort / describe   nothing is visible, nothing is durable
    commit                      the transaction is whole; still not visible
    flush                       all of it is on disk, and then visible
    """

    complete_lsn: Lsn

    def append(self, fragment: Fragment) -> None:
        """Take a part of a transaction, before its commit is known. It stays invisible."""

    def describe(self, description: Description) -> None:
        """From here on, changes of this table look like this."""

    def abort(self, abort: Abort) -> None:
        """A transaction, or a subtransaction of it, will never commit."""

    def commit(self, xid: int, commit: Commit) -> None:
        """The transaction is whole: it becomes visible, all at once, with the next `flush`."""

    def flush(self, complete_up_to: Lsn) -> None:
        """On return everything appended is on disk, and what was committed is visible."""
