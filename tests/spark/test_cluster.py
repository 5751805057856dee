"""The source on a cluster: a master and two workers, each a process of its own."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from penstock.changelog.planning import SHARE_BYTES
from support.applications import APPS, SPARK_HOME, Application, application
from support.notes import NotesLog
from support.waiting import eventually

ENVIRONMENT = {
    "SPARK_HOME": str(SPARK_HOME),
    "PYSPARK_PYTHON": sys.executable,
    "SPARK_LOCAL_IP": "127.0.0.1",
    # Else it opens a fixed port.
    "SPARK_MASTER_OPTS": "-Dspark.master.rest.enabled=false",
}
WORKERS = ("first", "second")


@pytest.fixture
def master(tmp_path: Path) -> Iterator[str]:
    """The address of a master that has two workers with one core each."""
    with ExitStack() as stack:

        def start(kind: str, *words: object) -> Application:
            name = f"org.apache.spark.deploy.{kind}"
            command: list[object] = [
                SPARK_HOME / "bin" / "spark-class",
                name,
                "--host",
                "127.0.0.1",
            ]
            command += ["--port", "0", "--webui-port", "0", *words]
            return stack.enter_context(application(command, tmp_path, ENVIRONMENT))

        leader = start("master.Master")
        (address, *_) = eventually(
            lambda: re.findall(r"spark://127\.0\.0\.1:\d+", leader.said()),
            "an address",
            within_s=60,
        )
        for name in WORKERS:
            start("worker.Worker", "-c", "1", "-m", "1g", "-d", tmp_path / name, address)
        eventually(
            lambda: leader.said().count("Registering worker") == len(WORKERS),
            "both workers are known",
            within_s=60,
        )
        yield address


def test_both_workers_of_a_cluster_read_their_part_of_a_log_on_a_shared_directory(
    master: str, tmp_path: Path
) -> None:  # M5.7
    with NotesLog(tmp_path / "log") as log:
        body = b"x" * 10_000
        while log.written * len(body) < 2 * SHARE_BYTES:
            log.insert(200, body=body)
        log.insert_large(2 * SHARE_BYTES // len(body), body=body)
    result = tmp_path / "result.json"
    command = [SPARK_HOME / "bin" / "spark-submit", "--master", master, *SETTINGS]
    command += [APPS / "cluster.py", log.path, tmp_path / "checkpoint", result]
    with application(command, tmp_path, ENVIRONMENT) as running:
        running.succeeded(within_s=120)
    found = json.loads(result.read_text())
    everything = (log.written, sum(range(log.written)))
    assert totals(found["batch"]) == everything
    assert len(found["batch"]) >= 4, "both the many transactions and the large one are shared out"
    assert workers(found["batch"], tmp_path) == set(WORKERS)

    assert len(found["stream"]) >= 2
    tasks = [task for batch in found["stream"] for task in batch]
    assert totals(tasks) == everything
    assert workers(tasks, tmp_path) == set(WORKERS)
    assert not (SPARK_HOME / "work").exists()


SETTINGS = (
    *("--conf", "spark.ui.enabled=false"),
    *("--conf", "spark.executor.memory=512m"),
    # Nothing starts before both workers are there.
    *("--conf", "spark.cores.max=2"),
    *("--conf", "spark.scheduler.minRegisteredResourcesRatio=1.0"),
    *("--conf", "spark.scheduler.maxRegisteredResourcesWaitingTime=60s"),
)


def totals(tasks: list[Any]) -> tuple[int, int]:
    return sum(rows for _, rows, _ in tasks), sum(total for _, _, total in tasks)


def workers(tasks: list[Any], directory: Path) -> set[str]:
    """Which of them ran tasks that read something."""
    return {Path(where).relative_to(directory).parts[0] for where, rows, _ in tasks if rows}
