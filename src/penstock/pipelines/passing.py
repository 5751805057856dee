"""After what aggregates try again: failures of databases and of the log's disk that pass by
themselves.
"""

from __future__ import annotations

import psycopg

from penstock.errors import (
    ConnectionLost,
    LogInUse,
    LogNotWritten,
    PenstockError,
    SetupBlocked,
    SlotLimitReached,
    SourceUnavailable,
    TableRewritten,
    VerifyTimeout,
)

# By class or code: the connection, others' transactions and locks, the server's resources and
# disks, what its operator does. A server that only reads (25006) is a standby, until a failover is
# done, or one whose disk is full. Not all that psycopg calls operational: a limit of the server's
# own, or a table that refuses to be updated, is met again.
_PASSING = ("08", "40", "53", "57", "58", "25006", "55006", "55P03")


# The first that fits, for the error's SQLSTATE.
_MEANINGS = {
    "57P03": "the server is starting or shutting down",
    "57": "the server ended the connection: it was restarted, or an operator ended the session",
    "08": "the connection was lost",
    "40": "another transaction was in the way",
    "53": "the server is short of connections, memory or disk space",
    "58": "the server's own disk or system failed",
    "25006": "the database only reads: it is a standby, or its disk is full",
    "55": "others have locked what is needed",
}


def meaning(error: Exception) -> str:
    """Return what a transient error means, in one sentence without a value of any row."""
    if isinstance(error, PenstockError):
        return error.problem
    sqlstate = error.sqlstate if isinstance(error, psycopg.Error) else None
    if sqlstate is None:
        # libpq's own: the server said nothing more.
        return "the connection was lost: the server was restarted, or the network failed"
    found = (text for code, text in _MEANINGS.items() if sqlstate.startswith(code))
    return next(found, "the server refused it for now")


def passes(error: BaseException | None) -> bool:
    if isinstance(error, psycopg.Error):
        if error.sqlstate is None:  # it did not come from the server
            return isinstance(error, psycopg.OperationalError)
        return error.sqlstate.startswith(_PASSING)
    # One that begins has the log keep what it needs.
    return isinstance(error, SourceUnavailable | ConnectionLost | LogNotWritten | LogInUse)


def may_pass(error: Exception) -> bool:
    """Of an error in seeding, which tells the server's in our own words."""
    # By transactions, a base backup that has the last walsender, or capture that does not run yet.
    held_up = isinstance(error, SetupBlocked | SlotLimitReached | TableRewritten | VerifyTimeout)
    return held_up or passes(error) or passes(error.__cause__)
