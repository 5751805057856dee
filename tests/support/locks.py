"""Somebody else's locks, and what waits for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from support.database import Database
from support.waiting import eventually


def waits_for_lock(database: Database) -> bool:
    """Whether a session of the database waits for another one."""
    waiting = "SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = %s"
    return bool(database.rows(waiting, database.name))


@contextmanager
def held_up(database: Database, statement: str) -> Iterator[Callable[[Any], Future[Any]]]:
    """Another session that holds locks until the block ends; a way to run what waits for them."""
    with (
        ThreadPoolExecutor(1) as pool,
        database.connect(autocommit=False) as other,
        database.connect() as observer,
    ):
        other.execute(statement.encode())

        def run(work: Callable[[], Any]) -> Future[Any]:
            future = pool.submit(work)
            waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
            waiting += " AND datname = current_database()"
            eventually(
                lambda: future.done() or observer.execute(waiting).fetchall()[0][0],
                "a session that waits",
            )
            assert not future.done(), future.result()
            return future

        yield run
