"""Locks on an aggregate in its target's database. Each goes with the connection that has it."""

from __future__ import annotations

import time
from typing import Any, Literal

import psycopg

# Who works on it: the job that follows the log, one that seeds it, one that repairs it.
Work = Literal["job", "seeding", "repair"]
_NOTICED_S = 0.5
_LOOK_EVERY_S = 0.02
_KEY = "hashtextextended('penstock ' || %s || ' ' || %s, 0)"


def try_lock(connection: psycopg.Connection[Any], work: Work, aggregate: str) -> bool:
    """Whether nobody else has it."""
    sql = f"SELECT pg_try_advisory_lock({_KEY})"
    row = connection.execute(sql.encode(), [work, aggregate]).fetchone()
    return bool(row and row[0])


def lock_soon(connection: psycopg.Connection[Any], work: Work, aggregate: str) -> bool:
    """As `try_lock`; the server may not have noticed yet that who had it has ended."""
    deadline = time.monotonic() + _NOTICED_S
    while not try_lock(connection, work, aggregate):
        if time.monotonic() > deadline:
            return False
        time.sleep(_LOOK_EVERY_S)
    return True


def wait_for_lock(connection: psycopg.Connection[Any], work: Work, aggregate: str) -> None:
    connection.execute(f"SELECT pg_advisory_lock({_KEY})".encode(), [work, aggregate])


def is_locked(connection: psycopg.Connection[Any], work: Work, aggregate: str) -> bool:
    """Whether somebody else has it."""
    if not try_lock(connection, work, aggregate):
        return True
    connection.execute(f"SELECT pg_advisory_unlock({_KEY})".encode(), [work, aggregate])
    return False
