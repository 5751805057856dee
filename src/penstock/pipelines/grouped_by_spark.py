"""Where a dimension is an expression, a source's rows are read out and Spark computes it, as it
does for the log: there is one definition of what an expression gives.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np
import psycopg
from psycopg import sql
from pyspark.sql import SparkSession

from penstock.declarations import AggregateSource
from penstock.decode.columns import Mask
from penstock.names import TableName
from penstock.pipelines.binding import Bound
from penstock.pipelines.expressions_checked import require_computable
from penstock.pipelines.grouped_rows import grouped_rows
from penstock.pipelines.meaning import with_meaning
from penstock.pipelines.moments import by_minute
from penstock.pipelines.numbered_rows import (
    Division,
    NumberedRows,
    alike,
    division,
    numbered_rows,
    summed_up,
    together,
)
from penstock.pipelines.rows_read import Rows
from penstock.pipelines.source_columns import rows_in_columns
from penstock.pipelines.source_rows import OnRows, Truth, reasons, rows_of
from penstock.postgres.failures import translated

# What Spark gets at one go: rows that were so many before they were added up, and still are enough
# to be long beside the start of a job; little memory, also if rows are large.
_ROWS_AT_ONCE = 1_000_000
_WORTH_A_JOB = 50_000
_BYTES_AT_ONCE = 32 * 2**20
_ROWS_IN_TASK = 500_000
_UNDER_WAY = 2
# To add up equal rows, unless so many of a block are different.
_WORTH_IT = 0.5


@dataclass(frozen=True, slots=True)
class _Portion:
    rows: NumberedRows
    skipped: Counter[str]


def prepared(spark: SparkSession, bound: Bound) -> Bound:
    """Once, for all tables: the session is, and the aggregate is as it is read by it."""
    require_computable(with_meaning(spark), [bound])
    # Else Spark's driver makes an object of every row, and computes there: all of its memory.
    spark.conf.set("spark.sql.execution.arrow.localRelationThreshold", "0")
    # Each batch becomes a task, and with the usual 10,000 rows costs more than they do.
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", str(_ROWS_IN_TASK))
    return by_minute(bound, spark)


def grouped_by_spark(
    connection: psycopg.Connection[Any],
    bound: Bound,
    source: AggregateSource,
    spark: SparkSession,
    on_more: OnRows,
) -> Iterator[Truth]:
    """All of a table, by portions; `on_more` is told how many rows each has. All is
    `prepared`.
    """
    parts = division(bound)
    # Spark computes portions while the next is read.
    with (
        ThreadPoolExecutor(_UNDER_WAY, "computing") as pool,
        closing(_portions(connection, bound, parts, source)) as portions,
    ):
        under_way: deque[Future[Truth]] = deque()
        for rows, portion in portions:
            under_way.append(pool.submit(_computed, spark, bound, parts, portion))
            on_more(rows)
            if len(under_way) > _UNDER_WAY:
                yield under_way.popleft().result()
        while under_way:
            yield under_way.popleft().result()


def _portions(
    connection: psycopg.Connection[Any],
    bound: Bound,
    parts: Division,
    source: AggregateSource,
) -> Generator[tuple[int, _Portion], None, None]:
    """How many rows were read since the last time, and what they add, for Spark to group."""
    if not bound.summed.inputs:
        yield from _alike(connection, source.table)
        return
    count = size = 0
    waiting: list[NumberedRows] = []
    left_out: Counter[str] = Counter()
    adds_up = True
    with closing(rows_in_columns(connection, bound, source)) as found:
        for rows in found:
            count += rows.count
            good, bad = _good(rows)
            numbered = numbered_rows(parts, rows, good)
            if adds_up:
                numbered = summed_up(parts, numbered)
                # Else hardly two rows are equal: `grouped_rows` adds them up.
                adds_up = len(numbered.rows) <= rows.count * _WORTH_IT
            waiting.append(numbered)
            left_out.update(bad)
            size += numbered.nbytes
            if size >= _BYTES_AT_ONCE or (count >= _ROWS_AT_ONCE and _is_worth_a_job(waiting)):
                yield count, _Portion(together(waiting), reasons(source.table, left_out))
                count, size, waiting, left_out = 0, 0, [], Counter()
    if waiting:
        yield count, _Portion(together(waiting), reasons(source.table, left_out))


def _is_worth_a_job(waiting: list[NumberedRows]) -> bool:
    return sum(len(each.rows) for each in waiting) >= _WORTH_A_JOB


def _alike(connection: psycopg.Connection[Any], table: TableName) -> Iterator[tuple[int, _Portion]]:
    """Where no column is read: there would be nothing to pack."""
    statement = sql.SQL("SELECT count(*) FROM {}").format(rows_of(connection, table))
    with translated(f"count the rows of {table}"):
        (rows,) = connection.execute(statement).fetchone() or (0,)
    if rows:
        yield rows, _Portion(alike(rows), Counter())


def _good(rows: Rows) -> tuple[Mask, dict[str, int]]:
    """Which rows count, and how many do not for a value of a column."""
    left_out: dict[str, int] = {}
    good = np.ones(rows.count, bool)
    for each, bad in rows.bad.items():
        left_out[each.name] = int(np.count_nonzero(good & bad))
        good &= ~bad
    return good, left_out


def _computed(spark: SparkSession, bound: Bound, parts: Division, portion: _Portion) -> Truth:
    return Truth(grouped_rows(spark, bound, parts, portion.rows), portion.skipped)
