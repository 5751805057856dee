"""The lock that lets one worker at a time poll a slot.

It belongs to the session, so that of a worker that dies it goes with its connection. A pooler
between us and the server gives a session to others meanwhile, so that the lock would hold nothing.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import psycopg

from penstock.errors import PollerRunning
from penstock.postgres.pooler import require_own_session

# The server may not have noticed yet that the last holder is gone.
_NOTICED_S = 0.5
_LOOK_EVERY_S = 0.05
_KEY = "pg_catalog.hashtextextended('penstock poll ' || %(slot)s, 0)"
_TRY = f"SELECT pg_catalog.pg_try_advisory_lock({_KEY})"
# In pg_locks the key is two halves.
_HOLDER = f"""
SELECT l.pid, a.application_name, pg_catalog.host(a.client_addr)
  FROM pg_catalog.pg_locks AS l
  LEFT JOIN pg_catalog.pg_stat_activity AS a ON a.pid = l.pid
 WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1
   AND l.database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = current_database())
   AND (l.classid::bigint << 32 | l.objid::bigint) = {_KEY}
"""  # noqa: S608 - no value of a user's is in it


def lock_slot(connection: psycopg.Connection, dsn: str, slot: str) -> None:
    """Take the lock for as long as the connection lives, or raise who has it."""
    require_own_session(connection, dsn)
    deadline = time.monotonic() + _NOTICED_S
    while not _is_locked(connection, slot):
        if time.monotonic() > deadline:
            poller = read_poller(connection, slot)
            raise PollerRunning(
                slot, poller.pid if poller else None, poller.holder if poller else None
            )
        time.sleep(_LOOK_EVERY_S)


@dataclass(frozen=True, slots=True)
class Poller:
    """The worker that holds the lock; what the role may not see is None."""

    pid: int
    application: str | None
    client: str | None

    @property
    def holder(self) -> str | None:
        known = (self.application, self.client and f"from {self.client}")
        return ", ".join(filter(None, known)) or None


def read_poller(connection: psycopg.Connection, slot: str) -> Poller | None:
    """The worker that polls a slot of this database, if there is one."""
    row = connection.execute(_HOLDER.encode(), {"slot": slot}).fetchone()
    return None if row is None else Poller(*row)


def _is_locked(connection: psycopg.Connection, slot: str) -> bool:
    row = connection.execute(_TRY.encode(), {"slot": slot}).fetchone()
    return row is not None and bool(row[0])
