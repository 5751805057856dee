"""After what aggregates try again: failures of databases and of the log's disk that pass by
themselves.
"""

from __future__ import annotations

import psycopg

from penstock.errors import (
    ConnectionLost,
    LogInUse,
    LogNotWritten,
    SetupBlocked,
    SlotLimitReached,
    SourceUnavailable,
    TableRewritten,
)

# By class or code: the connection, others' transactions and locks, the server's resources and
# disks, what its operator does. A server that only reads (25006) is a standby, until a failover is
# done, or one whose disk is full. Not all that psycopg calls operational: a limit of the server's
# own, or a table that refuses to be updated, is met again.
_PASSING = ("08", "40", "53", "57", "58", "25006", "55006", "55P03")


def passes(error: BaseException | None) -> bool:
    if isinstance(error, psycopg.Error):
        if error.sqlstate is None:  # it did not come from the server
            return isinstance(error, psycopg.OperationalError)
        return error.sqlstate.startswith(_PASSING)
    # One that begins has the log keep what it needs.
    return isinstance(error, SourceUnavailable | ConnectionLost | LogNotWritten | LogInUse)


def may_pass(error: Exception) -> bool:
    """Of an error in seeding, which tells the server's in our own words."""
    # By transactions, or by a base backup that has the last walsender: they end some time.
    held_up = isinstance(error, SetupBlocked | SlotLimitReached | TableRewritten)
    return held_up or passes(error) or passes(error.__cause__)
