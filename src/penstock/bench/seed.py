"""Seeding from many rows: beside the same GROUP BY, and beside COPY of the columns needed, which
psql writes to /dev/null.
"""

from __future__ import annotations

import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg
from pyspark.sql import SparkSession

from penstock.bench.counting import capturing, configured, prepare
from penstock.bench.progress import Progress
from penstock.bench.report import Figure, Report
from penstock.config import Config
from penstock.errors import PenstockError
from penstock.interrupts import Interrupts
from penstock.pipelines.running import job_session
from penstock.pipelines.seeding import seed
from penstock.postgres.embedded import EmbeddedPostgres

ROWS = 5_000_000
REPEATS = 3
_GOAL = 1.5
_SLOT = "bench"
_FILL = """
INSERT INTO notifications
SELECT gen_random_uuid(), md5('service' || t %% 50)::uuid, md5('template' || t)::uuid, NULL,
       'email', 'normal', (ARRAY['created', 'sending', 'delivered', 'failed'])[1 + t %% 4],
       timestamptz '2026-01-01 00:00+00' + n * interval '1 second', NULL
  FROM (SELECT n, (random() * 500)::int AS t FROM generate_series(1, %s) AS n) AS drawn
"""
_GROUP_BY = """
SELECT service_id, template_id, notification_type, notification_status, count(*)
  FROM notifications GROUP BY 1, 2, 3, 4
"""
_COPY = "COPY (SELECT created_at, notification_status FROM notifications) TO STDOUT (FORMAT csv)"
_TARGETS = ("ft_service_stats", "ft_by_date", "ft_by_second")
_BY_DATE = ("date", "to_date(from_utc_timestamp(created_at, 'Europe/London'))")
# Of which Spark must see every moment.
_BY_SECOND = ("integer", "second(created_at)")


def bench_seed(progress: Progress, *, rows: int = ROWS, repeats: int = REPEATS) -> Report:
    with ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="penstock-bench-")))
        interrupts = stack.enter_context(Interrupts())
        server = stack.enter_context(
            EmbeddedPostgres(18, settings={"shared_buffers": "1GB", "max_wal_size": "16GB"})
        )
        connection = stack.enter_context(psycopg.connect(server.dsn(), autocommit=True))
        prepare(connection)
        progress(f"making {rows:,} rows")
        connection.execute(_FILL, [rows])
        connection.execute("VACUUM (FREEZE, ANALYZE) notifications")
        connection.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [_SLOT])
        plain = configured(server.dsn(), root, _SLOT)
        by_date = _computed(connection, server, root, "by_date", *_BY_DATE)
        by_second = _computed(connection, server, root, "by_second", *_BY_SECOND)
        stack.enter_context(capturing(plain, root))
        progress("starting Spark")
        spark = stack.enter_context(job_session(root / "spark", interrupts, master="local[2]"))
        runs = []
        for number in range(repeats + 1):
            run = {
                "group_by_s": _timed(lambda: connection.execute(_GROUP_BY).fetchall()),
                "plain_s": _timed(lambda: _seed(plain, spark)),
                "copy_s": _timed(lambda: _copy(server)),
                "expressions_s": _timed(lambda: _seed(by_date, spark)),
                "every_moment_s": _timed(lambda: _seed(by_second, spark)),
            }
            for table in _TARGETS:
                _check(connection, table, rows)
            note = f"run {number}" if number else "to warm up"
            progress(f"{note}: " + ", ".join(f"{name} {value:.2f}" for name, value in run.items()))
            if number:
                runs.append(run)
        version = server.full_version
    return Report(
        "seed",
        [
            _ratio("plain columns to GROUP BY", runs, "plain_s", "group_by_s", _GOAL),
            _ratio("expressions to COPY", runs, "expressions_s", "copy_s", _GOAL),
            _ratio("expressions of every second to COPY", runs, "every_moment_s", "copy_s"),
            Figure("rows", rows, ""),
        ],
        runs,
        {"postgres": version},
    )


def _computed(
    connection: psycopg.Connection[Any],
    server: EmbeddedPostgres,
    root: Path,
    name: str,
    kind: str,
    expression: str,
) -> Config:
    """By an expression and a column, into a table of its own."""
    connection.execute(
        f"CREATE TABLE ft_{name} (computed {kind}, notification_status text,"
        " count bigint NOT NULL DEFAULT 0, UNIQUE NULLS NOT DISTINCT"
        " (computed, notification_status))".encode()
    )
    return configured(
        server.dsn(),
        root,
        _SLOT,
        name=name,
        sources=[{"table": "notifications", "delete": False}],
        dimensions={"computed": expression, "notification_status": "notification_status"},
        targets=[f"ft_{name}"],
    )


def _ratio(
    name: str, runs: list[dict[str, float]], ours: str, peer: str, goal: float | None = None
) -> Figure:
    value = statistics.median(run[ours] / run[peer] for run in runs)
    return Figure(name, round(value, 2), "ratio", goal, at_least=False)


def _seed(config: Config, spark: SparkSession) -> None:
    seed(config, config.aggregate[0], lambda: spark)


def _check(connection: psycopg.Connection[Any], table: str, rows: int) -> None:
    """What is fast and wrong is not fast."""
    statement = f"SELECT coalesce(sum(count), 0) FROM {table}"  # noqa: S608 - our own table
    (counted,) = connection.execute(statement.encode()).fetchone() or (0,)
    if counted != rows:
        raise PenstockError(
            f"{table} counts {counted} rows of {rows}", remedy="Report this as a bug"
        )


def _copy(server: EmbeddedPostgres) -> None:
    """As fast as it can be had: by a client in C that does nothing with what it gets."""
    command = [*server.program("psql"), "--no-psqlrc", "--dbname", server.dsn(), "--command", _COPY]
    code = subprocess.run(command, stdout=subprocess.DEVNULL, check=False).returncode
    if code:
        raise PenstockError(f"psql ended with exit code {code}", remedy="Its own message is above")


def _timed(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started
