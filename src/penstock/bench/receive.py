"""How fast the client receives: connection and session alone, nothing is stored."""

from __future__ import annotations

import time

from penstock.bench.backlog import PUBLICATION, Backlog, notifications_backlog
from penstock.bench.progress import Progress
from penstock.bench.recvlogical import Run, compare, slots_needed
from penstock.bench.report import Report
from penstock.lsn import Lsn
from penstock.postgres.connection import ReplicationConnection
from penstock.postgres.session import ReplicationSession, SessionSettings

INSERTS = 500_000
PAIRS = 7


def bench_receive(progress: Progress, *, inserts: int = INSERTS, pairs: int = PAIRS) -> Report:
    with notifications_backlog(
        slots=slots_needed(pairs), inserts=inserts, progress=progress
    ) as backlog:
        figures, runs = compare(backlog, _receive, pairs, progress, unit="messages")
        return Report("receive", figures, runs, {"postgres": backlog.server.full_version})


def _receive(backlog: Backlog, slot: str) -> Run:
    started, cpu_started = time.perf_counter(), time.process_time()
    with ReplicationConnection(backlog.server.dsn()) as connection:
        connection.start(slot, PUBLICATION, Lsn(0))
        now = time.monotonic()
        messages = 0
        session = ReplicationSession(Lsn(0), SessionSettings(), now=now)
        while session.received_lsn < backlog.end_lsn:
            decision = session.decide(now)
            if decision.give_up is not None:
                raise decision.give_up
            if decision.send is not None:
                connection.send(decision.send)
            run = connection.read(decision.wake_at - now)
            now = time.monotonic()
            session.receive(run, now)
            messages += len(run)
        seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - cpu_started
        connection.end()
    return Run("penstock", seconds, cpu_seconds, messages)
