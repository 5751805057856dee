"""How Spark's tasks put their part of a large result into a target's database.

The connection string travels inside the pickled class, not among the options: those Spark shows in
its UI. Which parts count is decided when all tasks are done, and told in a file, for Spark asks a
process of its own.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import psycopg
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from penstock.errors import ConnectionLost
from penstock.pipelines.binding import Bound
from penstock.pipelines.grouping import batch_of, places
from penstock.pipelines.passing import passes
from penstock.pipelines.staging import Part, Staged, put
from penstock.postgres.connect import connect_unlimited, portable
from penstock.postgres.failures import translated
from penstock.scratch import scratch_folder
from penstock.sections import Dsn
from penstock.spark.errors import computing, said_once

_FORMAT = "penstock-staging"


@dataclass
class _Wrote(WriterCommitMessage):
    parts: tuple[Part, ...]


@dataclass
class _Writer(DataSourceArrowWriter):
    """Pickled to the executors."""

    # With the password in it.
    conninfo: str = field(repr=False)
    origin: str
    bound: Bound
    ordinal: int
    told: str

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        tables = (
            batch_of(pa.Table.from_batches([batch]), self.bound, self.ordinal).sums
            for batch in iterator
        )
        width = len(self.bound.config.dimensions)
        doing = "write to penstock.staged of the target"
        with (
            said_once(),
            connect_unlimited(Dsn(self.conninfo, self.origin)) as connection,
            translated(doing),
        ):
            try:
                return _Wrote(put(connection, self.bound.config.name, tables, width))
            except psycopg.Error as error:
                # As in the driver: a full disk or a deadlock passes, and it is tried again.
                if not passes(error):
                    raise
                raise ConnectionLost(
                    f"cannot {doing}: {type(error).__name__}", remedy="It is tried again by itself"
                ) from error

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        wrote = (each for each in messages if isinstance(each, _Wrote))
        parts = [asdict(part) for each in wrote for part in each.parts]
        Path(self.told).write_text(json.dumps(parts))


def stage(rows: DataFrame, bound: Bound, ordinal: int, dsn: Dsn) -> Staged:
    """One aggregate's rows; raises what went wrong in a task as it was raised there."""
    there = portable(dsn)
    conninfo, origin = str(there), there.origin

    class Staging(DataSource):
        @classmethod
        def name(cls) -> str:
            return _FORMAT

        def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:  # noqa: ARG002 - Spark's
            return _Writer(conninfo, origin, bound, ordinal, self.options["told"])

    rows.sparkSession.dataSource.register(Staging)
    with scratch_folder() as directory:
        told = directory / "parts"
        with computing(places([bound])):
            rows.write.format(_FORMAT).mode("append").option("told", str(told)).save()
        parts = json.loads(told.read_text())
    return Staged(
        tuple(Part(**part) for part in parts),
        tuple(bound.config.dimensions),
        tuple(bound.config.measures),
    )
