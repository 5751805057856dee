"""Whether a session is ours alone, or a pooler's that serves others between our transactions.

Advisory locks, settings and prepared statements belong to a session of the server. Behind a pooler
that hands sessions out by transaction (`pool_mode = transaction` of PgBouncer) they are lost to
whoever comes next, without an error.
"""

from __future__ import annotations

from typing import Any

import psycopg

from penstock.errors import SessionShared
from penstock.postgres.connect import connect, origin
from penstock.postgres.failures import translated

# Other clients of the pooler may come between our statements.
_TRIES = 3


def require_own_session(connection: psycopg.Connection[Any], dsn: str) -> None:
    """Raise `SessionShared` if the session may be another one in the next transaction.

    `connection` is one of `dsn`, outside of a transaction. A server says which process serves a
    connection when it is opened. A pooler says something else, and only then it is tried out.
    """
    with translated("ask which process serves the connection"):
        if _process(connection) == connection.info.backend_pid:
            return
        for _ in range(_TRIES):
            if _is_shared(connection, dsn):
                raise SessionShared(
                    f"{origin(dsn)} leads to a pooler that gives each transaction another session, "
                    "where neither locks nor settings of a session hold",
                    remedy="Name the server itself there, or a pool that keeps sessions "
                    "(PgBouncer: pool_mode = session)",
                )


def _is_shared(connection: psycopg.Connection[Any], dsn: str) -> bool:
    """Whether a transaction beside it gets its process, or makes it change to another one."""
    before = _process(connection)
    with connect(dsn) as other, other.transaction():
        # First: where the pool has one session only, ours would wait for the other's end.
        return _process(other) == before or _process(connection) != before


def _process(connection: psycopg.Connection[Any]) -> int | None:
    row = connection.execute("SELECT pg_catalog.pg_backend_pid()").fetchone()
    return None if row is None else row[0]
