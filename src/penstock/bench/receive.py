"""How fast the client receives, beside `pg_recvlogical -f /dev/null` on the same backlog.

Both read the same changes with the same plugin options, each run from a slot of its own. Pairs
alternate who goes first, and only ratios within a pair count, so that what else the machine does
weighs on both. The clock of `pg_recvlogical` runs from its start to its end; ours from before the
connection to the last message. Python's own start, a third of a second, is left out: capture is a
service.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import time
from dataclasses import asdict, dataclass
from typing import Any

from penstock.bench.backlog import PUBLICATION, Backlog, notifications_backlog
from penstock.bench.progress import Progress
from penstock.bench.report import Figure, Report
from penstock.errors import PenstockError
from penstock.lsn import Lsn
from penstock.postgres.connection import ReplicationConnection
from penstock.postgres.session import ReplicationSession, SessionSettings

INSERTS = 500_000
PAIRS = 7
_GOAL_RATIO = 0.95


@dataclass(frozen=True, slots=True)
class Run:
    client: str
    seconds: float
    cpu_seconds: float


def bench_receive(progress: Progress, *, inserts: int = INSERTS, pairs: int = PAIRS) -> Report:
    # One pair to warm up: caches, and the server's first decoding of the catalog.
    slots = 2 * (pairs + 1)
    with notifications_backlog(slots=slots, inserts=inserts, progress=progress) as backlog:
        runs: list[dict[str, Any]] = []
        ratios, peer_rates, our_rates, our_cpu, peer_cpu = [], [], [], [], []
        for pair in range(pairs + 1):
            peer, ours, messages = _pair(backlog, pair)
            progress(
                f"pair {pair} of {pairs}: pg_recvlogical {peer.seconds:.2f} s, "
                f"penstock {ours.seconds:.2f} s" + (" (warm-up)" if pair == 0 else "")
            )
            if pair == 0:
                continue
            runs.append({"pair": pair, "peer": asdict(peer), "ours": asdict(ours)})
            ratios.append(peer.seconds / ours.seconds)
            peer_rates.append(backlog.changes / peer.seconds)
            our_rates.append(backlog.changes / ours.seconds)
            our_cpu.append(ours.cpu_seconds / messages * 1e6)
            peer_cpu.append(peer.cpu_seconds / messages * 1e6)
        version = backlog.server.full_version
    middle = statistics.median
    return Report(
        "receive",
        [
            Figure("rate ratio to pg_recvlogical", round(middle(ratios), 3), "ratio", _GOAL_RATIO),
            Figure("penstock", round(middle(our_rates)), "changes/s"),
            Figure("pg_recvlogical", round(middle(peer_rates)), "changes/s"),
            Figure("penstock CPU", round(middle(our_cpu), 2), "s per million messages"),
            Figure("pg_recvlogical CPU", round(middle(peer_cpu), 2), "s per million messages"),
        ],
        runs,
        {"postgres": version},
    )


def _pair(backlog: Backlog, pair: int) -> tuple[Run, Run, int]:
    first, second = backlog.slots[2 * pair : 2 * pair + 2]
    if pair % 2:
        ours, messages = _penstock(backlog, first)
        return _pg_recvlogical(backlog, second), ours, messages
    peer = _pg_recvlogical(backlog, first)
    ours, messages = _penstock(backlog, second)
    return peer, ours, messages


def _pg_recvlogical(backlog: Backlog, slot: str) -> Run:
    options = {
        "proto_version": "4",
        "publication_names": PUBLICATION,
        "streaming": "on",
        "messages": "true",
    }
    command = [
        *backlog.server.program("pg_recvlogical"),
        *("--dbname", backlog.server.dsn(), "--slot", slot, "--start", "--no-loop"),
        *("--file", "/dev/null", "--endpos", str(backlog.end_lsn)),
        *(word for name, value in options.items() for word in ("--option", f"{name}={value}")),
    ]
    started = time.perf_counter()
    process = subprocess.Popen(command)
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - started
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise PenstockError(
            f"pg_recvlogical ended with exit code {process.returncode}",
            remedy="Its own message is above",
        )
    return Run("pg_recvlogical", seconds, usage.ru_utime + usage.ru_stime)


def _penstock(backlog: Backlog, slot: str) -> tuple[Run, int]:
    started, cpu_started = time.perf_counter(), time.process_time()
    messages = 0
    with ReplicationConnection(backlog.server.dsn()) as connection:
        connection.start(slot, PUBLICATION, Lsn(0))
        now = time.monotonic()
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
        run_of_ours = Run(
            "penstock", time.perf_counter() - started, time.process_time() - cpu_started
        )
        connection.end()
    return run_of_ours, messages
