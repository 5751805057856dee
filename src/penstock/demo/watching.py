"""What an observer sees in the target while the load runs, and how soon."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg

from penstock.beside import Check, beside
from penstock.demo.freshness import Freshness
from penstock.postgres.connect import connect

# Often enough for the freshness to be exact, seldom enough to cost nothing.
_LOOK_EVERY_S = 0.01
_TOP = """
SELECT services.name, templates.name, top.notification_type, notification_status, count
  FROM (SELECT * FROM public.ft_service_stats ORDER BY count DESC, id LIMIT 8) AS top
  JOIN public.services ON services.id = service_id
  JOIN public.templates ON templates.id = template_id
 ORDER BY count DESC, services.name, templates.name, notification_status
"""
_STATUSES = """
SELECT notification_status, sum(count)::bigint FROM public.ft_service_stats
 GROUP BY 1 ORDER BY 2 DESC
"""
_LAG = """
SELECT pg_current_wal_lsn() - confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = %s
"""


@dataclass(frozen=True, slots=True)
class Seen:
    """One look at it all."""

    elapsed_s: float
    changes: int
    # Over the last second or so.
    changes_s: float
    fresh_p50_ms: float | None
    fresh_p99_ms: float | None
    slot_lag_bytes: int
    statuses: list[tuple[str, int]]
    # Service, template, type, status, count.
    top: list[tuple[str, str, str, str, int]]


class Watcher:
    """Looks at the target's position all the time; at the rest when it is asked."""

    def __init__(self, dsn: str, slot: str, *, before: int) -> None:
        """`before`: the changes that were applied before the load, which do not count."""
        self._dsn = dsn
        self._slot = slot
        self._freshness = Freshness()
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._started = self._asked_at = time.monotonic()
        self._asked_changes = 0
        self._before = before
        self.changes = 0

    @contextmanager
    def watching(self) -> Iterator[Check]:
        with beside(self._watch, self._stopping.set, "watching") as check:
            yield check

    def committed(self, changes: int) -> None:
        """So many are, since the load began."""
        with self._lock:
            self._freshness.committed(changes, time.monotonic())

    def percentile_ms(self, percent: float) -> float | None:
        with self._lock:
            return self._freshness.percentile_ms(percent)

    def look(self, connection: psycopg.Connection[Any]) -> Seen:
        now = time.monotonic()
        changes = self.changes
        rate = (changes - self._asked_changes) / max(now - self._asked_at, 0.001)
        self._asked_at, self._asked_changes = now, changes
        lag = connection.execute(_LAG, [self._slot]).fetchone()
        return Seen(
            now - self._started,
            changes,
            rate,
            self.percentile_ms(50),
            self.percentile_ms(99),
            int(lag[0]) if lag else 0,
            connection.execute(_STATUSES).fetchall(),
            connection.execute(_TOP).fetchall(),
        )

    def _watch(self) -> None:
        with connect(self._dsn) as connection:
            while not self._stopping.wait(_LOOK_EVERY_S):
                self._note(connection)

    def _note(self, connection: psycopg.Connection[Any]) -> None:
        row = connection.execute("SELECT changes FROM penstock.progress").fetchone()
        self.changes = (int(row[0]) if row else 0) - self._before
        with self._lock:
            self._freshness.applied(self.changes, time.monotonic())
