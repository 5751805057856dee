"""A snapshot and its place in the WAL, from SQL functions alone.

Only a replication connection can make a snapshot at an exact position. An ordinary one is close:
it sees the commits before it, except those of transactions that were *in flight*. Which those are
the snapshot says itself, by their ids, and the log has the id of each transaction.

Two positions enclose the doubt, and outside of them there is none:

    `start`   every commit that ends at or below it is in the snapshot
    `end`     every commit that the snapshot has ends at or below it

A transaction writes its commit record before others see it as committed, and may wait in between
for a standby. So `start` is read first, and the snapshot is taken when all transactions that were
open then have ended: those that are in flight have begun later, and commit beyond `start`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg.rows import class_row

from penstock.lsn import Lsn
from penstock.postgres.system_identity import TRANSACTION_IDS, TransactionIds
from penstock.postgres.waiting import Blocker, GaveUp, OnWait

_LOOK_EVERY_S = 0.05
_XIDS = 2**32


@dataclass(frozen=True, slots=True)
class InFlight:
    """What a snapshot leaves in doubt: the commits in (start, end], by the ids of transactions."""

    start: Lsn
    end: Lsn
    # The first id that it cannot see, and those before it that were open; with their epoch.
    next_xid: int
    open_xids: frozenset[int]

    def sees(self, xid: int) -> bool:
        """Whether the snapshot has a transaction of the log, whose ids have no epoch.

        >>> snapshot = InFlight(Lsn(0), Lsn(9), 2**32 + 5, frozenset({2**32 + 3}))
        >>> [snapshot.sees(xid) for xid in (2**32 - 1, 2, 3, 4, 5)]
        [True, True, False, True, False]
        """
        # Ids go round in a circle, in which half of them are before any other.
        behind = (self.next_xid - xid) % _XIDS
        if not 0 < behind < _XIDS // 2:
            return False
        return self.next_xid - behind not in self.open_xids


# In this order: what is written before the position was open when the snapshot was taken.
_START = "SELECT pg_current_wal_insert_lsn()"
_OLDEST = "SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint"
_OPEN = """
SELECT pid, application_name AS application, usename AS user,
       extract(epoch FROM clock_timestamp() - xact_start)::int AS open_for_s
  FROM pg_stat_activity
 WHERE backend_xid IS NOT NULL AND pid <> pg_backend_pid()
 ORDER BY xact_start
"""
_SEEN = """
SELECT pg_snapshot_xmax(s)::text::bigint,
       ARRAY(SELECT x::text::bigint FROM pg_snapshot_xip(s) AS x),
       pg_current_wal_insert_lsn()
  FROM pg_current_snapshot() AS s
"""


def take_snapshot(
    reading: psycopg.Connection[Any],
    *,
    on_wait: OnWait,
    deadline_s: float,
    is_stopped: Callable[[], bool],
) -> InFlight:
    """Begin a transaction with a snapshot, in which `reading` stays; `GaveUp` at the deadline."""
    start = Lsn.parse(_value(reading, _START))
    row = reading.execute(TRANSACTION_IDS.encode()).fetchone()
    assert row is not None  # noqa: S101 - it answers with a row
    # Not what a snapshot calls its xmax: ids beyond it may have been given out.
    next_xid = TransactionIds.parse(*row).next_xid
    _wait_for_open(reading, next_xid, on_wait, deadline_s, is_stopped)
    reading.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
    row = reading.execute(_SEEN).fetchone()
    assert row is not None  # noqa: S101 - one row of one snapshot
    beyond, open_xids, end = row
    return InFlight(start, Lsn.parse(end), beyond, frozenset(open_xids))


def _wait_for_open(
    reading: psycopg.Connection[Any],
    next_xid: int,
    on_wait: OnWait,
    deadline_s: float,
    is_stopped: Callable[[], bool],
) -> None:
    """Return when all transactions before `next_xid` have ended, or when it is stopped."""
    give_up_at = time.monotonic() + deadline_s
    seen: tuple[Blocker, ...] = ()
    while _value(reading, _OLDEST) < next_xid and not is_stopped():
        with reading.cursor(row_factory=class_row(Blocker)) as cursor:
            now = tuple(cursor.execute(_OPEN).fetchall())
        if {each.pid for each in now} != {each.pid for each in seen}:
            on_wait(now)
        seen = now
        if time.monotonic() > give_up_at:
            raise GaveUp(seen)
        time.sleep(_LOOK_EVERY_S)


def _value(reading: psycopg.Connection[Any], query: str) -> Any:
    row = reading.execute(query.encode()).fetchone()
    assert row is not None  # noqa: S101 - each of them answers with a row
    return row[0]
