"""What an aggregate should be, by the source's own tables at one snapshot.

Where all dimensions are columns and there is no filter, Postgres groups. Else the columns that are
needed are read out and Spark computes the expressions, as it does for the log: there is one
definition of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator
from contextlib import closing
from typing import Any

import psycopg
import pyarrow as pa
from pyspark.sql import SparkSession

from penstock.pipelines.binding import Bound
from penstock.pipelines.grouped_by_postgres import grouped_by_postgres, nothing
from penstock.pipelines.grouped_by_spark import grouped_by_spark, prepared
from penstock.pipelines.grouping_told import OnGrouping, told
from penstock.pipelines.source_rows import OnRows, Truth
from penstock.pipelines.sums import together


def true_sums(
    connection: psycopg.Connection[Any],
    bound: Bound,
    spark: Callable[[], SparkSession],
    on_rows: OnRows = lambda _: None,
    on_grouping: OnGrouping = lambda _: None,
) -> Truth:
    """Of all tables that count."""
    config, skipped = bound.config, Counter[str]()

    def sums() -> Generator[pa.Table, None, None]:
        yield nothing(bound)
        with closing(_parts(connection, bound, spark, _added_up(on_rows), on_grouping)) as parts:
            for part in parts:
                skipped.update(part.skipped)
                yield part.sums

    with closing(sums()) as found:
        return Truth(together(found, list(config.dimensions), list(config.measures)), skipped)


def _parts(
    connection: psycopg.Connection[Any],
    bound: Bound,
    spark: Callable[[], SparkSession],
    on_more: OnRows,
    on_grouping: OnGrouping,
) -> Generator[Truth, None, None]:
    """As they come: one combination may be in many."""
    session = None if bound.config.all_plain else spark()
    if session is not None:
        bound = prepared(session, bound)
    for source in bound.config.sources:
        if not source.rows_count:
            continue
        if session is None:
            with closing(grouped_by_postgres(connection, bound, source, on_more)) as portions:
                with told(connection, source.table, on_grouping):
                    first = next(portions)  # there is one at least
                yield first
                yield from portions
        else:
            yield from grouped_by_spark(connection, bound, source, session, on_more)


def _added_up(on_rows: OnRows) -> OnRows:
    """To be told of more rows, of whichever table."""
    read = 0

    def on_more(rows: int) -> None:
        nonlocal read
        read += rows
        on_rows(read)

    return on_more
