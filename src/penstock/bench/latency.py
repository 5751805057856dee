"""How long from a commit until it is durable in the log and visible to a reader.

Clients commit small transactions at a steady rate and note when each commit returned; a reader in
another process follows the log and notes when it sees it. Both clocks are the machine's monotonic
one. Beside it: what part of a core capture takes, and what the disk itself takes for a sync.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import psycopg

from penstock.bench.progress import Progress
from penstock.bench.report import Figure, Report
from penstock.bench.service import Service, capture_service
from penstock.postgres.embedded import EmbeddedPostgres

SECONDS = 20.0
_WARM_UP_S = 3.0
_GOAL_P50_MS, _GOAL_P99_MS = 8, 30
# Commits a second, and what part of a core capture may take for them.
_GOALS_PERCENT = {500: 10, 1_500: 15}
_SYNCS = 500


def bench_latency(
    progress: Progress,
    *,
    rates: tuple[int, ...] = tuple(_GOALS_PERCENT),
    seconds: float = SECONDS,
) -> Report:
    figures: list[Figure] = []
    runs = []
    with (
        EmbeddedPostgres(18) as server,
        tempfile.TemporaryDirectory(prefix="penstock-bench-") as directory,
    ):
        with psycopg.connect(server.dsn(), autocommit=True) as connection:
            connection.execute("CREATE TABLE beats (id bigint)")
        with capture_service(server, Path(directory), "public.beats") as service:
            for rate in rates:
                progress(f"{rate:,} transactions a second for {seconds:g} s")
                measured = _measure(server, service, rate, seconds)
                figures += measured.figures()
                runs.append(measured.as_dict())
        progress("the disk's own sync")
        sync_p50, sync_p99 = _percentiles(_sync_times_ms(Path(directory)))
    figures += [
        Figure("disk sync p50", round(sync_p50, 2), "ms"),
        Figure("disk sync p99", round(sync_p99, 2), "ms"),
    ]
    return Report("latency", figures, runs, {"postgres": server.full_version})


@dataclass(frozen=True, slots=True)
class _Measured:
    """Transactions at one rate, without those of the warm-up."""

    rate: int
    delays_ms: list[float]
    achieved: float
    # What capture took of a core, from the first transaction to the last.
    cpu_percent: float
    cpu_us_per_commit: float

    def figures(self) -> list[Figure]:
        p50, p99 = _percentiles(self.delays_ms)
        goal = _GOALS_PERCENT.get(self.rate)
        at = f"at {self.rate:,} commits/s"
        return [
            Figure(f"p50 {at}", round(p50, 2), "ms", _GOAL_P50_MS, at_least=False),
            Figure(f"p99 {at}", round(p99, 2), "ms", _GOAL_P99_MS, at_least=False),
            Figure(f"CPU {at}", round(self.cpu_percent, 1), "% of a core", goal, at_least=False),
            Figure(f"rate reached {at}", round(self.achieved), "transactions/s"),
        ]

    def as_dict(self) -> dict[str, float]:
        return {
            "rate": self.rate,
            "transactions": len(self.delays_ms),
            "longest_ms": round(max(self.delays_ms), 2),
            "cpu_us_per_commit": round(self.cpu_us_per_commit, 1),
        }


def _measure(server: EmbeddedPostgres, service: Service, rate: int, seconds: float) -> _Measured:
    seen: dict[int, float] = {}
    reader = _Follower(service, seen)
    reader.start()
    cpu_before = service.cpu_seconds()
    committed = _commit_steadily(server.dsn(), rate, seconds + _WARM_UP_S)
    reader.finish(len(committed))
    cpu_s = service.cpu_seconds() - cpu_before
    ordered = sorted(committed.items(), key=lambda item: item[1])
    first, last = ordered[0][1], ordered[-1][1]
    begin = first + _WARM_UP_S
    delays = [(seen[number] - at) * 1000 for number, at in ordered if at >= begin]
    return _Measured(
        rate,
        delays,
        achieved=len(delays) / (last - begin),
        cpu_percent=100 * cpu_s / (last - first),
        cpu_us_per_commit=1e6 * cpu_s / len(ordered),
    )


class _Follower(threading.Thread):
    """Reads the log as it grows and notes when each transaction became visible."""

    def __init__(self, service: Service, seen: dict[int, float]) -> None:
        super().__init__(daemon=True)
        self._service = service
        self._seen = seen
        self._expected: int | None = None

    def run(self) -> None:
        reader = self._service.reader()
        after = reader.end()
        while self._expected is None or len(self._seen) < self._expected:
            if not reader.wait(after.lsn, 0.2):
                continue
            up_to = reader.end()
            now = time.monotonic()
            for commit in reader.commits(after, up_to):
                self._seen[commit.xid] = now
            after = up_to

    def finish(self, expected: int) -> None:
        self._expected = expected
        self.join(60)
        if self.is_alive():
            raise RuntimeError(f"{len(self._seen)} of {expected} transactions became visible")


def _commit_steadily(dsn: str, rate: int, seconds: float) -> dict[int, float]:
    """xid → when its commit returned."""
    command = [sys.executable, "-m", "penstock.bench.committers", dsn, str(rate), str(seconds)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    pairs = (line.split() for line in done.stdout.splitlines())
    return {int(xid): float(at) for xid, at in pairs}


def _sync_times_ms(directory: Path) -> list[float]:
    descriptor = os.open(directory / "sync", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        times = []
        for _ in range(_SYNCS):
            started = time.perf_counter()
            os.write(descriptor, bytes(1024))
            os.fdatasync(descriptor)
            times.append((time.perf_counter() - started) * 1000)
        return times
    finally:
        os.close(descriptor)


def _percentiles(values: list[float]) -> tuple[float, float]:
    cuts = statistics.quantiles(values, n=100)
    return cuts[49], cuts[98]
