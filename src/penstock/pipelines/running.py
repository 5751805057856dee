"""Aggregates as commands run them: Spark in a process of its own that is gone afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Event

import structlog
from pyspark.sql import SparkSession

from penstock.config import Config
from penstock.interrupts import Interrupts
from penstock.pipelines.job import Job, require_ready
from penstock.scratch import scratch_folder
from penstock.spark.session import throwaway_session

_LOG = structlog.get_logger()
# A batch that is being applied when we are told to stop has so long to commit or roll back.
_LAST_BATCH_S = 10.0


def run_aggregates(config: Config, *, master: str = "local[*]") -> None:
    """Follow the log until a signal comes, which ends it cleanly."""
    try:
        with Interrupts() as interrupts, ExitStack() as stack:
            with interrupts.heeded():
                require_ready(config)
            directory = stack.enter_context(scratch_folder())
            spark = stack.enter_context(job_session(directory / "spark", interrupts, master=master))
            _LOG.info("spark started", master=master)
            job = Job(config, spark)
            ended = Event()

            def run() -> None:
                try:
                    job.run()
                finally:
                    ended.set()

            try:
                interrupts.aside(run)
            finally:
                job.stop()
                ended.wait(_LAST_BATCH_S)
    except KeyboardInterrupt:
        return


@contextmanager
def job_session(
    directory: Path, interrupts: Interrupts, *, master: str = "local[*]"
) -> Iterator[SparkSession]:
    """Spark as the job runs on it."""
    with throwaway_session(
        "penstock aggregate", directory, interrupts, master=master, small_batches=True
    ) as spark:
        yield spark


@contextmanager
def spark_when_needed(name: str) -> Iterator[Callable[[], SparkSession]]:
    """A session that is started when it is asked for the first time."""
    with Interrupts() as interrupts, ExitStack() as stack:
        directory = stack.enter_context(scratch_folder())
        sessions: list[SparkSession] = []

        def session() -> SparkSession:
            if not sessions:
                started = throwaway_session(name, directory / "spark", interrupts)
                sessions.append(stack.enter_context(started))
            return sessions[0]

        with interrupts.heeded():
            yield session
