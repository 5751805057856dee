"""The Spark job: follows the log for all declared aggregates and applies what it finds.

One query reads the log once for all of them; each has its own position, in its target. The position
is the truth: each start begins at the one furthest behind, with a checkpoint that is thrown away.
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import structlog
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from penstock.changelog.planning import SHARE_BYTES
from penstock.changelog.reader import LogReader
from penstock.config import Config
from penstock.decode.deltas import WantedDeltas
from penstock.errors import LogRetired, NotSeeded, PenstockError
from penstock.lsn import Lsn
from penstock.pipelines.applying import Batch
from penstock.pipelines.binding import Bound, bind, types_of
from penstock.pipelines.deciding import Covered
from penstock.pipelines.expressions_checked import check_expressions
from penstock.pipelines.grouping import batches, computed, covered_by, grouped
from penstock.pipelines.seeding import seed
from penstock.pipelines.writing import Writer
from penstock.postgres.connect import connect
from penstock.postgres.tables import read_tables
from penstock.spark.deltas import PenstockDeltas, as_option
from penstock.spark.errors import original
from penstock.spark.session import SparkFailed

_LOG = structlog.get_logger()
# What holds for the job whatever the session was made for: a date is a date of UTC unless the
# expression says otherwise, and what overflows is an error.
_SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.streaming.pollingDelay": "20ms",
}
# Progress in Spark's checkpoint costs more than the batch; ours is in the target.
_ASYNC = {
    "asyncProgressTrackingEnabled": "true",
    "asyncProgressTrackingCheckpointIntervalMs": "1000",
    "_asyncProgressTrackingOverrideSinkSupportCheck": "true",
}
_LOOK_EVERY_S = 0.5


class Job:
    """Runs until it is stopped or something is wrong that will not pass."""

    def __init__(self, config: Config, spark: SparkSession) -> None:
        if not config.aggregate:
            raise NotSeeded(
                "no aggregate is declared", remedy="Add an [[aggregate]] to the configuration"
            )
        self._config = config
        self._spark = spark
        self._log = LogReader(config.log.path)
        self._log_id = str(self._log.identity.log_id)
        self._stopping = threading.Event()
        self._failure: PenstockError | None = None
        self._writers: list[Writer] = []
        self._bound: list[Bound] = []
        # The end of the last batch.
        self._reached = Lsn(0)

    def stop(self) -> None:
        self._stopping.set()

    def run(self) -> None:
        """Follow the log."""
        with ExitStack() as stack:
            self._prepare(stack)
            stack.enter_context(self._seeding())
            query = stack.enter_context(self._following())
            while not self._stopping.wait(_LOOK_EVERY_S):
                self._check(query)

    def _prepare(self, stack: ExitStack) -> None:
        for name, value in _SETTINGS.items():
            self._spark.conf.set(name, value)
        known_up_to = self._log.end().lsn
        tables = [source.table for each in self._config.aggregate for source in each.sources]
        with connect(self._config.source.conninfo) as source:
            facts = read_tables(source, tables)
        self._bound = [bind(each, types_of(facts), known_up_to) for each in self._config.aggregate]
        check_expressions(self._spark, self._bound)
        for bound in self._bound:
            writer = Writer(
                bound.config,
                bound.config.conninfo(self._config.source.conninfo),
                facts,
                self._log,
                self._stopping,
            )
            self._writers.append(stack.enter_context(writer))
        # Positions of targets only go up, so that nothing is left out that a later batch needs.
        pairs = zip(self._bound, self._writers, strict=True)
        self._bound = [bound.after(writer.applied_lsn) for bound, writer in pairs]

    @contextmanager
    def _seeding(self) -> Iterator[None]:
        """Those that need it, one after the other, while the rest is followed."""

        def seed_all() -> None:
            try:
                for writer in self._writers:
                    if writer.needs_seed and not self._stopping.is_set():
                        _LOG.info("seeding", aggregate=writer.name)
                        done = seed(self._config, writer.config, lambda: self._spark)
                        _LOG.info("seeded", aggregate=writer.name, at=str(done.lsn))
            except PenstockError as error:
                self._failure = error
                self._stopping.set()

        thread = threading.Thread(target=seed_all, name="seeding", daemon=True)
        thread.start()
        try:
            yield
        finally:
            thread.join()

    @contextmanager
    def _following(self) -> Iterator[StreamingQuery]:
        self._spark.dataSource.register(PenstockDeltas)
        for writer in self._writers:
            self._check_held(writer)
        start = self._reached = min(writer.applied_lsn for writer in self._writers)
        _LOG.info("following", log=str(self._config.log.path), start=str(start))
        with tempfile.TemporaryDirectory(prefix="penstock-", ignore_cleanup_errors=True) as scratch:
            query = (
                computed(
                    self._deltas(self._spark.readStream, startingPosition=str(start)), self._bound
                )
                .writeStream.foreachBatch(self._apply)
                .option("checkpointLocation", str(Path(scratch) / "checkpoint"))
                .options(**_ASYNC)
                .start()
            )
            try:
                yield query
            finally:
                self._stopping.set()
                with suppress(Exception):  # it may be gone with its JVM
                    query.stop()

    def _check_held(self, writer: Writer) -> None:
        try:
            self._log.locate(writer.applied_lsn)
        except LogRetired:
            raise NotSeeded(
                f"the log no longer holds what comes after {writer.applied_lsn}, where aggregate "
                f"{writer.name} is",
                remedy=f"Run: penstock reset {writer.name}",
                aggregate=writer.name,
            ) from None

    def _deltas(self, reader: Any, **options: str) -> DataFrame:
        wanted = WantedDeltas(tuple(bound.summed for bound in self._bound))
        frame: DataFrame = (
            reader.format("penstock-deltas")
            .options(path=str(self._config.log.path), wanted=as_option(wanted), **options)
            .option("batchRange", "true")
            .load()
        )
        return frame

    def _apply(self, frame: DataFrame, _batch_id: int) -> None:
        """Called by Spark for each micro-batch, one at a time."""
        try:
            # A small batch is summed up where it is read; to plan more takes longer than it saves.
            is_small = self._log.end().lsn - self._reached < SHARE_BYTES
            result = (frame if is_small else grouped(frame, self._bound)).toArrow()
            covered = Covered(self._log_id, *covered_by(result))
            self._reached = covered.end
            found = batches(result, self._bound)
            for number, (writer, batch) in enumerate(zip(self._writers, found, strict=True)):
                writer.apply(covered, batch, partial(self._read_again, number))
        except PenstockError as error:
            self._failure = error
            raise

    def _read_again(self, number: int, covered: Covered) -> Batch:
        """What a range adds to one aggregate, from the log."""
        frame = self._deltas(
            self._spark.read, startingPosition=str(covered.start), endingPosition=str(covered.end)
        )
        rows = grouped(computed(frame, self._bound), self._bound)
        return batches(rows.toArrow(), self._bound)[number]

    def _check(self, query: StreamingQuery) -> None:
        if self._failure is not None:
            raise self._failure
        if (error := query.exception()) is not None:
            raise original(error) or SparkFailed("the query failed", str(error)) from error
