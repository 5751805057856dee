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

import psycopg
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
from penstock.decode.stops import Stop, StopCode
from penstock.errors import (
    LogError,
    LogRetired,
    NotSeeded,
    PenstockError,
    PipelineFenced,
    ProgressGap,
    QueryStopped,
    SchemaMismatch,
    SeedingUnderWay,
    SourceError,
)
from penstock.lsn import Lsn
from penstock.pipelines.alias_changes import alias_stop
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
from penstock.pipelines.partition_fixes import fix_filled_partitions
from penstock.pipelines.passing import may_pass
from penstock.pipelines.seeding import seed_if_due
from penstock.pipelines.source_marks import marks_stop
from penstock.pipelines.sources import Sources, Unfit, read_sources
from penstock.pipelines.spark_staging import stage
from penstock.pipelines.staging import MOST_IN_DRIVER
from penstock.pipelines.target_tables import unusable
from penstock.pipelines.watch_report import WatchReport
from penstock.pipelines.writing import Noted, Writer
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
# An aggregate in trouble is looked at again after so long, and then less often: to take it in, the
# query of the others begins anew.
_TRY_FIRST_S = 5.0
_TRY_LATEST_S = 300.0
_SOURCE_AWAY_S = 1.0
# Of an aggregate that is not followed.
_TELL_EVERY_S = 600.0
_NOT_FOLLOWED = "aggregate not followed"
_STOPPED = "aggregate stopped"
# What one aggregate missed is read so much at a time, for the others wait meanwhile.
_AT_ONCE = Limit(256 * 2**20)


def _concerns_all(error: PenstockError) -> bool:
    """Another job has the aggregates, or the log cannot be read. After a gap the job begins anew
    where the targets are.
    """
    of_all = isinstance(error, PipelineFenced | ProgressGap | LogError)
    return of_all and not isinstance(error, LogRetired)


class _Stopped(Exception):
    """The job ends while an aggregate is being seeded."""


class _Retyped(Exception):
    """A column has another type in the log. Perhaps nothing is lost: the catalog knows."""

    def __init__(self, stop: Stop) -> None:
        super().__init__(stop)
        self.stop = stop


@dataclass(frozen=True, slots=True)
class _Result:
    """What a batch adds to all aggregates."""

    # All of it, or its notes only.
    here: pa.Table
    # Where the rest is, if it is large.
    on_executors: DataFrame | None = None


@dataclass(frozen=True, slots=True)
class _Followed:
    """An aggregate whose sums the query computes. Its number there is its place in the list."""

    writer: Writer
    bound: Bound


def require_ready(config: Config) -> None:
    """Raises what keeps every aggregate from being followed, as far as databases and the log tell:
    before Spark is started, which takes all cores for many seconds.

    Not while one waits for a reset, or will because its sources lost changes: the job waits too.
    """
    log = LogReader(config.log.path)
    sources = _sources(config, log)
    troubles = [_trouble(writer, sources) for writer in _writers(config, log, threading.Event())]
    for error in troubles:
        if error is not None and None not in troubles:
            raise error


def _sources(config: Config, log: LogReader) -> Sources:
    """Read the catalog, and before it the position up to which the log may have other types."""
    known_up_to = log.end().lsn
    return replace(read_sources(config), known_up_to=known_up_to)


def _trouble(writer: Writer, sources: Sources) -> Exception | None:
    """Why an aggregate cannot be followed; None: it can, or it waits for a reset, or will."""
    try:
        writer.tables = sources.tables
        has_begun = writer.has_begun()
        if writer.stop is not None:
            return None
        if (unfit := sources.unfit.get(writer.name)) is not None:
            return None if has_begun else unfit.error
        bind(writer.config, types_of(sources.tables), sources.known_up_to)
        writer.check()
    except PenstockError as error:
        if _concerns_all(error):
            raise
        return error
    return _of_target(writer)


def _of_target(writer: Writer) -> Exception | None:
    """Why a target is away."""
    if isinstance(writer.away, psycopg.Error):
        return unusable(writer.name, writer.away)
    return writer.away


def _writers(config: Config, log: LogReader, stopping: threading.Event) -> list[Writer]:
    if not config.aggregate:
        raise NotSeeded(
            "no aggregate is declared", remedy="Add an [[aggregate]] to the configuration"
        )
    default = config.source.conninfo
    return [Writer(each, each.conninfo(default), {}, log, stopping) for each in config.aggregate]


def _tell_grouping(aggregate: str, at: Grouping) -> None:
    facts = {"table": str(at.table), "about_rows": at.about_rows, "for_s": round(at.for_s)}
    _LOG.info("seeding", aggregate=aggregate, **facts)


class Job:
    """Runs until it is stopped or something is wrong that concerns all aggregates.

    What is wrong with one aggregate is its own (M5.8): it stops, and the others go on. It comes
    back after a reset, or when what was wrong is corrected: then the query begins again with it.
    """

    def __init__(self, config: Config, spark: SparkSession) -> None:
        self._config = config
        self._spark = spark
        # Spark gives a query's batches a session of their own, and looks for data sources there.
        self._batch_spark = spark
        self._log = LogReader(config.log.path)
        self._log_id = str(self._log.identity.log_id)
        self._stopping = threading.Event()
        self._failure: Exception | None = None
        self._writers: list[Writer] = []
        # Of all aggregates that the query sums up.
        self._followed: list[_Followed] = []
        # By aggregate, as it was last found to be computable.
        self._bound: dict[str, Bound] = {}
        # The aggregates that stopped since the query was planned. One that comes back may have
        # other tables than the query asks for.
        self._left: set[str] = set()
        # Set when an aggregate may come back, or the query asks for types that were.
        self._again = threading.Event()
        # While it is planned what is followed, nobody compares that with the sources.
        self._planning = threading.RLock()
        # When to look again at an aggregate that is in trouble.
        self._retries: dict[str, tuple[float, Backoff]] = {}
        # By aggregate and event: which stop or trouble was logged, and when it is logged again.
        self._logged: dict[tuple[str, str], tuple[str, float]] = {}
        # Of the query: a batch of an earlier one is nothing to apply.
        self._round = 0
        # Its first batch is there. One that is stopped before has Spark start its processes for
        # nothing, and log that they failed.
        self._has_batch = threading.Event()
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

        One that is still to be seeded is not among them: its snapshot may be beyond the log. Nor is
        one that has stopped, or is in trouble.
        """
        if not self._follows and (not self._writers or any(w.follows for w in self._writers)):
            return None
        end = self._log.end().lsn
        return {
            writer.name: Behind(writer.applied_lsn, writer.away is not None)
            for writer in self._writers
            if writer.follows and not writer.needs_seed and writer.applied_lsn < end
        }

    def run(self) -> None:
        """Follow the log."""
        with ExitStack() as stack:
            self._tell_left()
            self._prepare(stack)
            self._plan(_sources(self._config, self._log))
            self._look_at_sources()
            stack.enter_context(self._beside(self._seed_all, "seeding"))
            stack.enter_context(self._beside(self._retry_all, "retrying"))
            stack.enter_context(self._beside(self._watch_sources, "watching"))
            while not self._stopping.is_set():
                self._follow()
                if not self._stopping.is_set():
                    self._plan_again()

    def _follow(self) -> None:
        """With those that can be followed, until one comes back."""
        with ExitStack() as stack:
            query = stack.enter_context(self._following()) if self._followed else None
            while not (self._stopping.wait(_LOOK_EVERY_S) or self._is_over(query)):
                try:
                    self._check(query)
                    for each in self._followed:
                        with self._its_own(each.writer):
                            each.writer.register(self._planned)
                except PenstockError as error:
                    # Now, for a seeding that is under way is waited for. What to do is told then.
                    _LOG.error("stopping", reason=error.problem)
                    raise

    def _is_over(self, query: StreamingQuery | None) -> bool:
        """Whether the query is to begin again with others."""
        return self._again.is_set() and (query is None or self._has_batch.is_set())

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
        self._writers = _writers(self._config, self._log, self._stopping)
        for writer in self._writers:
            stack.callback(writer.close)
        # With many of them it takes a while.
        _LOG.info("checking expressions", aggregates=len(self._writers))

    def _plan(self, sources: Sources) -> None:
        """Which aggregates are followed, and from where on."""
        found = [
            _Followed(writer, bound)
            for writer in self._writers
            if (bound := self._ready(writer, sources)) is not None
        ]
        self._require_some()
        self._begin_with(found)

    def _begin_with(self, found: Sequence[_Followed]) -> None:
        # What is applied, or will be seeded, need not be summed. Should a position go back all the
        # same, as when a reset fails, the log is read again.
        end = self._start = self._log.end().lsn
        self._followed = []
        for each in found:
            writer = each.writer
            begins = end if writer.needs_seed else writer.applied_lsn
            if not writer.away:  # else it comes in where it is
                each = _Followed(writer, each.bound.after(begins))
            self._followed.append(each)
            # Nor do others wait for one that comes back and is far behind.
            if not (writer.away or writer.is_behind):
                self._start = min(self._start, begins)
        if not self._followed:
            _LOG.warning("waiting for a reset", aggregates=[each.name for each in self._writers])

    def _plan_again(self) -> None:
        while not self._stopping.is_set():
            try:
                with self._planning:
                    self._again.clear()
                    # Not those that come back while the catalog is read.
                    back = {each.name for each in self._writers if each.follows}
                    sources = _sources(self._config, self._log)
                    self._left -= back
                    self._plan(sources)
                    self._look_at_sources()
            except SourceError as error:
                if not may_pass(error):
                    self._keep_plan(error)
                    return
                self._stopping.wait(_SOURCE_AWAY_S)
            else:
                return

    def _keep_plan(self, error: SourceError) -> None:
        """Go on with the aggregates of the last plan; the others wait for a look that succeeds."""
        _LOG.error(
            "the source's tables cannot be looked at",
            reason=error.problem,
            remedy=error.remedy,
            meanwhile="an aggregate that was reset or corrected is not followed",
        )
        self._begin_with([each for each in self._followed if self._is_current(each.writer)])

    def _is_current(self, writer: Writer) -> bool:
        """Return whether the query may be applied to an aggregate."""
        # In this order: one that comes back is among those that left before it follows.
        return writer.follows and writer.name not in self._left

    def _ready(self, writer: Writer, sources: Sources) -> Bound | None:
        """What is asked of the log for an aggregate; None: it has stopped or is in trouble."""
        writer.trouble = None
        writer.tables = sources.tables
        bound = None
        with self._its_own(writer):
            has_begun = writer.has_begun()
            unfit = sources.unfit.get(writer.name)
            if unfit is not None and not self._has_stopped(writer):
                self._refuse(writer, unfit)
            elif has_begun:
                writer.claim()
            if self._has_stopped(writer) or writer.trouble is not None:
                return None
            bound = self._computable(self._bind(writer, sources))
            writer.claim()
        return bound if writer.follows else None

    def _bind(self, writer: Writer, sources: Sources) -> Bound:
        bound = bind(writer.config, types_of(sources.tables), sources.known_up_to)
        # wal2json sends no oids: the log has others. A replaced table is seen in the catalog then.
        return bound.of_tables(sources.tables) if self._config.source.publishes else bound

    def _computable(self, bound: Bound) -> Bound:
        """Raises what Spark refuses, unless it has looked at the same before."""
        name = bound.config.name
        known = self._bound.get(name)
        if known is None or known.given != bound.given:
            require_computable(self._spark, [bound], self._config.source.conninfo)
            self._bound[name] = bound
        return by_minute(bound, self._spark)

    def _refuse(self, writer: Writer, unfit: Unfit) -> None:
        """Changes of its sources do not reach the log: one that has begun needs a reset."""
        if writer.away or writer.has_begun():
            writer.stop_for(unfit.stop)
        if writer.stop is not None:
            self._tell_stop(writer, unfit.error)
        else:
            self._fails(writer, unfit.error)

    @contextmanager
    def _its_own(self, writer: Writer) -> Iterator[None]:
        """What goes wrong with one aggregate alone does not stop the others."""
        try:
            yield
        except PenstockError as error:
            if _concerns_all(error):
                raise
            self._fails(writer, error)

    def _fails(self, writer: Writer, error: PenstockError) -> None:
        """It is looked at again after a while, which grows."""
        _, backoff = self._retries.get(writer.name, (0.0, Backoff(_TRY_FIRST_S, _TRY_LATEST_S)))
        # First, because the thread that retries reads it as soon as it sees the trouble.
        self._retries[writer.name] = (time.monotonic() + backoff.pause_s(), backoff)
        writer.fail(error)
        self._tell(writer, _NOT_FOLLOWED, error, error.problem)

    def _has_stopped(self, writer: Writer) -> bool:
        """Whether it waits for a reset, which is logged."""
        if writer.stop is not None:
            self._tell_stop(writer)
        return writer.stop is not None

    def _tell_stop(self, writer: Writer, error: PenstockError | None = None) -> None:
        """`error`: what it was found by, which says more than the code that is kept."""
        assert writer.stop is not None  # noqa: S101 - told only then
        error = error or writer.stop.error(writer.name)
        self._tell(writer, _STOPPED, error, writer.stop.code)

    def _tell(self, writer: Writer, event: str, error: PenstockError, reason: str) -> None:
        """Once, and again from time to time while the reason lasts."""
        now = time.monotonic()
        before, due = self._logged.get((writer.name, event), ("", 0.0))
        if reason != before or now >= due:
            self._logged[writer.name, event] = (reason, now + _TELL_EVERY_S)
            since = {"since": writer.stopped_since} if writer.stopped_since else {}
            told = {"problem": error.problem, "remedy": error.remedy, **since}
            _LOG.error(event, aggregate=writer.name, **told)

    def _require_some(self) -> None:
        """Raises what is wrong if no aggregate can be followed, and none waits for a reset."""
        troubles = [writer.trouble or _of_target(writer) for writer in self._writers]
        if all(troubles) and not any(writer.stop for writer in self._writers):
            raise next(error for error in troubles if error is not None)

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
                if not writer.needs_seed or writer.trouble or time.monotonic() < at:
                    continue
                with self._its_own(writer):
                    if not self._is_seeded(writer):
                        due[writer.name] = (time.monotonic() + backoff.pause_s(), backoff)

    def _retry_all(self) -> None:
        """What targets refused, although no batch comes. Beside all else: one that does not answer
        takes its time.
        """
        while not self._stopping.wait(_LOOK_EVERY_S):
            for writer in self._writers:
                if not self._stopping.is_set():
                    with self._its_own(writer):
                        self._look_at(writer)
            if not any(writer.follows or writer.stop for writer in self._writers):
                self._require_some()

    def _look_at(self, writer: Writer) -> None:
        if writer.stop is not None:
            self._left.add(writer.name)
            if writer.is_back():
                _LOG.info("aggregate goes on after a reset", aggregate=writer.name)
                for event in (_NOT_FOLLOWED, _STOPPED):
                    self._logged.pop((writer.name, event), None)
                self._again.set()
            else:
                self._has_stopped(writer)
        elif writer.trouble is not None:
            at, _ = self._retries[writer.name]
            if time.monotonic() >= at and self._is_well(writer):
                self._again.set()
        else:
            writer.retry()

    def _is_well(self, writer: Writer) -> bool:
        """Whether one that was in trouble can be followed, as far as can be seen from here."""
        try:
            found = _trouble(writer, _sources(self._config, self._log))
        except SourceError:
            return False
        if isinstance(found, PenstockError):
            self._fails(writer, found)
        return found is None

    def _watch_sources(self) -> None:
        """Look every half minute; what keeps us from it is reported, and ends nothing."""
        report = WatchReport()
        while not self._stopping.wait(_SOURCES_EVERY_S):
            with report.of_a_look():
                self._look_at_sources()

    def _look_at_sources(self) -> None:
        """Stop the aggregates whose sources lost changes, or hold others than were counted."""
        with self._planning:
            self._compare_sources()

    def _compare_sources(self) -> None:
        noted: dict[str, Noted | None] = {}
        for writer in self._writers:
            if writer.follows and not writer.away:
                with self._its_own(writer):
                    noted[writer.name] = writer.noted()
        # Not before: a seeding that ends in between knows the sources better than we do.
        sources = _sources(self._config, self._log)
        for writer in self._writers:
            if writer.follows:
                with self._its_own(writer):
                    self._judge(writer, sources, noted.get(writer.name))
        if self._config.source.fix_new_partitions:
            aggregates = self._config.aggregate
            fix_filled_partitions(self._config.source, aggregates, sources.tables, self._is_settled)
        is_back = any(each.follows and each.name in self._left for each in self._writers)
        if is_back or any(
            each.writer.follows and self._is_outdated(each, sources) for each in self._followed
        ):
            self._again.set()

    def _is_settled(self, aggregate: str) -> bool:
        settled = False
        for writer in self._writers:
            if writer.name == aggregate:
                with self._its_own(writer):
                    settled = writer.is_settled()
        return settled

    def _judge(self, writer: Writer, sources: Sources, before: Noted | None) -> None:
        unfit, marks = sources.unfit.get(writer.name), sources.marks[writer.name]
        if unfit is not None:
            self._refuse(writer, unfit)
        elif before is not None and before.marks != marks:
            stop = None
            if before.marks is not None:
                stop = marks_stop(before.marks, marks) or alias_stop(
                    writer.config, before.marks, marks, sources.tables
                )
            if stop is None:
                writer.note_marks(before, marks)
            else:
                writer.stop_for(stop, before)
                self._has_stopped(writer)

    def _is_outdated(self, each: _Followed, sources: Sources) -> bool:
        """Whether the query asks the log for other tables or types than there are now."""
        try:
            now = self._bind(each.writer, sources)
        except SchemaMismatch:
            return False  # the stream tells what is gone
        oids = [source.oid for source in now.summed.sources]
        is_same = oids == [source.oid for source in each.bound.summed.sources]
        return not is_same or now.given != each.bound.given

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
        self._round += 1
        this_round = self._round
        self._has_batch.clear()
        bound = [each.bound for each in self._followed]

        def apply(frame: DataFrame, batch_id: int) -> None:
            if self._round == this_round:
                self._apply(frame, batch_id)

        with scratch_folder() as scratch:
            start = str(self._start)
            query = (
                computed(self._deltas(self._spark.readStream, bound, startingPosition=start), bound)
                .writeStream.foreachBatch(apply)
                .option("checkpointLocation", str(scratch / "checkpoint"))
                .options(**_ASYNC)
                .start()
            )
            try:
                yield query
            finally:
                # A batch that waits for a target is not waited for; what it had is read again.
                self._round += 1
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
        self._batch_spark = frame.sparkSession
        reading = partial(late.reading, self._spark.sparkContext, self._reached)
        with self._kept():
            if self._is_small():
                with reading("to the end"):
                    summed = frame.toArrow()
                if len(summed) <= MOST_IN_DRIVER:
                    self._write(_Result(summed))
                    return
            # Its rows may be computed more than once, and must be the same.
            bound = [each.bound for each in self._followed]
            with reading("as planned"), self._result(frame, bound) as result:
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
        few = _FEW_SHARES * SHARE_BYTES / len(self._followed)
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
        self._has_batch.set()
        self._tell_following()
        batch = covered_by(result.here)
        covered = Covered(self._log_id, batch.after, batch.up_to)
        self._reached, self._planned = batch.up_to, batch.planned
        this_round = self._round
        left = list(range(len(self._followed)))
        while left and not self._stopping.is_set() and self._round == this_round:
            left = [number for number in left if not self._is_applied(number, result, covered)]
            if left and self._goes_on_without(left, covered.end):
                return
            if left:
                self._stopping.wait(_AWAY_LOOK_S)

    def _is_applied(self, number: int, result: _Result, covered: Covered) -> bool:
        """Whether one aggregate is done with a batch; not while its target is away or behind, or it
        is being seeded: it may be the last batch for long, if the log waits for the aggregate.
        """
        writer, bound = self._followed[number].writer, self._followed[number].bound
        applied = None
        if self._is_current(writer):
            compute = partial(self._batch, result, number, number)
            read_again = partial(self._read_again, number)
            summed_after = Lsn(bound.summed.applied_lsn)
            try:
                with self._its_own(writer):
                    applied = writer.apply(covered, compute, read_again, summed_after)
            except _Retyped as found:
                self._settle(writer, found.stop)
        if self._has_stopped(writer) or not self._is_current(writer):
            return True
        if applied is not None and applied.changes and not self._has_applied:
            _LOG.info("first change applied", aggregate=writer.name)
            self._has_applied = True
        return applied is not None and applied.decision != "wait" and not writer.is_behind

    def _settle(self, writer: Writer, stop: Stop) -> None:
        """Decide about a column of another type: if nothing was rewritten, a new query reads it."""
        try:
            if not self._again.is_set():
                self._look_at_sources()
        except SourceError:
            self._stopping.wait(_SOURCE_AWAY_S)  # nobody can say
        else:
            if writer.follows and not self._again.is_set():
                writer.stop_for(stop)

    def _goes_on_without(self, left: Sequence[int], end: Lsn) -> bool:
        """Whether there is more to do, and not only for aggregates whose targets are away."""
        writers = [each.writer for each in self._followed]
        away = [number for number in left if not writers[number].needs_seed]
        following = [writer for writer in writers if writer.follows]
        return len(away) < len(following) and self._log.end().lsn > end

    def _batch(self, result: _Result, number: int, place: int) -> Batch:
        """What a batch adds to one aggregate; from executors to its target, if it is large.

        `place`: which of those in the result it is.
        """
        bound = self._followed[number].bound
        batch = batch_of(result.here, bound, place)
        if batch.stop is not None and batch.stop.code is StopCode.COLUMN_RETYPED:
            raise _Retyped(batch.stop)
        if result.on_executors is None or batch.stop is not None:
            return batch
        ours = (f.col(AGGREGATE) == place) & f.col(NOTE).isNull()
        dsn = self._followed[number].writer.dsn
        return replace(batch, staged=stage(result.on_executors.where(ours), bound, place, dsn))

    def _read_again(self, number: int, covered: Covered) -> tuple[Batch, Lsn]:
        """What a range adds to one aggregate, from the log; of a long one its beginning, and where
        that ends.
        """
        # Where storage is shared, who read the batch may have seen the end of the log before us.
        self._log.head_at(covered.end)
        after, up_to = self._log.locate(covered.start), self._log.locate(covered.end)
        end = limited(self._log, after, up_to, _AT_ONCE).lsn
        alone = [self._followed[number].bound.after(covered.start)]
        frame = self._deltas(
            self._batch_spark.read,
            alone,
            startingPosition=str(covered.start),
            endingPosition=str(end),
        )
        with self._result(computed(frame, alone), alone) as result:
            return self._batch(result, number, 0), end

    def _check(self, query: StreamingQuery | None) -> None:
        if self._failure is not None:
            raise self._failure
        if query is None:
            return
        # First, for one that fails has its error before it is no longer active.
        is_active = query.isActive
        if (error := query.exception()) is not None:
            raise original(error) or failed(
                error, places([each.bound for each in self._followed])
            ) from error
        if not is_active:
            raise QueryStopped(
                "the query was stopped by somebody who uses the same Spark session",
                remedy="Start the job again: it goes on where the targets are",
            )
