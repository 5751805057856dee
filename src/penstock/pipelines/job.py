"""The Spark job: follows the log for all declared aggregates and applies what it finds.

One query reads the log once for all of them; each has its own position, in its target. The position
is the truth: each start begins at the one furthest behind, with a checkpoint that is thrown away.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pyarrow as pa
import structlog
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery

from penstock.backoff import Backoff
from penstock.changelog.planning import SHARE_BYTES, Limit, limited
from penstock.changelog.reader import LogReader, Position
from penstock.config import Config
from penstock.decode.deltas import AGGREGATE, NOTE, WantedDeltas
from penstock.errors import (
    LogError,
    NotSeeded,
    PenstockError,
    QueryStopped,
    SeedingUnderWay,
    SourceError,
)
from penstock.lsn import Lsn
from penstock.pipelines.applying import Batch
from penstock.pipelines.binding import Bound, bind, types_of
from penstock.pipelines.deciding import Covered
from penstock.pipelines.drain import Behind
from penstock.pipelines.expressions_checked import require_computable
from penstock.pipelines.grouping import batch_of, computed, covered_by, grouped, places
from penstock.pipelines.grouping_told import Grouping
from penstock.pipelines.held_log import left_consumers
from penstock.pipelines.meaning import with_meaning
from penstock.pipelines.moments import by_minute
from penstock.pipelines.passing import may_pass
from penstock.pipelines.seeding import seed_if_due
from penstock.pipelines.sources import read_sources
from penstock.pipelines.spark_staging import stage
from penstock.pipelines.staging import MOST_IN_DRIVER
from penstock.pipelines.target_tables import usable
from penstock.pipelines.writing import Writer
from penstock.postgres.cancelling import Cancelled
from penstock.scratch import scratch_folder
from penstock.spark import late
from penstock.spark.deltas import PenstockDeltas, as_option
from penstock.spark.errors import OF_SPARK, failed, original

_LOG = structlog.get_logger()
_SETTINGS = {"spark.sql.adaptive.enabled": "false", "spark.sql.streaming.pollingDelay": "20ms"}
# Progress in Spark's checkpoint costs more than the batch; ours is in the target.
_ASYNC = {
    "asyncProgressTrackingEnabled": "true",
    "asyncProgressTrackingCheckpointIntervalMs": "1000",
    "_asyncProgressTrackingOverrideSinkSupportCheck": "true",
}
_LOOK_EVERY_S = 0.5
_AWAY_LOOK_S = 0.1
# A partition that is added has an identity of its own, and a table may leave the publication: what
# is left out then is not seen.
_SOURCES_EVERY_S = 30.0
_FEW_SHARES = 3
# What one aggregate missed is read so much at a time, for the others wait meanwhile.
_AT_ONCE = Limit(256 * 2**20)


class _Stopped(Exception):
    """The job ends while an aggregate is being seeded."""


@dataclass(frozen=True, slots=True)
class _Result:
    """What a batch adds to all aggregates."""

    # All of it, or its notes only.
    here: pa.Table
    # Where the rest is, if it is large.
    on_executors: DataFrame | None = None


def require_ready(config: Config) -> None:
    """Whether the job can begin, as far as databases and the log tell: before Spark is started,
    which takes all cores for many seconds.
    """
    _, writers = _declared(config, LogReader(config.log.path), threading.Event())
    for writer in writers:
        writer.check()
    _require_one(writers)


def _declared(
    config: Config, log: LogReader, stopping: threading.Event
) -> tuple[list[Bound], list[Writer]]:
    """All aggregates, as the source's tables are now, and who will write them."""
    if not config.aggregate:
        raise NotSeeded(
            "no aggregate is declared", remedy="Add an [[aggregate]] to the configuration"
        )
    known_up_to = log.end().lsn
    facts = read_sources(config)
    bound = [bind(each, types_of(facts), known_up_to) for each in config.aggregate]
    default = config.source.conninfo
    writers = [
        Writer(each, each.conninfo(default), facts, log, stopping) for each in config.aggregate
    ]
    return bound, writers


def _require_one(writers: Sequence[Writer]) -> None:
    """While all targets are away there is nothing to do."""
    away = {writer.name: writer.away for writer in writers if writer.away}
    if len(away) == len(writers):
        name, error = next(iter(away.items()))
        with usable(name):
            raise error


def _tell_grouping(aggregate: str, at: Grouping) -> None:
    facts = {"table": str(at.table), "about_rows": at.about_rows, "for_s": round(at.for_s)}
    _LOG.info("seeding", aggregate=aggregate, **facts)


class Job:
    """Runs until it is stopped or something is wrong that will not pass."""

    def __init__(self, config: Config, spark: SparkSession) -> None:
        self._config = config
        self._spark = spark
        self._log = LogReader(config.log.path)
        self._log_id = str(self._log.identity.log_id)
        self._stopping = threading.Event()
        self._failure: Exception | None = None
        self._writers: list[Writer] = []
        self._bound: list[Bound] = []
        # Where it began, the end of the last batch, and from where on Spark plans the next.
        self._start = self._reached = self._planned = Lsn(0)
        # At the end of the last batch or before.
        self._seen = Position(Lsn(0), 0, 0)
        self._follows = False
        self._has_applied = False

    def stop(self) -> None:
        self._stopping.set()

    def behind(self) -> dict[str, Behind] | None:
        """Return the aggregates that have not applied the whole log; None before it follows.

        One that is still to be seeded is not among them: its snapshot may be beyond the log.
        """
        if not self._follows:
            return None
        end = self._log.end().lsn
        return {
            writer.name: Behind(writer.applied_lsn, writer.away is not None)
            for writer in self._writers
            if not writer.needs_seed and writer.applied_lsn < end
        }

    def run(self) -> None:
        """Follow the log."""
        with ExitStack() as stack:
            self._tell_left()
            self._prepare(stack)
            stack.enter_context(self._beside(self._seed_all, "seeding"))
            stack.enter_context(self._beside(self._retry_all, "retrying"))
            stack.enter_context(self._beside(self._watch_sources, "watching"))
            query = stack.enter_context(self._following())
            while not self._stopping.wait(_LOOK_EVERY_S):
                try:
                    self._check(query)
                    for writer in self._writers:
                        writer.register(self._planned)
                except PenstockError as error:
                    # Now, for a seeding that is under way is waited for. What to do is told then.
                    _LOG.error("stopping", reason=error.problem)
                    raise

    def _tell_left(self) -> None:
        """Who holds the log back and is no longer declared: nobody else would look."""
        with suppress(LogError, OSError):  # what is wrong there is told when it is written to
            for each in left_consumers(self._config.aggregate, self._log):
                told = {"problem": each.problem, "remedy": each.remedy}
                _LOG.warning("log held back", aggregate=each.aggregate, **told)

    def _prepare(self, stack: ExitStack) -> None:
        # First of all: who seeds uses the session as soon as there is a thread for it.
        with_meaning(self._spark)
        for name, value in _SETTINGS.items():
            self._spark.conf.set(name, value)
        # Only large batches are shuffled.
        cores = self._spark.sparkContext.defaultParallelism
        self._spark.conf.set("spark.sql.shuffle.partitions", str(cores))
        self._bound, self._writers = _declared(self._config, self._log, self._stopping)
        # With many of them it takes a while.
        _LOG.info("checking expressions", aggregates=len(self._bound))
        require_computable(self._spark, self._bound, self._config.source.conninfo)
        self._bound = [by_minute(each, self._spark) for each in self._bound]
        for writer in self._writers:
            stack.enter_context(writer)
        _require_one(self._writers)
        # What is applied, or will be seeded, need not be summed. Should a position go back all the
        # same, as when a reset fails, the log is read again.
        end = self._start = self._log.end().lsn
        for number, writer in enumerate(self._writers):
            if writer.away:
                continue  # it comes in where it is
            begins = end if writer.needs_seed else writer.applied_lsn
            self._bound[number] = self._bound[number].after(begins)
            self._start = min(self._start, begins)

    @contextmanager
    def _beside(self, work: Callable[[], None], name: str) -> Iterator[None]:
        """In a thread of its own while the log is followed; its failure ends the job."""

        def run() -> None:
            try:
                work()
            except (_Stopped, Cancelled):
                pass
            except Exception as error:  # noqa: BLE001 - raised by `run`
                self._failure = error

        thread = threading.Thread(target=run, name=name, daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._stopping.set()
            thread.join()

    def _seed_all(self) -> None:
        """Those that need it, one after the other; also one of which a seeding was broken off
        meanwhile.
        """
        due = {writer.name: (0.0, Backoff()) for writer in self._writers}
        while not self._stopping.wait(_LOOK_EVERY_S):
            for writer in self._writers:
                at, backoff = due[writer.name]
                if not writer.needs_seed or time.monotonic() < at:
                    continue
                if not self._is_seeded(writer):
                    due[writer.name] = (time.monotonic() + backoff.pause_s(), backoff)

    def _retry_all(self) -> None:
        """What targets refused, although no batch comes. Beside all else: one that does not answer
        takes its time.
        """
        while not self._stopping.wait(_LOOK_EVERY_S):
            for writer in self._writers:
                if not self._stopping.is_set():
                    writer.retry()

    def _watch_sources(self) -> None:
        """What is wrong with the server itself is for capture to tell."""
        while not self._stopping.wait(_SOURCES_EVERY_S):
            with suppress(SourceError):
                read_sources(self._config)

    def _is_seeded(self, writer: Writer) -> bool:
        """Seed one; false: what is wrong may pass."""
        try:
            done = seed_if_due(
                self._config,
                writer.config,
                lambda: self._spark,
                self._stopping,
                on_rows=partial(self._tell_rows, writer.name),
                on_grouping=partial(_tell_grouping, writer.name),
            )
        except (_Stopped, Cancelled):
            raise  # the job ends: what was cancelled for it is nothing to try again
        except SeedingUnderWay:
            return True  # by `penstock reset`, whose business it is
        except Exception as error:
            if not may_pass(error):
                raise
            _LOG.warning("not seeded, trying again", aggregate=writer.name, reason=str(error))
            return False
        writer.needs_seed = False
        if done is not None:
            _LOG.info("seeded", aggregate=writer.name, at=str(done.lsn))
        return True

    def _tell_rows(self, aggregate: str, rows: int) -> None:
        if self._stopping.is_set():
            raise _Stopped
        _LOG.info("seeding", aggregate=aggregate, rows=rows)

    @contextmanager
    def _following(self) -> Iterator[StreamingQuery]:
        self._spark.dataSource.register(PenstockDeltas)
        self._reached = self._planned = self._start
        self._seen = self._log.locate(self._start)
        with scratch_folder() as scratch:
            start = str(self._start)
            query = (
                computed(
                    self._deltas(self._spark.readStream, self._bound, startingPosition=start),
                    self._bound,
                )
                .writeStream.foreachBatch(self._apply)
                .option("checkpointLocation", str(scratch / "checkpoint"))
                .options(**_ASYNC)
                .start()
            )
            try:
                yield query
            finally:
                self._stopping.set()
                with suppress(Exception):  # it may be gone with its JVM
                    query.stop()

    def _tell_following(self) -> None:
        """When the first batch is there, which is an empty one if nothing has come: Spark starts so
        much for it that it takes many seconds.
        """
        if not self._follows:
            self._follows = True
            _LOG.info("following", log=str(self._config.log.path), start=str(self._start))

    def _deltas(self, reader: Any, bound: Sequence[Bound], **options: str) -> DataFrame:
        wanted = WantedDeltas(tuple(each.summed for each in bound))
        frame: DataFrame = (
            reader.format("penstock-deltas")
            .options(path=str(self._config.log.path), wanted=as_option(wanted), **options)
            .option("batchRange", "true")
            .load()
        )
        return frame

    def _apply(self, frame: DataFrame, _batch_id: int) -> None:
        """Called by Spark for each micro-batch, one at a time."""
        reading = partial(late.reading, self._spark.sparkContext, self._reached)
        with self._kept():
            if self._is_small():
                with reading("to the end"):
                    summed = frame.toArrow()
                if len(summed) <= MOST_IN_DRIVER:
                    self._write(_Result(summed))
                    return
            # Its rows may be computed more than once, and must be the same.
            with reading("as planned"), self._result(frame, self._bound) as result:
                self._write(result)

    @contextmanager
    def _kept(self) -> Iterator[None]:
        """What goes wrong in a batch is raised by `run`; the query tells what Spark raised, and
        would tell all else as if it were Spark's too.
        """
        try:
            yield
        except OF_SPARK:
            raise
        except Exception as error:
            self._failure = error
            raise

    def _is_small(self) -> bool:
        """A batch of few shares is summed up where it is read; to plan more takes longer than it
        saves, and keeps a core busy for a second when it comes for the first time.

        By what has committed: a transaction of any size commits within a few bytes of WAL. Each
        aggregate may make a row of each of its changes, and all of them come to the driver.
        """
        waiting = 0
        few = _FEW_SHARES * SHARE_BYTES / len(self._writers)
        after = replace(self._seen, lsn=self._reached)
        for frames in self._log.headers(after, self._log.end()):
            complete = frames.fields["complete_lsn"]
            done = int((complete <= self._reached).sum())
            if done:
                lsn = Lsn(int(complete[done - 1]))
                self._seen = Position(lsn, frames.segment, int(frames.end[done - 1]))
            waiting += int(frames.fields["committed_bytes"][done:].sum())
            if waiting >= few:
                return False
        return True

    @contextmanager
    def _result(self, frame: DataFrame, bound: Sequence[Bound]) -> Iterator[_Result]:
        rows = grouped(frame, bound).persist()
        try:
            some = rows.limit(MOST_IN_DRIVER + 1).toArrow()
            if len(some) <= MOST_IN_DRIVER:
                yield _Result(some)
            else:
                yield _Result(rows.where(f.col(NOTE).isNotNull()).toArrow(), rows)
        finally:
            rows.unpersist()

    def _write(self, result: _Result) -> None:
        self._tell_following()
        batch = covered_by(result.here)
        covered = Covered(self._log_id, batch.after, batch.up_to)
        self._reached, self._planned = batch.up_to, batch.planned
        left = list(range(len(self._writers)))
        while left and not self._stopping.is_set():
            left = [number for number in left if not self._is_applied(number, result, covered)]
            if left and self._goes_on_without(left, covered.end):
                return
            if left:
                self._stopping.wait(_AWAY_LOOK_S)

    def _is_applied(self, number: int, result: _Result, covered: Covered) -> bool:
        """Whether one aggregate is done with a batch; not while its target is away or behind, or it
        is being seeded: it may be the last batch for long, if the log waits for the aggregate.
        """
        writer = self._writers[number]
        compute = partial(self._batch, result, number, number)
        summed_after = Lsn(self._bound[number].summed.applied_lsn)
        read_again = partial(self._read_again, number)
        applied = writer.apply(covered, compute, read_again, summed_after)
        if applied is not None and applied.changes and not self._has_applied:
            _LOG.info("first change applied", aggregate=writer.name)
            self._has_applied = True
        return applied is not None and applied.decision != "wait" and not writer.is_behind

    def _goes_on_without(self, left: Sequence[int], end: Lsn) -> bool:
        """Whether there is more to do, and not only for aggregates whose targets are away."""
        away = [number for number in left if not self._writers[number].needs_seed]
        return len(away) < len(self._writers) and self._log.end().lsn > end

    def _batch(self, result: _Result, number: int, place: int) -> Batch:
        """What a batch adds to one aggregate; from executors to its target, if it is large.

        `place`: which of those in the result it is.
        """
        bound = self._bound[number]
        batch = batch_of(result.here, bound, place)
        if result.on_executors is None:
            return batch
        ours = (f.col(AGGREGATE) == place) & f.col(NOTE).isNull()
        dsn = self._writers[number].dsn
        return replace(batch, staged=stage(result.on_executors.where(ours), bound, place, dsn))

    def _read_again(self, number: int, covered: Covered) -> tuple[Batch, Lsn]:
        """What a range adds to one aggregate, from the log; of a long one its beginning, and where
        that ends.
        """
        # Where storage is shared, who read the batch may have seen the end of the log before us.
        self._log.head_at(covered.end)
        after, up_to = self._log.locate(covered.start), self._log.locate(covered.end)
        end = limited(self._log, after, up_to, _AT_ONCE).lsn
        alone = [self._bound[number].after(covered.start)]
        frame = self._deltas(
            self._spark.read,
            alone,
            startingPosition=str(covered.start),
            endingPosition=str(end),
        )
        with self._result(computed(frame, alone), alone) as result:
            return self._batch(result, number, 0), end

    def _check(self, query: StreamingQuery) -> None:
        if self._failure is not None:
            raise self._failure
        # First, for one that fails has its error before it is no longer active.
        is_active = query.isActive
        if (error := query.exception()) is not None:
            raise original(error) or failed(error, places(self._bound)) from error
        if not is_active:
            raise QueryStopped(
                "the query was stopped by somebody who uses the same Spark session",
                remedy="Start the job again: it goes on where the targets are",
            )
