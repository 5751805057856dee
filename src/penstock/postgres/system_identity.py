"""Which server this is and how far it has come, alike for replication and polling. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.errors import SourceUnavailable
from penstock.lsn import Lsn


@dataclass(frozen=True, slots=True)
class TransactionIds:
    """A server's transaction ids at one moment, each with 64 bits."""

    # The next one that it will give.
    next_xid: int
    # The highest of those that have ended. How is in the WAL before `ended_lsn`, which need not be
    # on disk: a crash may take it back, and the server gives the id once more.
    ended_xid: int
    ended_lsn: Lsn

    @classmethod
    def parse(cls, snapshot_xmax: str, age_of_first: str, insert_lsn: str) -> TransactionIds:
        """Take the columns of `TRANSACTION_IDS`."""
        beyond_ended = int(snapshot_xmax)
        since = (int(age_of_first) + _FIRST_XID - beyond_ended) % 2**32
        return cls(beyond_ended + since, beyond_ended - 1, Lsn.parse(insert_lsn))


_FIRST_XID = 3
# A snapshot knows what has ended, with 64 bits. Of the next id there are 32, as the age of the
# first one; to ask for an id would use one up. The position is read after the snapshot was taken.
TRANSACTION_IDS = (
    f"SELECT pg_snapshot_xmax(pg_current_snapshot())::text, age('{_FIRST_XID}'::xid)::text,"
    " pg_current_wal_insert_lsn()::text"
)
IN_RECOVERY = "SELECT pg_is_in_recovery()::text"


@dataclass(frozen=True, slots=True)
class SystemIdentity:
    """Which server this is, and how far it has come. It is no standby."""

    system_id: str
    timeline: int
    wal_end: Lsn
    database: str
    ids: TransactionIds


def require_primary(in_recovery: str) -> None:
    """Take the answer to `IN_RECOVERY`, which must come before the server's position.

    A standby is behind its primary, which is no reason to refuse the primary; and promoted under us
    it would change its timeline, and we would not know where.
    """
    if in_recovery == "true":
        raise SourceUnavailable(
            "the server is in recovery: it is a standby, or about to be promoted",
            remedy="Penstock waits for the promotion; to read from the primary, name it in dsn",
        )
