"""Seeding from many rows: beside the same GROUP BY, and beside COPY of the columns needed, which
psql writes to /dev/null.
"""

from __future__ import annotations

import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
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
_STATUS = ("notification_status",)
# Beside the day: as `examples/notify` counts.
_SIX = (
    *("template_id", "service_id", "job_id", "notification_type", "key_type"),
    "notification_status",
)


@dataclass(frozen=True, slots=True)
class _Computed:
    """Counts by an expression of `created_at` and by columns."""

    name: str
    figure: str
    expression: str
    # What it should be, by Postgres.
    truth: str
    kind: str
    columns: Sequence[str]
    goal: float | None

    @property
    def table(self) -> str:
        return f"ft_{self.name}"

    @property
    def listed(self) -> str:
        return ", ".join(self.columns)


_LONDON = "to_date(from_utc_timestamp(created_at, 'Europe/London'))"
_LONDON_TRUTH = "(created_at AT TIME ZONE 'Europe/London')::date"
_COMPUTED = (
    _Computed("by_date", "expressions", _LONDON, _LONDON_TRUTH, "date", _STATUS, _GOAL),
    _Computed("by_seven", "seven dimensions", _LONDON, _LONDON_TRUTH, "date", _SIX, _GOAL),
    # Of which Spark must see every moment.
    _Computed(
        "by_second",
        "expressions of every second",
        "second(created_at)",
        "trunc(extract(second FROM created_at))::int",
        "integer",
        _STATUS,
        None,
    ),
)


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
        computed = {each: _configured(connection, server, root, each) for each in _COMPUTED}
        stack.enter_context(capturing(plain, root))
        progress("starting Spark")
        spark = stack.enter_context(job_session(root / "spark", interrupts, master="local[2]"))
        runs = []
        for number in range(repeats + 1):
            run = {
                "group_by_s": _timed(lambda: connection.execute(_GROUP_BY).fetchall()),
                "plain_s": _timed(lambda: _seed(plain, spark)),
            }
            _check(connection, _GROUP_BY, "TABLE ft_service_stats")
            for each, config in computed.items():
                run[f"{each.name}_copy_s"] = _timed(partial(_copy, server, each))
                run[f"{each.name}_s"] = _timed(partial(_seed, config, spark))
                truth = f"SELECT {each.truth}, {each.listed}, count(*) FROM notifications"
                _check(
                    connection,
                    f"{truth} GROUP BY 1, {each.listed}",
                    f"SELECT computed, {each.listed}, count FROM {each.table}",
                )
            note = f"run {number}" if number else "to warm up"
            progress(f"{note}: " + ", ".join(f"{name} {value:.2f}" for name, value in run.items()))
            if number:
                runs.append(run)
        version = server.full_version
    return Report(
        "seed",
        [
            _ratio("plain columns to GROUP BY", runs, "plain_s", "group_by_s", _GOAL),
            *(
                _ratio(
                    f"{each.figure} to COPY",
                    runs,
                    f"{each.name}_s",
                    f"{each.name}_copy_s",
                    each.goal,
                )
                for each in _COMPUTED
            ),
            Figure("rows", rows, ""),
        ],
        runs,
        {"postgres": version},
    )


def _configured(
    connection: psycopg.Connection[Any], server: EmbeddedPostgres, root: Path, computed: _Computed
) -> Config:
    """And the table for it."""
    connection.execute(
        f"CREATE TABLE {computed.table} AS SELECT NULL::{computed.kind} AS computed,"
        f" {computed.listed}, 0::bigint AS count FROM notifications LIMIT 0".encode()
    )
    connection.execute(
        f"ALTER TABLE {computed.table} ALTER count SET NOT NULL,"
        f" ADD UNIQUE NULLS NOT DISTINCT (computed, {computed.listed})".encode()
    )
    return configured(
        server.dsn(),
        root,
        _SLOT,
        name=computed.name,
        sources=[{"table": "notifications", "delete": False}],
        dimensions={"computed": computed.expression} | {name: name for name in computed.columns},
        targets=[computed.table],
    )


def _ratio(
    name: str, runs: list[dict[str, float]], ours: str, peer: str, goal: float | None
) -> Figure:
    value = statistics.median(run[ours] / run[peer] for run in runs)
    return Figure(name, round(value, 2), "ratio", goal, at_least=False)


def _seed(config: Config, spark: SparkSession) -> None:
    seed(config, config.aggregate[0], lambda: spark)


def _check(connection: psycopg.Connection[Any], truth: str, target: str) -> None:
    """What is fast and wrong is not fast."""
    statement = f"SELECT count(*) FROM (({truth}) EXCEPT ({target})) AS lacking"
    other = f"SELECT count(*) FROM (({target}) EXCEPT ({truth})) AS added"
    wrong = connection.execute(f"SELECT ({statement}) + ({other})".encode()).fetchone()
    if wrong != (0,):
        raise PenstockError(f"{target} is not {truth}", remedy="Report this as a bug")


def _copy(server: EmbeddedPostgres, computed: _Computed) -> None:
    """As fast as it can be had: by a client in C that does nothing with what it gets."""
    rows = f"SELECT created_at, {computed.listed} FROM notifications"
    command = [*server.program("psql"), "--no-psqlrc", "--dbname", server.dsn()]
    command += ["--command", f"COPY ({rows}) TO STDOUT (FORMAT csv)"]
    code = subprocess.run(command, stdout=subprocess.DEVNULL, check=False).returncode
    if code:
        raise PenstockError(f"psql ended with exit code {code}", remedy="Its own message is above")


def _timed(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started
