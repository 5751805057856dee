"""A statement that may have to wait for others: run it, say for whom it waits, give up in time.

Nothing here decides how long is too long; the callers (slots, set-up) have their own deadlines.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from threading import Lock
from typing import Any, TypeVar

import psycopg
from psycopg.rows import class_row

from penstock.interrupts import Interrupts
from penstock.postgres.cancelling import cancel_until
from penstock.printed_sql import SqlKind, printed, terminated

_LOOK_EVERY_S = 0.25
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Blocker:
    """A session that we wait for. What the role may not see is None."""

    # 0: a prepared transaction, which has no process.
    pid: int
    application: str | None = None
    user: str | None = None
    open_for_s: int | None = None

    def __str__(self) -> str:
        if self.pid == 0:
            show = printed(SqlKind.SHOW_PREPARED, "SELECT * FROM pg_prepared_xacts")
            return show.after("a prepared transaction, one of these")
        about = [
            self.application or None,
            f"user {self.user}" if self.user else None,
            f"transaction open for {self.open_for_s} s" if self.open_for_s is not None else None,
        ]
        known = ", ".join(part for part in about if part)
        return f"process {self.pid}" + (f" ({known})" if known else "")


OnWait = Callable[[tuple[Blocker, ...]], None]


class GaveUp(Exception):
    """The deadline passed and the statement was cancelled."""

    def __init__(self, blockers: tuple[Blocker, ...]) -> None:
        super().__init__(*map(str, blockers))
        self.blockers = blockers


def let_finish(pids: Sequence[int], then: str) -> str:
    """The remedy where sessions stand in the way. `then`: what to do afterwards."""
    sql = terminated(pids)
    ended = f", or end them and {then}" if sql else f", and {then}"
    return sql.after(f"Let them finish{ended}") if sql else f"Let them finish{ended}"


def blockers_of(observer: psycopg.Connection, pid: int) -> tuple[Blocker, ...]:
    with observer.cursor(row_factory=class_row(Blocker)) as cursor:
        return tuple(cursor.execute(_BLOCKERS, [pid]).fetchall())


_BLOCKERS = """
SELECT b.pid, a.application_name AS application, a.usename AS user,
       extract(epoch FROM clock_timestamp() - a.xact_start)::int AS open_for_s
  FROM (SELECT DISTINCT unnest(pg_blocking_pids(%s)) AS pid) AS b
  LEFT JOIN pg_stat_activity AS a USING (pid)
 ORDER BY b.pid
"""


def run_watched(
    connection: psycopg.Connection,
    statements: Sequence[str],
    *,
    observer: psycopg.Connection,
    deadline_s: float,
    on_wait: OnWait,
    on_done: Callable[[], None] = lambda: None,
) -> Any:
    """Run the statements in one transaction and return the last one's first row, if it has any.

    `on_wait` is called each time the set of sessions we wait for changes. At the deadline, and if
    the caller is interrupted, the statement is cancelled: it either happened as a whole or not at
    all. If it happened, `on_done` is called before we return or raise, from another thread: no
    interruption comes between the two. Raises `GaveUp` at the deadline or at the server's own
    lock_timeout.
    """
    return watched(
        connection,
        partial(_execute, connection, statements, on_done),
        observer=observer,
        deadline_s=deadline_s,
        on_wait=on_wait,
    )


def watched(
    connection: psycopg.Connection,
    work: Callable[[], _T],
    *,
    observer: psycopg.Connection,
    deadline_s: float,
    on_wait: OnWait,
) -> _T:
    """As `run_watched`, for whatever `work` does with the connection."""
    pid = connection.info.backend_pid
    seen: tuple[Blocker, ...] = ()
    give_up_at = time.monotonic() + deadline_s
    # Taken as long as the statement runs. Not the future's own lock: an exception in the midst of
    # waiting for that may leave it taken for ever.
    running = Lock()
    running.acquire()
    # An interruption while the thread is being started would leave a statement that nobody cancels.
    with Interrupts() as interrupts, ThreadPoolExecutor(max_workers=1) as pool:
        future = pool.submit(work)
        future.add_done_callback(lambda _: running.release())
        try:
            while not _finished(running, interrupts) and time.monotonic() < give_up_at:
                if now := blockers_of(observer, pid):
                    if {b.pid for b in now} != {b.pid for b in seen}:
                        on_wait(now)
                    seen = now
        finally:
            cancel_until(lambda within_s: bool(wait([future], within_s).done), connection)
        try:
            return future.result()  # it may have finished just before the cancellation
        except (psycopg.errors.QueryCanceled, psycopg.errors.LockNotAvailable):
            raise GaveUp(seen) from None


def _finished(running: Lock, interrupts: Interrupts) -> bool:
    """Wait a moment for it. The one place where an interruption is raised: nothing is cut short."""
    with interrupts.heeded():
        return running.acquire(timeout=_LOOK_EVERY_S)


def _execute(
    connection: psycopg.Connection, statements: Sequence[str], on_done: Callable[[], None]
) -> Any:
    with connection.transaction():
        for statement in statements:
            cursor = connection.execute(statement.encode())
    on_done()
    return cursor.fetchone() if cursor.description else None
