"""Spark's process is killed while a command works with it: told as what it is."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from penstock.changelog.reader import LogReader
from penstock.config import load
from penstock.ops.setup import setup
from penstock.pipelines.seeding import begin
from penstock.spark.session import KEPT
from support.capturing import capturing
from support.database import Database
from support.marks import lines_by_pid
from support.processes import ProcessFamily, started
from support.toml import write_toml
from support.truth import NOTIFICATIONS
from support.waiting import eventually

COUNTS = {
    "name": "counts",
    "sources": ["notifications"],
    "dimensions": {"service": {"expression": "upper(service)", "type": "text"}},
    "targets": ["stats"],
}


@pytest.fixture
def file(database18: Database, tmp_path: Path) -> Path:
    database18.run(
        *NOTIFICATIONS,
        "INSERT INTO notifications SELECT n, 's' || n, 'a', 1 FROM generate_series(1, 100000) AS n",
    )
    settings = {
        "source": {"dsn": database18.dsn(), "tables": ["notifications"]},
        "log": {"path": tmp_path / "log"},
        "aggregate": [COUNTS],
    }
    return write_toml(tmp_path / "penstock.toml", settings)


def test_verify_says_that_spark_was_killed(
    database18: Database, file: Path, tmp_path: Path
) -> None:  # M5.6, M7.3
    config = load(file)
    setup(config)
    with capturing(config) as running:
        running.connected()
        with database18.connect() as target:
            log = LogReader(config.log.path)
            begin(target, config.aggregate[0], str(log.identity.log_id), log.end().lsn)
            target.execute("UPDATE penstock.progress SET state = 'seeded'")
        with subprocess.Popen(
            [sys.executable, "-m", "penstock", "verify", "--config", str(file)],
            env={**os.environ, "PENSTOCK_TEST": str(tmp_path)},
            stderr=subprocess.PIPE,
            text=True,
        ) as verifying:
            assert verifying.stderr is not None
            # Spark begins to compute.
            assert verifying.stderr.readline() == "  100,000 rows read\n"
            (jvm,) = (
                pid for pid, line in lines_by_pid(str(tmp_path)).items() if "SparkSubmit" in line
            )
            os.kill(jvm, signal.SIGKILL)
            said = verifying.stderr.read()
    assert verifying.returncode == 2
    problem, _, remedy = said.partition("\n")
    assert problem == "error: Spark's process ended while it was at work, killed by SIGKILL"
    assert remedy.startswith("  fix: Start it again")


def test_the_job_says_why_spark_failed_and_keeps_the_end_of_spark_s_log(
    database18: Database, file: Path, tmp_path: Path, scratch: Path
) -> None:  # M5.3, M7.3
    config = load(file)
    setup(config)
    job = ProcessFamily("aggregate", config, tmp_path, scratch)

    def a_worker_dies() -> bool:
        """As the kernel ends one when memory is short; it may be idle or at work."""
        for pid, line in job.family().items():
            if "pyspark.daemon pyspark.worker" in line:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        database18.run("UPDATE notifications SET status = 'b' WHERE id = 1")
        return job.has_ended

    with capturing(config) as running:
        running.connected()
        with started(job):
            eventually(lambda: has_counts(database18), "it is seeded", within_s=90)
            eventually(a_worker_dies, "Spark fails", within_s=60)
            said = job.failure()
    problem, _, remedy = said.rpartition("error: ")[2].partition("\n")
    # What Spark says of it depends on what the worker was doing; where that is nothing that can be
    # shown, its log is named all the same.
    assert problem.startswith("Spark's work failed: ")
    if "gives no reason" not in problem:
        assert "a Python process of Spark's died" in problem
        assert "SPARK_DRIVER_MEMORY" in remedy
    kept = config.log.path / KEPT
    assert str(kept) in remedy
    assert kept.stat().st_mode & 0o777 == 0o600
    assert "ERROR" in kept.read_text()
    assert "Traceback" not in job.all_said()
    # The log is whole, and goes on with it.
    assert LogReader(config.log.path).end().lsn


def has_counts(database: Database) -> bool:
    return bool(database.rows("SELECT FROM stats LIMIT 1"))
