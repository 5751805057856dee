"""On a cluster: a master and two workers, each a process of its own, with one directory."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from penstock.config import load
from support.applications import APPS, SPARK_HOME, Application, application
from support.capturing import capturing
from support.database import Database
from support.notes import NotesLog
from support.notify import AGGREGATE, SCHEMA, Notifications, differences, notify_settings
from support.repeats import SOAK
from support.toml import write_toml
from support.waiting import eventually

IN_SMALL = Path(__file__).parent / "in_small"
EXAMPLES = Path(__file__).parents[2] / "examples"
PENSTOCK = Path(sys.executable).parent / "penstock"
# Little: large batches take long to make.
SHARE_BYTES = 2**20
ENVIRONMENT = {
    "SPARK_HOME": str(SPARK_HOME),
    "PYSPARK_PYTHON": sys.executable,
    "SPARK_LOCAL_IP": "127.0.0.1",
    # Else it opens a fixed port.
    "SPARK_MASTER_OPTS": "-Dspark.master.rest.enabled=false",
    "PYTHONPATH": str(IN_SMALL),
}
WORKERS = ("first", "second")


# A cluster takes long to start: all tests have one, in one process.
pytestmark = pytest.mark.xdist_group("cluster")


class Cluster:
    """A master, and workers by name: each has one core, and a folder of its name."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self.directory = directory
        self._stack = stack
        self._registered = 0
        self.workers: dict[str, Application] = {}
        self._master = self._start("master.Master")
        (self.address, *_) = eventually(
            lambda: re.findall(r"spark://127\.0\.0\.1:\d+", self._master.said()),
            "an address",
            within_s=60,
        )

    def _start(self, kind: str, *words: object) -> Application:
        command: list[object] = [SPARK_HOME / "bin" / "spark-class"]
        command += [f"org.apache.spark.deploy.{kind}", "--host", "127.0.0.1"]
        command += ["--port", "0", "--webui-port", "0", *words]
        small = {"GATE": str(self.directory), "SHARE_BYTES": str(SHARE_BYTES)}
        return self._stack.enter_context(application(command, self.directory, ENVIRONMENT | small))

    def complete(self) -> None:
        """Start the workers that are not there, or were killed."""
        for name in WORKERS:
            if name not in self.workers or not self.workers[name].is_running():
                place = self.directory / name
                self.workers[name] = self._start(
                    *("worker.Worker", "-c", "1", "-m", "1g", "-d", place, self.address)
                )
                self._registered += 1
        eventually(
            lambda: self._master.said().count("Registering worker") >= self._registered,
            "both workers are known",
            within_s=60,
        )

    def place(self, where: str) -> str:
        """The worker that has a directory."""
        return Path(where).relative_to(self.directory).parts[0]

    @contextmanager
    def gate(self, kind: str) -> Iterator[None]:
        """Tasks that come there, when they read or when they stage, wait for the end of the
        block.
        """
        # Of tasks that waited at it before.
        for file in self.directory.glob("*.waits"):
            file.unlink()
        closed = self.directory / "closed"
        closed.write_text(kind)
        try:
            yield
        finally:
            closed.unlink()

    def waiting(self) -> set[str]:
        """The workers whose tasks wait at the gate."""
        return {self.place(file.read_text()) for file in self.directory.glob("*.waits")}


@pytest.fixture(scope="module")
def started_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with ExitStack() as stack:
        yield Cluster(tmp_path_factory.mktemp("cluster"), stack)


@pytest.fixture
def cluster(started_cluster: Cluster) -> Cluster:
    started_cluster.complete()
    return started_cluster


def test_both_workers_of_a_cluster_read_their_part_of_a_log_on_a_shared_directory(
    cluster: Cluster, tmp_path: Path
) -> None:  # M5.7
    with NotesLog(tmp_path / "log") as log:
        body = b"x" * 10_000
        while log.written * len(body) < 2 * SHARE_BYTES:
            log.insert(20, body=body)
        log.insert_large(2 * SHARE_BYTES // len(body), body=body, run=20)
    result = tmp_path / "result.json"
    command = [SPARK_HOME / "bin" / "spark-submit", "--master", cluster.address, *SETTINGS]
    command += [APPS / "cluster.py", log.path, tmp_path / "checkpoint", result, 2 * SHARE_BYTES]
    environment = ENVIRONMENT | {"SHARE_BYTES": str(SHARE_BYTES)}
    with application(command, tmp_path, environment) as running:
        running.succeeded(within_s=120)
    found = json.loads(result.read_text())
    everything = (log.written, sum(range(log.written)))
    assert totals(found["batch"]) == everything
    assert len(found["batch"]) >= 4, "both the many transactions and the large one are shared out"
    assert readers(found["batch"], cluster) == set(WORKERS)

    assert len(found["stream"]) >= 2
    tasks = [task for batch in found["stream"] for task in batch]
    assert totals(tasks) == everything
    assert readers(tasks, cluster) == set(WORKERS)
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


def readers(tasks: list[Any], cluster: Cluster) -> set[str]:
    """The workers that ran tasks which read something."""
    return {cluster.place(where) for where, rows, _ in tasks if rows}


SUBMIT = (SPARK_HOME / "bin" / "spark-submit", "--master", "{master}")
EXAMPLE = (*SUBMIT, EXAMPLES / "aggregates.py", "{file}")
COMMAND = (PENSTOCK, "aggregate", "--config", "{file}", "--master", "{master}")
# Both ways to start it, and what tasks do meanwhile. It takes a minute.
CASES = {
    "spark-submit": (EXAMPLE, "reading"),
    **(
        {"penstock": (COMMAND, "reading"), "results are staged": (EXAMPLE, "staging")}
        if SOAK
        else {}
    ),
}


@pytest.mark.parametrize(("way", "gate"), CASES.values(), ids=CASES)
def test_a_worker_is_killed_in_mid_batch_and_each_change_counts_once(
    cluster: Cluster, database18: Database, tmp_path: Path, way: tuple[object, ...], gate: str
) -> None:  # M5.3, M5.7
    database18.run(*SCHEMA)
    database18.create_slot("penstock")
    secret = database18.server.password
    settings = notify_settings(database18.dsn(password=secret), tmp_path / "log", AGGREGATE)
    file = write_toml(tmp_path / "penstock.toml", settings)
    # Several shares for each worker, and more rows than the driver takes in one piece.
    environment = ENVIRONMENT | {"SHARE_BYTES": str(2**18), "MOST_IN_DRIVER": "10"}
    command = [str(word).format(master=cluster.address, file=file) for word in way]
    with database18.connect() as connection, capturing(load(file)) as capture:
        capture.connected()
        with application(command, cluster.directory, environment) as running:
            follows(running, database18)
            with cluster.gate(gate):
                Notifications(connection).insert(ROWS)
                eventually(
                    lambda: cluster.waiting() == set(WORKERS) or not running.is_running(),
                    "both workers are at the batch",
                    within_s=60,
                )
                assert is_nowhere(secret, cluster.directory)
                cluster.workers["second"].kill()
            counted(running, database18, ROWS)
        assert_equal(connection)
        staged = "SELECT n_tup_ins FROM pg_stat_user_tables WHERE relname = 'staged'"
        assert database18.value(staged) >= 10


ROWS = 10_000


def follows(running: Application, database: Database) -> None:
    eventually(
        lambda: (
            not running.is_running()
            or database.rows("SELECT FROM penstock.progress WHERE state = 'live'")
        ),
        "it has begun",
        within_s=120,
    )
    assert running.is_running(), running.said()


def counted(running: Application, database: Database, changes: int) -> None:
    """Until all of them are; no more than those."""

    def changes_counted() -> int:
        return int(database.value("SELECT sum(changes) FROM penstock.progress"))

    eventually(
        lambda: changes_counted() >= changes or not running.is_running(),
        f"{changes} changes are counted",
        within_s=120,
    )
    assert running.is_running(), running.said()
    assert changes_counted() == changes


def assert_equal(connection: psycopg.Connection[Any]) -> None:
    for target in ("ft_all", "ft_service_stats", "ft_by_date"):
        assert differences(connection, target) == 0


def is_nowhere(secret: str, directory: Path) -> bool:
    """Neither in what Spark writes, nor in any process's arguments, which hold its settings."""
    files = [*directory.glob("*.said"), *directory.glob("*/app-*/*/std*")]
    arguments = Path("/proc").glob("[0-9]*/cmdline")
    said = []
    for file in (*files, *arguments):
        try:
            said.append(file.read_bytes())
        except OSError:  # the process has ended
            continue
    return not any(secret.encode() in text for text in said)
