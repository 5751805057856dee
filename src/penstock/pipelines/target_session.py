"""Sessions that write and read an aggregate's target: keys go in and come out as text."""

from __future__ import annotations

from typing import Any

import psycopg

from penstock.postgres.connect import connect_unlimited, set_for_session
from penstock.postgres.connection import VALUE_SETTINGS
from penstock.postgres.failures import translated
from penstock.postgres.pooler import require_own_session

# Keys come from the log as text, and are parked as text until some later session reads them: both
# must not depend on what a role or a database is set to meanwhile. Not so the time zone, by which
# triggers and defaults of the user's work: a moment is printed with its offset.
_SETTINGS = {name: value for name, value in VALUE_SETTINGS.items() if name != "timezone"}


def connect_target(dsn: str, *, lock_timeout_s: float = 0) -> psycopg.Connection[Any]:
    """Connect as `connect_unlimited`, with values as the log has them.

    Raises `SessionShared` unless the session is ours alone.
    """
    connection = connect_unlimited(dsn, lock_timeout_s=lock_timeout_s)
    try:
        require_own_session(connection, dsn)
        with translated("set how values are written"):
            set_for_session(connection, _SETTINGS)
    except BaseException:
        connection.close()
        raise
    return connection
