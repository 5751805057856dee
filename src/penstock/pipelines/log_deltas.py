"""What a range of the log adds to one aggregate, read at one go.

Where all dimensions are columns and there is no filter, nothing is left for Spark to compute, so
none is started.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
from pyspark.sql import SparkSession

from penstock.changelog.planning import shares
from penstock.changelog.reader import LogReader
from penstock.changelog.runs import runs
from penstock.decode.deltas import Deltas, WantedDeltas
from penstock.lsn import Lsn
from penstock.pipelines.applying import Batch
from penstock.pipelines.binding import Bound
from penstock.pipelines.grouping import batches, computed, grouped, places, plain_batches
from penstock.pipelines.meaning import with_meaning
from penstock.spark.deltas import PenstockDeltas, as_option
from penstock.spark.errors import computing


def log_deltas(
    log: LogReader, bound: Bound, start: Lsn, end: Lsn, spark: Callable[[], SparkSession]
) -> Batch:
    """Of (start, end]; raises `LogRetired` if the log does not hold all of it any more, and
    `AggregateStopped` for changes that the aggregate cannot count.
    """
    batch = _log_deltas(log, bound, start, end, spark)
    if batch.stop is not None:
        raise batch.stop.error(bound.config.name)
    return batch


def _log_deltas(
    log: LogReader, bound: Bound, start: Lsn, end: Lsn, spark: Callable[[], SparkSession]
) -> Batch:
    wanted = WantedDeltas((bound.summed,))
    if bound.config.all_plain:
        decoder = Deltas(wanted)
        found = [
            batch
            for share in shares(log, log.locate(start), log.locate(end))
            for batch in decoder.batches(runs(log, share))
        ]
        (batch,) = plain_batches(pa.Table.from_batches(found, decoder.schema), [bound])
        return batch
    session = with_meaning(spark())
    session.dataSource.register(PenstockDeltas)
    frame = (
        session.read.format("penstock-deltas")
        .options(path=str(log.where), wanted=as_option(wanted))
        .options(startingPosition=str(start), endingPosition=str(end))
        .load()
    )
    rows = grouped(computed(frame, [bound]), [bound])
    with computing(places([bound])):
        result = rows.toArrow()
    (batch,) = batches(result, [bound])
    return batch
