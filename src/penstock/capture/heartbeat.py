"""Heartbeats: a small logical message that goes all the way and comes back.

It proves the whole path (emit, decode, receive, make durable) and measures its latency. Nothing
depends on it: a missed one is reported, and a session that still sees WAL goes on.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import psycopg
import structlog

from penstock.errors import PenstockError
from penstock.postgres.connect import connect

PREFIX = "penstock.heartbeat"
# From 17 on the message can be flushed at once; before, the WAL writer does it in its own time.
_FLUSH_VERSION = 170_000

_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class HeartbeatMeter:
    """Follows our own heartbeats from emission to the disk. Pure: times come as arguments.

    Emission is noted by the emitting thread, the rest by capture; a plain dict is enough for both.
    """

    owner: str
    latency_s: float | None = None
    missed: int = 0
    _number: int = 0
    _emitted: dict[int, float] | None = None
    _received: tuple[float, ...] = ()

    def emitting(self, now: float) -> str:
        """The content of the next heartbeat; one that has not come back by now is missed."""
        self.missed += len(self._emitted or ())
        self._number += 1
        self._emitted = {self._number: now}
        return f"{self.owner} {self._number}"

    def received(self, content: bytes) -> bool:
        """Return whether a heartbeat is ours and the newest; any role may emit any bytes."""
        owner, _, number = content.partition(b" ")
        if owner != self.owner.encode() or not number.isdigit():
            return False
        emitted_at = (self._emitted or {}).pop(int(number), None)
        if emitted_at is None:
            return False
        self._received = (*self._received, emitted_at)
        return True

    def durable(self, now: float) -> None:
        """What was received is on disk now."""
        if self._received:
            self.latency_s = now - self._received[-1]
            self._received = ()


@contextmanager
def heartbeats(dsn: str, interval_s: float, meter: HeartbeatMeter) -> Iterator[None]:
    """Send them while the block runs; none, if the interval is 0.

    From a thread with a connection of its own, so that a slow server never holds up capture.
    """
    if not interval_s:
        yield
        return
    stop = threading.Event()
    thread = threading.Thread(
        target=_keep_emitting, args=(dsn, interval_s, meter, stop), name="heartbeat", daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        stop.set()
        # One that hangs in a connection attempt must not hold up the end.
        thread.join(timeout=1.0)


def _keep_emitting(
    dsn: str, interval_s: float, meter: HeartbeatMeter, stop: threading.Event
) -> None:
    while not stop.wait(interval_s):
        try:
            with connect(dsn, application_name="penstock heartbeat") as connection:
                emit(connection, meter.emitting(time.monotonic()))
        except (PenstockError, psycopg.Error) as error:
            reason = error.problem if isinstance(error, PenstockError) else error.sqlstate
            _log.warning("heartbeat not sent", reason=reason)


def emit(connection: psycopg.Connection, content: str) -> None:
    """Not transactional: it comes at once, and belongs to no transaction."""
    flush = ", true" if connection.pgconn.server_version >= _FLUSH_VERSION else ""
    statement = f"SELECT pg_logical_emit_message(false, %s, %s{flush})"
    connection.execute(statement.encode(), [PREFIX, content])
