"""How Spark reads the log, whatever it makes of it: shares of a range, batches and streams.

Spark makes readers in Python processes of the driver, and pickles them to the executors. So they
hold nothing open and no state that matters: whatever is needed is looked up in the log when it is
needed.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import pyarrow as pa
from pyspark.sql.datasource import (
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

from penstock.changelog import consumers
from penstock.changelog.planning import Limit, limited, shares
from penstock.changelog.reader import LogReader, Position
from penstock.changelog.runs import Run, Share, runs
from penstock.decode.changes import TableChanges, Wanted
from penstock.decode.deltas import Deltas, WantedDeltas
from penstock.decode.json import JsonChanges, WantedTables
from penstock.errors import BadOption
from penstock.lsn import Lsn
from penstock.spark.errors import said_once
from penstock.spark.offsets import from_offset, place, to_offset
from penstock.spark.options import SourceOptions

# How long Spark's question for news waits for an answer: Spark asks again at once.
_LONG_POLL_S = 1.0
# A range without commits is passed on so often: it only says that the log is complete up to there.
_EMPTY_RANGE_S = 5.0

# What to make of the log: it is pickled to the executors.
Decoding: TypeAlias = Wanted | WantedTables | WantedDeltas


class Decoder(Protocol):
    """From runs to rows."""

    def batches(self, runs: Iterable[Run]) -> Iterator[pa.RecordBatch]: ...

    def range_row(self, after: Lsn, up_to: Lsn) -> pa.RecordBatch:
        """One row that says which range a batch covers."""


def _decoder(decoding: Decoding) -> Decoder:
    match decoding:
        case Wanted():
            return TableChanges(decoding)
        case WantedTables():
            return JsonChanges(decoding)
        case WantedDeltas():
            return Deltas(decoding)


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

    def __init__(self, options: SourceOptions, decoding: Decoding) -> None:
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
            decoder = _decoder(self._decoding)
            if isinstance(partition, _Range):
                yield decoder.range_row(partition.after.lsn, partition.up_to.lsn)
            elif isinstance(partition, _Part):
                yield from decoder.batches(runs(self._log(), partition.share))


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

    def __init__(self, options: SourceOptions, decoding: Decoding) -> None:
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
