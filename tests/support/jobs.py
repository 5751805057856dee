"""Aggregates that follow a log: the job in a thread of the test, and when it has caught up."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession

from penstock.config import Config
from penstock.lsn import Lsn
from penstock.pipelines.job import Job
from support.capturing import RunningCapture, capturing
from support.database import Database
from support.waiting import eventually


class RunningJob:
    """A job in a thread of the test."""

    def __init__(self, config: Config, spark: SparkSession) -> None:
        self.job = Job(config, spark)
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="job")
        self._thread.start()

    def _run(self) -> None:
        try:
            self.job.run()
        except BaseException as error:  # noqa: BLE001 - for the test to look at
            self.error = error

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    def stop(self) -> None:
        self.job.stop()
        self._thread.join(60)
        assert not self._thread.is_alive()

    def failed(self) -> BaseException:
        self._thread.join(60)
        assert self.error is not None
        return self.error

    def must_run(self) -> None:
        """Raises what ended it."""
        if self.error is not None:
            raise self.error


@contextmanager
def job(config: Config, spark: SparkSession) -> Iterator[RunningJob]:
    running = RunningJob(config, spark)
    try:
        yield running
    finally:
        running.stop()


@contextmanager
def captured(config: Config) -> Iterator[RunningCapture]:
    """Capture runs, and the log is there."""
    with capturing(config) as running:
        running.connected()
        yield running


def caught_up(
    database: Database,
    running: RunningJob | None = None,
    *,
    target: Database | None = None,
    meanwhile: Callable[[], object] = lambda: None,
) -> None:
    """Until all aggregates have applied everything that has committed.

    `target`: where they are, if not in the source's database. `meanwhile` is called again and again
    and may raise.
    """
    now = database.wal_position()

    def applied() -> bool:
        if running is not None:
            running.must_run()
        meanwhile()
        found = (target or database).rows("SELECT applied_lsn::text, state FROM penstock.progress")
        return bool(found) and all(
            Lsn.parse(lsn) >= now and state == "live" for lsn, state in found
        )

    eventually(applied, f"everything up to {now} is applied", within_s=120)
