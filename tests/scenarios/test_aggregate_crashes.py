"""Everything that aggregates need dies under load, again and again: capture, the job, its JVM, the
Python workers of that, the server, the connection to the targets."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.config import Config
from penstock.postgres.embedded import EmbeddedPostgres
from support.changes import changes
from support.database import Database
from support.jobs import caught_up
from support.notify import (
    AGGREGATE,
    LIVE,
    NORMAL,
    SCHEMA,
    differences,
    notify_config,
    working,
)
from support.processes import PenstockProcess, ProcessFamily, capture_process, started
from support.proxy import Proxy
from support.repeats import SOAK, repeats
from support.versions import EVERY
from support.waiting import eventually

KINDS = ("cut", "crash", "worker", "driver", "jvm", "capture")
# For each version of the server. Without soak the first two: the others kill processes, and most of
# them take Spark along, which takes long; the scenario of `penstock run` kills some of them.
FAULTS = repeats(2, soak=30)
VERSIONS = EVERY if SOAK else (18,)
TARGETS = ("ft_all", "ft_service_stats", "ft_by_date", "ft_live", "ft_normal")


class AggregateProcess(ProcessFamily):
    """`penstock aggregate`, and the processes that it starts."""

    def __init__(self, config: Config, directory: Path, scratch: Path) -> None:
        super().__init__("aggregate", config, directory, scratch)

    def jvm(self) -> int:
        (jvm,) = (pid for pid, line in self.family().items() if "SparkSubmit" in line)
        return jvm

    def workers(self) -> list[int]:
        """Those that read, the one that starts them, and the one that plans."""
        return [pid for pid, line in self.family().items() if " -m pyspark." in line]


@pytest.mark.parametrize("own_server", VERSIONS, indirect=True)
def test_aggregates_equal_group_by_after_every_fault(
    own_server: EmbeddedPostgres, tmp_path: Path, scratch: Path
) -> None:  # M4.5, M5.2, M5.3, M5.4
    seed = random.randrange(2**32) if SOAK else own_server.version
    print(f"seed {seed}")  # noqa: T201 - shown if it fails
    chance = random.Random(seed)
    with Database(own_server, "app") as database, Proxy(own_server.port) as proxy:
        database.run(*SCHEMA)
        database.create_slot("penstock")
        target = {"target_dsn": proxy.through(database.dsn())}
        declared = [{**each, **target} for each in (AGGREGATE, LIVE, NORMAL)]
        config = notify_config(database, tmp_path / "log", *declared)
        job = AggregateProcess(config, tmp_path, scratch)
        with capture_process(config, tmp_path) as capture:
            eventually((tmp_path / "log").exists, "the log is begun")
            with started(job):
                # The tables are empty, so that whatever comes through the log counts.
                caught_up(database, meanwhile=lambda: must_run(job))
                for fault in faults(chance):
                    with working(database, seed=chance.randrange(2**32)):
                        time.sleep(chance.uniform(0.3, 1.0))
                        strike(fault, capture, job, own_server, proxy, chance)
                        recovered(database, job, fault)
                    recovered(database, job, fault)
                    must_be_exact(database)
                job.stop(within_s=30)
                job.all_gone()
            capture.stop()
        must_have_counted_each_change_once(database, tmp_path / "log")


def faults(chance: random.Random) -> Iterator[str]:
    """Every kind comes once before one comes again, in any order."""
    kinds = KINDS if SOAK else KINDS[:FAULTS]
    for _ in range(FAULTS // len(kinds)):
        yield from chance.sample(kinds, len(kinds))


def strike(
    fault: str,
    capture: PenstockProcess,
    job: AggregateProcess,
    server: EmbeddedPostgres,
    proxy: Proxy,
    chance: random.Random,
) -> None:
    match fault:
        case "capture":
            capture.kill()
            capture.start()
        case "driver":
            job.kill()
            job.all_gone()
            job.start()
            if SOAK and chance.random() < 0.3:  # once more, while it starts: it may be anywhere
                time.sleep(chance.uniform(0.0, 10.0))
                job.kill()
                job.all_gone()
                job.start()
        case "jvm":
            os.kill(job.jvm(), signal.SIGKILL)
            assert "Spark" in job.failure(within_s=30)
            job.all_gone()
            job.start()
        case "worker":
            os.kill(chance.choice(job.workers()), signal.SIGKILL)
        case "crash":
            server.restart("immediate")
        case "cut":
            cuts = proxy.cuts
            proxy.cut_after(chance.randrange(2000))
            eventually(lambda: proxy.cuts > cuts, "the cut", within_s=60)


def recovered(database: Database, job: AggregateProcess, fault: str) -> None:
    """Without help, unless the job lost a part of itself: then whoever runs it starts it again."""

    def watched() -> None:
        if fault == "worker" and job.has_ended:
            job.failure()
            job.all_gone()
            job.start()
        must_run(job)

    caught_up(database, meanwhile=watched)


def must_run(job: AggregateProcess) -> None:
    assert not job.has_ended, job.said()


def must_be_exact(database: Database) -> None:
    with database.connect() as connection:
        assert {target: differences(connection, target) for target in TARGETS} == dict.fromkeys(
            TARGETS, 0
        )
    for target in TARGETS:
        assert database.value(f"SELECT coalesce(min(count), 0) FROM {target}") >= 0
    assert database.rows("SELECT * FROM penstock.parked") == []
    assert database.rows("SELECT DISTINCT skipped, clamped FROM penstock.progress") == [({}, 0)]


def must_have_counted_each_change_once(database: Database, log: Path) -> None:
    """By the job's own account: what it applied twice or never would show here too."""
    of_table = Counter(change.tables[0] for change in changes(log))
    live, history = of_table["public.notifications"], of_table["public.notification_history"]
    assert dict(database.rows("SELECT aggregate, changes FROM penstock.progress")) == {
        "notification_counts": live + history,
        "live": live,
        "normal_by_hour": live,
    }
