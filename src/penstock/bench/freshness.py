"""How long after its commit in the source a change is seen in the target, under a steady load.

An observer asks the target every 5 ms. What it looks for are probes: rows of a service of their
own, each with a template that nobody else uses, so that each makes one new row in the target.
"""

from __future__ import annotations

import multiprocessing
import statistics
import tempfile
import threading
import time
import uuid
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg

from penstock.bench.counting import applied, capturing, configured, following, prepare
from penstock.bench.notifications import insert
from penstock.bench.progress import Progress
from penstock.bench.report import Figure, Report
from penstock.bench.service import flushed
from penstock.interrupts import Interrupts
from penstock.pipelines.running import job_session
from penstock.postgres.embedded import EmbeddedPostgres

RATE = 2_000
_GOAL_P50_MS = 200.0
_GOAL_P99_MS = 600.0
_PROBE_EVERY_S = 0.05
_LOOK_EVERY_S = 0.005
_PROBES = uuid.UUID(int=1)
_SLOT = "bench"
_LOOK = "SELECT template_id FROM ft_service_stats WHERE service_id = %s AND template_id = ANY (%s)"
_TICK_S = 0.02
_INSERT = """
INSERT INTO notifications
SELECT gen_random_uuid(), md5('service' || t %% 20)::uuid, md5('template' || t)::uuid, NULL,
       'email', 'normal', 'created', now(), NULL
  FROM (SELECT floor(random() * 100)::int AS t FROM generate_series(1, %s)) AS drawn
RETURNING id
"""
_MOVE = """
UPDATE notifications SET notification_status = 'sending', updated_at = now() WHERE id = ANY (%s)
"""
_PROBE = """
INSERT INTO notifications
VALUES (gen_random_uuid(), %s, %s, NULL, 'email', 'normal', 'created', now(), NULL)
"""


def bench_freshness(
    progress: Progress, *, rate: int = RATE, warm_up_s: float = 40.0, seconds: float = 30.0
) -> Report:
    with ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="penstock-bench-")))
        interrupts = stack.enter_context(Interrupts())
        server = stack.enter_context(EmbeddedPostgres(18))
        connection = stack.enter_context(psycopg.connect(server.dsn(), autocommit=True))
        prepare(connection)
        insert(connection, 10_000)
        connection.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [_SLOT])
        config = configured(server.dsn(), root, _SLOT)
        stack.enter_context(capturing(config, root))
        progress("starting Spark")
        spark = stack.enter_context(job_session(root / "spark", interrupts, master="local[2]"))
        check = stack.enter_context(following(config, spark))
        applied(connection, flushed(connection), check)
        progress(f"{rate:,} changes a second, {warm_up_s:g} s to warm up, then {seconds:g} s")
        # In processes of their own: neither may take the job's time.
        others = stack.enter_context(ProcessPoolExecutor(2, multiprocessing.get_context("spawn")))
        load = others.submit(_load, server.dsn(), rate, warm_up_s + seconds + 5)
        time.sleep(warm_up_s)
        before, started = _changes(connection), time.monotonic()
        seen_ms = others.submit(_probe, server.dsn(), seconds).result()
        reached = (_changes(connection) - before) / (time.monotonic() - started)
        load.result()
        version = server.full_version
    seen_ms.sort()
    return Report(
        "freshness",
        [
            Figure("p50", round(statistics.median(seen_ms), 1), "ms", _GOAL_P50_MS, False),
            Figure("p99", round(seen_ms[len(seen_ms) * 99 // 100], 1), "ms", _GOAL_P99_MS, False),
            Figure("longest", round(seen_ms[-1], 1), "ms"),
            # Under less load the others would say nothing.
            Figure("rate reached", round(reached), "changes/s", rate),
        ],
        [{"probes": len(seen_ms), "ms": [round(value, 1) for value in seen_ms]}],
        {"postgres": version},
    )


def _load(dsn: str, rate: int, seconds: float) -> None:
    """Half of the changes are new rows, half move rows on by their keys, as an application does."""
    rows = max(1, round(rate * _TICK_S / 2))
    next_tick = time.monotonic()
    until = next_tick + seconds
    with psycopg.connect(dsn, autocommit=True) as connection:
        while time.monotonic() < until:
            ids = [row[0] for row in connection.execute(_INSERT, [rows])]
            connection.execute(_MOVE, [ids])
            next_tick += _TICK_S
            time.sleep(max(0.0, next_tick - time.monotonic()))


def _changes(connection: psycopg.Connection[Any]) -> int:
    row = connection.execute("SELECT sum(changes) FROM penstock.progress").fetchone()
    return int(row[0]) if row else 0


def _probe(dsn: str, seconds: float) -> list[float]:
    """Milliseconds from commit to sight, of every probe."""
    committed: dict[uuid.UUID, float] = {}
    seen: dict[uuid.UUID, float] = {}
    writing = threading.Thread(target=lambda: _write_probes(dsn, seconds, committed))
    with psycopg.connect(dsn, autocommit=True) as observer:
        writing.start()
        deadline = time.monotonic() + seconds + 30
        while writing.is_alive() or len(seen) < len(committed):
            waiting = [template for template in list(committed) if template not in seen]
            for (template,) in observer.execute(_LOOK, [_PROBES, waiting]):
                seen[template] = time.monotonic()
            if time.monotonic() > deadline:
                break
            time.sleep(_LOOK_EVERY_S)
    writing.join()
    # One that was never seen is as late as can be.
    return [
        (seen.get(template, deadline) - moment) * 1000 for template, moment in committed.items()
    ]


def _write_probes(dsn: str, seconds: float, committed: dict[uuid.UUID, float]) -> None:
    until = time.monotonic() + seconds
    with psycopg.connect(dsn, autocommit=True) as connection:
        while time.monotonic() < until:
            template = uuid.uuid4()
            connection.execute(_PROBE, [_PROBES, template])
            committed[template] = time.monotonic()
            time.sleep(_PROBE_EVERY_S)
