"""Which failures of a database pass by themselves."""

from __future__ import annotations

import psycopg
from psycopg import errors as pg

from penstock.errors import ConnectionLost, SourceUnavailable, TargetUnavailable

# By class or code: the connection, others' transactions and locks, the server's resources and
# disks, what its operator does. Not all that psycopg calls operational: a limit of the server's
# own, or a table that refuses to be updated, is met again.
_PASSING = ("08", "40", "53", "57", "58", "55006", "55P03")
# A large batch takes long, and the server may have a limit: it ends the session.
_SESSION_LIMITS = ("25P03", "25P04")
# For sessions that write batches, which would reach such limits again and again: they are for
# others. That on transactions has no name before PostgreSQL 17.
UNLIMITED = "-c statement_timeout=0 -c idle_in_transaction_session_timeout=0"


def passes(error: BaseException | None) -> bool:
    """Of an error in statements that take a moment."""
    if isinstance(error, psycopg.Error):
        if error.sqlstate is None:  # it did not come from the server
            return isinstance(error, psycopg.OperationalError)
        return error.sqlstate.startswith((*_PASSING, *_SESSION_LIMITS))
    return isinstance(error, SourceUnavailable | ConnectionLost)


def may_pass(error: Exception) -> bool:
    """Of an error in seeding, which is long and begins anew each time."""
    # A limit on the time of statements would be reached again.
    if any(isinstance(each, pg.QueryCanceled) for each in (error, error.__cause__)):
        return False
    return passes(error.__cause__ if isinstance(error, TargetUnavailable) else error)
