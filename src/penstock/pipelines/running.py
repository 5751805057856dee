"""Aggregates as commands run them: Spark in a process of its own that is gone afterwards."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Event, Thread

import structlog
from pyspark.sql import SparkSession

from penstock.changelog.reader import LogReader
from penstock.config import Config
from penstock.errors import LogMissing
from penstock.interrupts import Interrupts
from penstock.lasting_state import LastingState
from penstock.pipelines.drain import Drain
from penstock.pipelines.job import Job, require_ready
from penstock.scratch import scratch_folder
from penstock.spark.session import throwaway_session
from penstock.terminal import service_exit_code
from penstock.words import duration, few

_LOG = structlog.get_logger()
# A batch that is being applied when we are told to stop has so long to commit or roll back.
_LAST_BATCH_S = 10.0
_LOOK_EVERY_S = 0.5


def run_aggregates(config: Config, *, master: str = "local[*]", drain: Event | None = None) -> int:
    """Follow the log until a signal ends it cleanly; returns the exit code.

    When `drain` is set, it ends as soon as the whole log is applied.
    """
    try:
        with Interrupts() as interrupts, ExitStack() as stack:
            _wait_for_log(config, interrupts)
            with interrupts.heeded():
                require_ready(config)
            directory = stack.enter_context(scratch_folder())
            session = job_session(
                directory / "spark", interrupts, master=master, log=config.log.path
            )
            spark = stack.enter_context(session)
            _LOG.info("spark started", master=master)
            job = Job(config, spark)
            ended = Event()
            if drain is not None:
                Thread(target=_stop_when_drained, args=(job, drain), daemon=True).start()

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
    except KeyboardInterrupt as end:
        return service_exit_code(getattr(end, "number", None))
    return 0


def _wait_for_log(config: Config, interrupts: Interrupts) -> None:
    """Wait until capture has made its log: services of two hosts are started in any order."""
    missing = LastingState()
    while True:
        try:
            LogReader(config.log.path).end()
        except LogMissing as error:
            now = time.monotonic()
            if missing.begin(now) or missing.is_due(now):
                _LOG.warning(
                    "waiting for capture to make its log",
                    waited_for=duration(missing.age_s(now)),
                    problem=error.problem,
                    remedy=error.remedy,
                )
        else:
            return
        with interrupts.heeded():
            time.sleep(_LOOK_EVERY_S)


def _stop_when_drained(job: Job, asked: Event) -> None:
    asked.wait()
    drain = Drain(time.monotonic())
    while not drain.is_over(behind := job.behind(), time.monotonic()):
        time.sleep(_LOOK_EVERY_S)
    if behind == {}:
        _LOG.info("drained: all that is in the log is applied")
    else:
        _LOG.warning("not drained", aggregates=few(behind or ()))
    job.stop()


@contextmanager
def job_session(
    directory: Path, interrupts: Interrupts, *, master: str = "local[*]", log: Path | None = None
) -> Iterator[SparkSession]:
    """Spark as the job runs on it."""
    with throwaway_session(
        "penstock aggregate", directory, interrupts, master=master, small_batches=True, log=log
    ) as spark:
        yield spark


@contextmanager
def spark_when_needed(name: str, log: Path | None = None) -> Iterator[Callable[[], SparkSession]]:
    """A session that is started when it is asked for the first time.

    `log`: the folder of a change log, where the end of Spark's log is kept if it fails.
    """
    with Interrupts() as interrupts, ExitStack() as stack:
        directory = stack.enter_context(scratch_folder())
        sessions: list[SparkSession] = []

        def session() -> SparkSession:
            if not sessions:
                started = throwaway_session(name, directory / "spark", interrupts, log=log)
                sessions.append(stack.enter_context(started))
            return sessions[0]

        with interrupts.heeded():
            yield session
