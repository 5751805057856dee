"""What the benchmarks of aggregates share: a server, one aggregate by four columns, capture and the
job that follows it.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
from pyspark.sql import SparkSession

from penstock.bench.notifications import create_table
from penstock.beside import Check, beside
from penstock.config import Config
from penstock.errors import PenstockError
from penstock.lsn import Lsn
from penstock.pipelines.bookkeeping import TABLES
from penstock.pipelines.job import Job

DIMENSIONS = ("service_id", "template_id", "notification_type", "notification_status")
AGGREGATE = "service_stats"
_STATS = """
CREATE TABLE ft_service_stats (service_id uuid, template_id uuid, notification_type text,
    notification_status text, count bigint NOT NULL DEFAULT 0,
    UNIQUE NULLS NOT DISTINCT (service_id, template_id, notification_type, notification_status))
"""
PUBLICATION = "bench"
_START_S = 60.0


def prepare(connection: psycopg.Connection[Any]) -> None:
    """The source table, and the target with its bookkeeping."""
    create_table(connection)
    connection.execute(
        "ALTER TABLE notifications REPLICA IDENTITY USING INDEX notifications_id_status"
    )
    connection.execute(f"CREATE PUBLICATION {PUBLICATION} FOR TABLE notifications".encode())
    connection.execute("CREATE SCHEMA penstock")
    for statement in TABLES.values():
        connection.execute(statement.encode())
    connection.execute(_STATS)


def configured(dsn: str, directory: Path, slot: str, **changes: Any) -> Config:
    """Deletes do not count: with this identity their dimensions are not in the WAL."""
    aggregate = {
        "name": AGGREGATE,
        "sources": [
            {
                "table": "notifications",
                "immutable": ["service_id", "template_id", "notification_type"],
                "delete": False,
            }
        ],
        "dimensions": list(DIMENSIONS),
        "targets": ["ft_service_stats"],
        "verifiable": False,
    }
    return Config.model_validate(
        {
            "source": {
                "dsn": dsn,
                "slot": slot,
                "publication": PUBLICATION,
                "tables": ["notifications"],
            },
            "heartbeat": {"interval_min": 0},
            "log": {"path": directory / "log"},
            "aggregate": [aggregate | changes],
        }
    )


@contextmanager
def capturing(config: Config, directory: Path) -> Iterator[None]:
    """`penstock capture` in a process of its own."""
    source = config.source
    file = directory / "penstock.toml"
    file.write_text(
        f'[source]\ndsn = "{source.conninfo}"\nslot = "{source.slot}"\n'
        f'publication = "{source.publication}"\ntables = ["notifications"]\n'
        f'[heartbeat]\ninterval_min = 0\n[log]\npath = "{config.log.path}"\n'
    )
    program = Path(sys.executable).parent / "penstock"
    process = subprocess.Popen([program, "capture", "-c", file], stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + _START_S
        while not (config.log.path / "head").exists():
            if process.poll() is not None or time.monotonic() > deadline:
                raise PenstockError("capture did not start", remedy=f"Try: capture -c {file}")
            time.sleep(0.02)
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(_START_S)


@contextmanager
def following(config: Config, spark: SparkSession) -> Iterator[Check]:
    """The job, in a thread."""
    job = Job(config, spark)
    with beside(job.run, job.stop, "job") as check:
        yield check


def applied(
    connection: psycopg.Connection[Any], lsn: Lsn, check: Check, *, within_s: float = 600.0
) -> None:
    """Until the aggregate is live and has applied everything up to a position."""
    deadline = time.monotonic() + within_s
    while True:
        check()
        row = connection.execute(
            "SELECT applied_lsn >= %s AND state = 'live' FROM penstock.progress", [str(lsn)]
        ).fetchone()
        if row is not None and row[0]:
            return
        if time.monotonic() > deadline:
            raise PenstockError(
                f"not applied up to {lsn} within {within_s:g} s", remedy="Report this as a bug"
            )
        time.sleep(0.02)
