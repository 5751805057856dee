"""Polling into the durable log, beside streaming and beside the usual hand-made design.

All read the same backlog on one server, each from a slot of its own, and who is first changes from
run to run. Ours end with every change in a log on disk and the slot advanced; the hand-made one
(`polling_by_hand`) ends with its counts.
"""

from __future__ import annotations

import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import psycopg

from penstock.bench.capture import UntilLog
from penstock.bench.counting import prepare
from penstock.bench.pipeline import BACKLOG_SETTINGS, FILL, fill
from penstock.bench.polling_by_hand import TABLE, poll
from penstock.bench.progress import Progress
from penstock.bench.report import Figure, Report
from penstock.bench.service import flushed
from penstock.capture.heartbeat import HeartbeatMeter
from penstock.capture.pump import Pump
from penstock.changelog.identity import LogIdentity
from penstock.changelog.reader import LogReader
from penstock.changelog.settings import LogSettings, RetentionSettings
from penstock.errors import PenstockError
from penstock.lsn import Lsn
from penstock.names import TableName
from penstock.postgres.connection import ReplicationConnection
from penstock.postgres.embedded import EmbeddedPostgres
from penstock.postgres.polling.connection import PollingConnection, PollSettings
from penstock.postgres.polling.plugins import Pgoutput, PollPlugin, Wal2json
from penstock.postgres.session import ReplicationSession, SessionSettings
from penstock.postgres.source_connection import SourceConnection

CHANGES = 1_000_000
REPEATS = 3
_GOAL_BY_HAND = 1.5
_GOAL_IDLE_MS = 5.0
# wal2json is there for 15.
_VERSION = 15
_PUBLICATION = "bench"
_IDLE_RUNS = 200


@dataclass(frozen=True, slots=True)
class _Way:
    """One way in: the plugin of its slot, and how a connection is opened."""

    name: str
    plugin: str
    connect: Callable[[str, str], SourceConnection]


def _polled(plugin: Callable[[], PollPlugin]) -> Callable[[str, str], SourceConnection]:
    return lambda dsn, slot: PollingConnection(dsn, slot, plugin(), PollSettings())


def _pgoutput() -> PollPlugin:
    return Pgoutput(_PUBLICATION, messages=False)


def _wal2json(form: Any) -> Callable[[], PollPlugin]:
    tables = [TableName("public", "notifications")]
    return lambda: Wal2json(form, tables, lambda: (), message_prefix=None)


_WAYS = (
    _Way("streaming", "pgoutput", lambda dsn, _: ReplicationConnection(dsn)),
    _Way("polling pgoutput", "pgoutput", _polled(_pgoutput)),
    _Way("polling wal2json 2", "wal2json", _polled(_wal2json(2))),
    _Way("polling wal2json 1", "wal2json", _polled(_wal2json(1))),
)
_BY_HAND = "by hand"


def bench_polling(
    progress: Progress,
    *,
    changes: int = CHANGES,
    repeats: int = REPEATS,
    idle_runs: int = _IDLE_RUNS,
) -> Report:
    runs: list[dict[str, Any]] = []
    with ExitStack() as stack:
        server = stack.enter_context(
            EmbeddedPostgres(_VERSION, settings=BACKLOG_SETTINGS, output_plugins=["wal2json"])
        )
        connection = stack.enter_context(psycopg.connect(server.dsn(), autocommit=True))
        prepare(connection)
        connection.execute(FILL)
        connection.execute(TABLE)
        for number in range(repeats):
            runs += _compare(server, connection, number, changes, progress)
        idle_ms = _idle(server, connection, idle_runs)
        progress(f"an idle run: {idle_ms:.3f} ms of the server's CPU")
        version = server.full_version
    return Report("polling", _figures(runs, idle_ms), runs, {"postgres": version})


def _figures(runs: list[dict[str, Any]], idle_ms: float) -> list[Figure]:
    def median(way: str, field: str) -> float:
        return float(statistics.median(run[field] for run in runs if run["way"] == way))

    by_run = [
        {run["way"]: run["seconds"] for run in runs if run["run"] == number}
        for number in {run["run"] for run in runs}
    ]
    ratio = statistics.median(each[_BY_HAND] / each["polling pgoutput"] for each in by_run)
    figures = [
        Figure(
            "polling pgoutput, rate ratio to polling by hand",
            round(ratio, 2),
            "ratio",
            _GOAL_BY_HAND,
        ),
        Figure("idle second, server CPU", round(idle_ms, 3), "ms", _GOAL_IDLE_MS, at_least=False),
    ]
    for way in _WAYS:
        figures += [
            Figure(way.name, round(median(way.name, "rate")), "changes/s"),
            Figure(
                f"{way.name}, server CPU",
                round(median(way.name, "server_cpu_s"), 2),
                "s per million changes",
            ),
            Figure(
                f"{way.name}, client CPU",
                round(median(way.name, "client_cpu_s"), 2),
                "s per million changes",
            ),
        ]
    return [*figures, Figure(_BY_HAND, round(median(_BY_HAND, "rate")), "changes/s")]


def _compare(
    server: EmbeddedPostgres,
    connection: psycopg.Connection[Any],
    number: int,
    changes: int,
    progress: Progress,
) -> list[dict[str, Any]]:
    slots = {way.name: f"bench_{place}_{number}" for place, way in enumerate(_WAYS)}
    plugins = {way.name: way.plugin for way in _WAYS} | {_BY_HAND: "wal2json"}
    slots[_BY_HAND] = f"bench_by_hand_{number}"
    starts = {name: make_slot(connection, slot, plugins[name]) for name, slot in slots.items()}
    progress(f"a backlog of {changes:,} changes")
    fill(connection, changes // 200 - 1)
    connection.execute("CHECKPOINT")
    fill(connection, 1, synchronous_commit="on")
    end = flushed(connection)
    turns: dict[str, Callable[[], dict[str, float]]] = {
        way.name: partial(_captured, server, way, slots[way.name], starts[way.name], end, changes)
        for way in _WAYS
    }
    turns[_BY_HAND] = lambda: _counted(server, slots[_BY_HAND], end, changes)
    names = list(turns)
    first = number % len(names)
    runs = []
    for name in names[first:] + names[:first]:
        took = turns[name]()
        progress(f"run {number + 1}, {name}: {took['seconds']:.2f} s")
        runs.append({"run": number, "way": name, "changes": changes, **took})
    for slot in slots.values():
        connection.execute("SELECT pg_drop_replication_slot(%s)", [slot])
    return runs


def make_slot(connection: psycopg.Connection[Any], slot: str, plugin: str) -> Lsn:
    """Make a slot and return its starting point."""
    row = connection.execute(
        "SELECT lsn::text FROM pg_create_logical_replication_slot(%s, %s)", [slot, plugin]
    ).fetchone()
    return Lsn.parse(row[0] if row else "0/0")


def _captured(
    server: EmbeddedPostgres, way: _Way, slot: str, start: Lsn, end: Lsn, changes: int
) -> dict[str, float]:
    """Capture the whole backlog into a log."""
    stop = threading.Event()
    millions = changes / 1e6
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as directory:
        started, cpu_started = time.perf_counter(), time.process_time()
        with way.connect(server.dsn(), slot) as connection:
            found = connection.identify()
            identity = LogIdentity.new(
                system_id=found.system_id,
                timeline=found.timeline,
                database=found.database,
                slot=slot,
                start_lsn=start,
            )
            log = UntilLog(Path(directory), identity, LogSettings())
            log.until, log.stop = end, stop
            connection.start(slot, _PUBLICATION, start)
            settings = SessionSettings(confirm_interval_s=0.0)
            session = ReplicationSession(start, settings, now=time.monotonic())
            meter = HeartbeatMeter("bench")
            try:
                Pump(connection, session, log, RetentionSettings(), meter, stop).run()
            finally:
                log.close()
            seconds = time.perf_counter() - started
            server_cpu_s = cpu_s(connection.server_pid)
        client_cpu_s = time.process_time() - cpu_started
        reader = LogReader(Path(directory))
        held = sum(commit.changes for commit in reader.commits(reader.start(), reader.end()))
    if held != changes:
        raise PenstockError(
            f"{way.name}: the log holds {held} of {changes} changes", remedy="Report this as a bug"
        )
    return {
        "seconds": seconds,
        "rate": changes / seconds,
        "server_cpu_s": server_cpu_s / millions,
        "client_cpu_s": client_cpu_s / millions,
    }


def _counted(server: EmbeddedPostgres, slot: str, end: Lsn, changes: int) -> dict[str, float]:
    started = time.perf_counter()
    counted = poll(server.dsn(), slot, end)
    seconds = time.perf_counter() - started
    if counted != changes:
        raise PenstockError(
            f"polling by hand counted {counted} of {changes} changes",
            remedy="Report this as a bug",
        )
    return {"seconds": seconds, "rate": changes / seconds}


def _idle(server: EmbeddedPostgres, connection: psycopg.Connection[Any], runs: int) -> float:
    """The server's CPU for a run that finds no new WAL, in milliseconds."""
    start = make_slot(connection, "bench_idle", "pgoutput")
    settings = PollSettings(interval_s=0.001)
    with PollingConnection(server.dsn(), "bench_idle", _pgoutput(), settings) as polling:
        polling.start("bench_idle", _PUBLICATION, max(start, flushed(connection)))
        while not polling.read(1.0):
            pass
        before = cpu_s(polling.server_pid)
        done = 0
        while done < runs:
            done += len(polling.read(1.0))
        return (cpu_s(polling.server_pid) - before) / runs * 1000


def cpu_s(pid: int) -> float:
    """The CPU time of a process so far."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9
