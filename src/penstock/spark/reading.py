"""How Spark reads the log, whatever it makes of it: shares of a range, batches and streams.

Spark makes readers in Python processes of the driver, and pickles them to the executors. So they
hold nothing open and no state that matters: whatever is needed is looked up in the log when it is
needed.
"""

from __future__ import annotations

import gc
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
from penstock.changelog.runs import BatchRange, Run, Share, runs
from penstock.decode.changes import TableChanges, Wanted
from penstock.decode.deltas import Deltas, WantedDeltas
from penstock.decode.json import JsonChanges, WantedTables
from penstock.decode.memory import keep_freed_memory
from penstock.errors import BadOption
from penstock.lsn import Lsn
from penstock.spark.errors import said_once
from penstock.spark.offsets import (
    beginning,
    from_offset,
    initial_offset,
    place,
    range_of,
    to_offset,
)
from penstock.spark.options import SourceOptions

# How long Spark's question for news waits for an answer: Spark asks again at once.
_LONG_POLL_S = 1.0
# A range without commits is passed on so often: it only says that the log is complete up to there.
_EMPTY_RANGE_S = 5.0
# So many bytes of commits come between two questions where much is written, or after a stop. Then
# batches are so far apart, as long as more comes: each costs Spark a quarter of a second of a core,
# whatever it holds (`bench pipeline`).
_GATHER_S = {3 * 2**20: 0.5, 8 * 2**20: 1.5}
_STILL_S = 0.1
# After so long without news the log is told what came before.
_AT_REST_S = 10.0

# What to make of the log: it is pickled to the executors.
Decoding: TypeAlias = Wanted | WantedTables | WantedDeltas


class Decoder(Protocol):
    """From runs to rows."""

    def batches(self, runs: Iterable[Run]) -> Iterator[pa.RecordBatch]: ...

    def range_row(self, covered: BatchRange) -> pa.RecordBatch:
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
class Part(InputPartition):
    """What one task reads: all of it travels to the executor."""

    shares: tuple[Share, ...]
    # The range of the batch, if this is the task that tells it in a row.
    covered: tuple[Position, Position] | None = None


class _Reading:
    """What batches and streams share: shares of a range, and their rows."""

    def __init__(self, options: SourceOptions, decoding: Decoding) -> None:
        self._options = options
        self._decoding = decoding

    def _log(self) -> LogReader:
        return LogReader(self._options.path)

    def _parts(self, log: LogReader, after: Position, up_to: Position) -> list[InputPartition]:
        parts = [Part((share,)) for share in shares(log, after, up_to)]
        if self._options.batch_range:
            # Not a task of its own, which would take longer than many a batch.
            *parts, last = parts or [Part(())]
            parts.append(Part(last.shares, (after, up_to)))
        return list(parts)

    def _read_now(self, log: LogReader, part: Part) -> Part:  # noqa: ARG002 - see `late`
        """What a task reads, when it does."""
        return part

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        _settle()
        with said_once():
            if not isinstance(partition, Part):
                return  # Spark asks for nothing, where there is none
            log = self._log()
            part = self._read_now(log, partition)
            decoder = _decoder(self._decoding)
            yield from decoder.batches(run for share in part.shares for run in runs(log, share))
            if part.covered is not None and partition.covered is not None:
                after, up_to = part.covered
                _, planned = partition.covered
                yield decoder.range_row(BatchRange(after.lsn, up_to.lsn, planned.lsn))


def _settle() -> None:
    """After each task Spark's worker collects garbage, and so looks at every object: 30 ms of a
    core. What is loaded by the first task stays anyhow, and need not be looked at.
    """
    if not gc.get_freeze_count():
        gc.freeze()
        keep_freed_memory()


def _apart_s(log: LogReader, after: Position, up_to: Position) -> float | None:
    """How far apart batches should be, by what has committed; None: nothing has.

    Of a long backlog only the beginning is looked at.
    """
    found, waiting = False, 0
    for frames in log.headers(after, up_to):
        found = found or bool(frames.fields["commits"].any())
        waiting += int(frames.fields["committed_bytes"].sum())
        if waiting >= max(_GATHER_S):
            break
    if not found:
        return None
    return max((apart for least, apart in _GATHER_S.items() if waiting >= least), default=0.0)


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
    """A stream. Offsets are positions of the log.

    What Spark 4.3 calls, found by trial. Each run of a query has one reader that plans, in a
    process of its own; tasks read with copies of it.

        new             initialOffset, latestOffset, initialOffset again, partitions: the second
                        answer is the start of the first batch
        in batch 0      initialOffset, partitions with that and the end that was written down
        later           partitions of the batch that was not finished, if any; then latestOffset.
                        Never initialOffset
        each next one   latestOffset, commit of the batch before, partitions

    With `availableNow`, prepareForTriggerAvailableNow comes before all of it. The end of a batch is
    written down between latestOffset and partitions, its start never (see `offsets`).
    """

    def __init__(self, options: SourceOptions, decoding: Decoding) -> None:
        super().__init__(options, decoding)
        self._is_registered = False
        self._until: Position | None = None
        self._passed_on_at = 0.0
        # Where nothing has come, and since when; and what the log was told last.
        self._rests_at: tuple[Lsn, float] | None = None
        self._told_lsn: Lsn | None = None

    def initialOffset(self) -> dict[str, Any]:
        with said_once():
            log = self._log()
            return initial_offset(log, beginning(log, self._options.starting))

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxBytes(self._options.max_bytes)

    def prepareForTriggerAvailableNow(self) -> None:
        with said_once():
            self._until = self._log().end()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        with said_once():
            log = self._log()
            after = from_offset(log, start)
            self._register(log, after)
            end = self._until or self._news(log, after)
            if end.lsn <= after.lsn:
                end = after
                self._rest(log, after)
            elif not isinstance(limit, ReadAllAvailable):
                end = self._limited(log, after, end)
            is_news = end.lsn > after.lsn or start.get("initial")
            return to_offset(log, end, start) if is_news else start

    def _limited(self, log: LogReader, after: Position, end: Position) -> Position:
        return limited(log, after, end, Limit(self._options.max_bytes, self._options.max_rows))

    def _news(self, log: LogReader, after: Position) -> Position:
        """The end of the log, as soon as something has committed, or after a while."""
        deadline = time.monotonic() + _LONG_POLL_S
        seen = after
        while True:
            end = log.end()
            now = time.monotonic()
            if (apart_s := _apart_s(log, after, end)) is not None:
                gather_s = self._passed_on_at + apart_s - now
                comes_more = end.lsn > seen.lsn
                if gather_s <= 0 or not comes_more or self._limited(log, after, end) != end:
                    self._passed_on_at = now
                    return end
                seen = end
                time.sleep(min(gather_s, _STILL_S))
                continue
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
            after, up_to = range_of(log, start, end)
            self._register(log, after)
            return self._parts(log, after, up_to)

    def commit(self, end: dict[str, Any]) -> None:
        with said_once():
            log = self._log()
            self._applied(log, from_offset(log, end))

    def _register(self, log: LogReader, position: Position) -> None:
        """Once in each run, where its first batch begins: up to there all is applied.

        Not in initialOffset: that is not called when there is a checkpoint, or again and too late.
        """
        if not self._is_registered:
            self._applied(log, position)
            self._is_registered = True

    def _rest(self, log: LogReader, position: Position) -> None:
        """Nothing came, so that `commit` does not come either; and nothing may come before the log
        has room, which it gets when we say what is applied.

        Spark asks for news when it is done with the batch before, and has written that down, unless
        it does so beside its batches and left the last ones out: then it may ask for them again.
        """
        now = time.monotonic()
        if self._rests_at is None or self._rests_at[0] != position.lsn:
            self._rests_at = position.lsn, now
        elif now >= self._rests_at[1] + _AT_REST_S and self._told_lsn != position.lsn:
            self._applied(log, position)

    def _applied(self, log: LogReader, position: Position) -> None:
        if self._options.consumer is not None:
            log_id = str(log.identity.log_id)
            consumers.register(log.storage, self._options.consumer, log_id, position.lsn)
        self._told_lsn = position.lsn
