"""What an aggregate should be, by the source's own tables at one snapshot.

Where all dimensions are columns, Postgres groups. Else the columns that are needed are read out
and Spark computes the expressions, as it does for the log: there is one definition of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import psycopg
import pyarrow as pa
from pyspark.sql import SparkSession

from penstock.pipelines.binding import Bound
from penstock.pipelines.grouped_by_postgres import grouped_by_postgres, nothing
from penstock.pipelines.grouped_by_spark import grouped_by_spark, prepared
from penstock.pipelines.grouping_told import OnGrouping, told
from penstock.pipelines.source_rows import OnRows, Truth


def true_sums(
    connection: psycopg.Connection[Any],
    bound: Bound,
    spark: Callable[[], SparkSession],
    on_rows: OnRows = lambda _: None,
    on_grouping: OnGrouping = lambda _: None,
) -> Truth:
    """Of all tables that count."""
    parts: list[Truth] = []
    on_more = _added_up(on_rows)
    session = None if bound.config.all_plain else spark()
    if session is not None:
        bound = prepared(session, bound)
    for source in bound.config.sources:
        if not source.rows_count:
            continue
        if session is None:
            with told(connection, source.table, on_grouping):
                parts.append(grouped_by_postgres(connection, bound, source, on_more))
        else:
            parts += grouped_by_spark(connection, bound, source, session, on_more)
    sums = [nothing(bound), *(part.sums for part in parts)]
    return Truth(
        pa.concat_tables(sums, promote_options="permissive"),
        sum((part.skipped for part in parts), Counter()),
    )


def _added_up(on_rows: OnRows) -> OnRows:
    """To be told of more rows, of whichever table."""
    read = 0

    def on_more(rows: int) -> None:
        nonlocal read
        read += rows
        on_rows(read)

    return on_more
