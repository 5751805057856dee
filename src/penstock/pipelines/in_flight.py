"""The truth at a position, where the snapshot lacks transactions that were in flight (polling).

Their commits are in the log, up to the snapshot's position: what they add to an aggregate is added
to what its rows in the snapshot come to.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator

import pyarrow as pa
from pyspark.sql import SparkSession

from penstock.changelog.reader import CommitRef, LogReader
from penstock.lsn import Lsn
from penstock.pipelines.applying import Batch
from penstock.pipelines.binding import Bound
from penstock.pipelines.log_deltas import log_deltas
from penstock.pipelines.source_rows import Truth
from penstock.postgres.polling.snapshot import InFlight


def with_in_flight(
    log: LogReader,
    bound: Bound,
    truth: Truth,
    in_flight: InFlight | None,
    spark: Callable[[], SparkSession],
) -> Truth:
    """The truth at the snapshot's position; the log must have reached it."""
    if in_flight is None:
        return truth
    after, up_to = log.locate(in_flight.start), log.locate(in_flight.end)
    for start, end in unseen_ranges(log.commits(after, up_to), in_flight):
        truth = added(truth, log_deltas(log, bound, start, end, spark))
    return truth


def added(truth: Truth, batch: Batch) -> Truth:
    """What both come to together."""
    sums = pa.concat_tables([truth.sums, batch.sums], promote_options="permissive")
    return Truth(sums, Counter(truth.skipped) + Counter(batch.skipped))


def unseen_ranges(commits: Iterable[CommitRef], in_flight: InFlight) -> Iterator[tuple[Lsn, Lsn]]:
    """The ranges of the log, each (start, end], that hold the commits which the snapshot lacks."""
    start: Lsn | None = None
    before = in_flight.start
    for commit in commits:
        if in_flight.sees(commit.xid):
            if start is not None:
                yield start, before
            start = None
        elif start is None:
            start = before
        before = commit.lsn
    if start is not None:
        yield start, before
