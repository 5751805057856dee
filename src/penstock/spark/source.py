"""`format("penstock")`: Spark's camelCase on the outside, our functions inside.

Spark makes the data source and its readers in Python processes of the driver, and pickles them to
the executors. So they hold nothing open and no state that matters: whatever is needed is looked up
in the log when it is needed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from penstock.changelog import consumers
from penstock.changelog.planning import Limit, limited, shares
from penstock.changelog.reader import LogReader, Position
from penstock.changelog.runs import Share, runs
from penstock.decode.changes import TableChanges, Wanted
from penstock.decode.json import JsonChanges, WantedTables
from penstock.errors import BadOption, SchemaMismatch
from penstock.spark.errors import said_once
from penstock.spark.offsets import from_offset, place, to_offset
from penstock.spark.options import SourceOptions
from penstock.spark.schema import schema_of, wanted_of

# How long Spark's question for news waits for an answer: Spark asks again at once.
_LONG_POLL_S = 1.0
# A range without commits is passed on so often: it only says that the log is complete up to there.
_EMPTY_RANGE_S = 5.0


class PenstockDataSource(DataSource):
    """Reads changes from a change log."""

    @classmethod
    def name(cls) -> str:
        return "penstock"

    def schema(self) -> StructType:
        # Everything that can be wrong is found here: an error at load() is clean, and one in
        # streamReader() is not.
        with said_once():
            options = SourceOptions.parse(self.options)
            return schema_of(LogReader(options.path), options)

    def reader(self, schema: StructType) -> DataSourceReader:
        with said_once():
            options = SourceOptions.parse(self.options)
            if options.consumer is not None:
                raise BadOption(
                    "a batch is read once and keeps nothing in the log: it has no 'consumer'",
                    remedy="Leave the option out, or use readStream",
                    option="consumer",
                )
            return PenstockReader(options, _decoding(options, schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        with said_once():
            options = SourceOptions.parse(self.options)
            if options.ending != "latest":
                raise BadOption(
                    "a stream has no end, and so no 'endingPosition'",
                    remedy="Leave the option out, or use read",
                    option="endingPosition",
                )
            return PenstockStreamReader(options, _decoding(options, schema))


@dataclass
class _Part(InputPartition):
    """What one task reads: all of it travels to the executor."""

    share: Share


@dataclass
class _Range(InputPartition):
    """A row that says which range a batch covers."""

    after: Position
    up_to: Position


class _Reading:
    """What batches and streams share: shares of a range, and their rows."""

    def __init__(self, options: SourceOptions, decoding: Wanted | WantedTables) -> None:
        self._options = options
        self._decoding = decoding

    def _log(self) -> LogReader:
        return LogReader(self._options.path)

    def _parts(self, log: LogReader, after: Position, up_to: Position) -> list[InputPartition]:
        parts: list[InputPartition] = [_Part(share) for share in shares(log, after, up_to)]
        if self._options.batch_range:
            parts.append(_Range(after, up_to))
        return parts

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        with said_once():
            decoder: TableChanges | JsonChanges = (
                TableChanges(self._decoding)
                if isinstance(self._decoding, Wanted)
                else JsonChanges(self._decoding)
            )
            if isinstance(partition, _Range):
                yield _range_row(decoder.schema, partition)
            elif isinstance(partition, _Part):
                for run in runs(self._log(), partition.share):
                    batch = decoder.batch(run)
                    if batch.num_rows:
                        yield batch


class PenstockReader(_Reading, DataSourceReader):
    """A batch between two positions."""

    def partitions(self) -> Sequence[InputPartition]:
        with said_once():
            log = self._log()
            after, up_to = place(log, self._options.starting), place(log, self._options.ending)
            if after.lsn > up_to.lsn:
                raise BadOption(
                    f"startingPosition {after.lsn} is behind endingPosition {up_to.lsn}",
                    remedy="Swap them, or leave one out: earliest and latest are the defaults",
                    option="startingPosition",
                )
            return self._parts(log, after, up_to)


class PenstockStreamReader(_Reading, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream. Offsets are positions of the log."""

    def __init__(self, options: SourceOptions, decoding: Wanted | WantedTables) -> None:
        super().__init__(options, decoding)
        self._has_begun = False
        self._until: Position | None = None
        self._passed_on_at = 0.0

    def initialOffset(self) -> dict[str, Any]:
        with said_once():
            log = self._log()
            start = place(log, self._options.starting)
            # Spark asks twice before the first batch: what it was told first must stay.
            if not self._has_begun:
                self._applied(log, start)
                self._has_begun = True
            return to_offset(log, start)

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxBytes(self._options.max_bytes)

    def prepareForTriggerAvailableNow(self) -> None:
        with said_once():
            self._until = self._log().end()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        with said_once():
            log = self._log()
            after = from_offset(log, start)
            end = self._until or self._news(log, after)
            if end.lsn <= after.lsn:
                return start
            if isinstance(limit, ReadAllAvailable):
                return to_offset(log, end)
            most = Limit(self._options.max_bytes, self._options.max_rows)
            return to_offset(log, limited(log, after, end, most))

    def _news(self, log: LogReader, after: Position) -> Position:
        """The end of the log, as soon as something has committed, or after a while."""
        deadline = time.monotonic() + _LONG_POLL_S
        while True:
            end = log.end()
            now = time.monotonic()
            if any(frame.header.commits for frame in log.frames(after, end)):
                self._passed_on_at = now
                return end
            if end.lsn > after.lsn and now - self._passed_on_at >= _EMPTY_RANGE_S:
                self._passed_on_at = now
                return end
            if now >= deadline:
                return after
            log.wait(end.lsn, deadline - now)

    def reportLatestOffset(self) -> dict[str, Any]:
        log = self._log()
        return to_offset(log, log.end())

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        with said_once():
            log = self._log()
            after, up_to = from_offset(log, start), from_offset(log, end)
            # Only in the first batch of a stream from `latest`, for which Spark asks twice.
            after = after if after.lsn <= up_to.lsn else up_to
            return self._parts(log, after, up_to)

    def commit(self, end: dict[str, Any]) -> None:
        with said_once():
            log = self._log()
            self._applied(log, from_offset(log, end))

    def _applied(self, log: LogReader, position: Position) -> None:
        if self._options.consumer is not None:
            log_id = str(log.identity.log_id)
            consumers.register(log.storage, self._options.consumer, log_id, position.lsn)


def _decoding(options: SourceOptions, schema: StructType) -> Wanted | WantedTables:
    log = LogReader(options.path)
    expected = schema_of(log, options)
    if options.table is None:
        return WantedTables(
            options.tables,
            options.on_truncate,
            "null" if options.on_unrepresentable == "null" else "error",
            options.prefix,
        )
    if schema != expected:
        raise SchemaMismatch(
            f"the schema is not that of {options.table} in the log",
            remedy=(
                "Give no schema, or choose among its columns with the option columns: "
                f"{expected.simpleString()}"
            ),
        )
    return wanted_of(log, options, options.table)


def _range_row(schema: pa.Schema, covered: _Range) -> pa.RecordBatch:
    """NULL in all columns but those that say what it is."""
    prefix = schema.names[-1].removesuffix("absent")
    values: Mapping[str, Any] = {
        f"{prefix}change_type": "batch_range",
        f"{prefix}commit_version": int(covered.up_to.lsn),
        f"{prefix}seq": int(covered.after.lsn),
        f"{prefix}xid": 0,
        f"{prefix}unchanged": [],
        f"{prefix}absent": [],
    }
    columns = [pa.array([values.get(field.name)], field.type) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
