"""Which failures of a database pass by themselves, and how long to wait before the next try."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
from psycopg import errors as pg

from penstock.errors import ConnectionLost, SourceUnavailable, TargetUnavailable

# The connection, or the others' transactions: deadlocks are among psycopg's operational errors.
PASSING = (psycopg.OperationalError, SourceUnavailable, ConnectionLost)
_FIRST_PAUSE_S = 0.1
_LAST_PAUSE_S = 10.0


def may_pass(error: Exception) -> bool:
    """Of an error in seeding, which is long and begins anew each time."""
    # A limit on the time of statements would be reached again.
    if any(isinstance(each, pg.QueryCanceled) for each in (error, error.__cause__)):
        return False
    if isinstance(error, TargetUnavailable):
        return isinstance(error.__cause__, PASSING)
    return isinstance(error, PASSING)


def pauses_s() -> Iterator[float]:
    pause_s = _FIRST_PAUSE_S
    while True:
        yield pause_s
        pause_s = min(2 * pause_s, _LAST_PAUSE_S)
