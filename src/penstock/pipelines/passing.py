"""Which failures of a database pass by themselves."""

from __future__ import annotations

import psycopg
from psycopg import errors as pg

from penstock.errors import ConnectionLost, SourceUnavailable, TargetUnavailable

# The connection, or the others' transactions: deadlocks are among psycopg's operational errors.
PASSING = (
    psycopg.OperationalError,
    # A large batch takes long, and the server may have a limit: it ends the session.
    pg.IdleInTransactionSessionTimeout,
    pg.TransactionTimeout,
    SourceUnavailable,
    ConnectionLost,
)


def may_pass(error: Exception) -> bool:
    """Of an error in seeding, which is long and begins anew each time."""
    # A limit on the time of statements would be reached again.
    if any(isinstance(each, pg.QueryCanceled) for each in (error, error.__cause__)):
        return False
    if isinstance(error, TargetUnavailable):
        return isinstance(error.__cause__, PASSING)
    return isinstance(error, PASSING)
