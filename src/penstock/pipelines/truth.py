"""What an aggregate should be, by the source's own tables at one snapshot.

Where all dimensions are columns, Postgres groups. Else the columns that are needed are copied out
and Spark computes the expressions, as it does for the log: there is one definition of them.
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import psycopg
import pyarrow as pa
from psycopg import sql
from pyarrow import csv
from pyspark.sql import DataFrame, SparkSession

from penstock.declarations import AggregateSource
from penstock.decode.columns import Mask, column, texts_of
from penstock.decode.deltas import AGGREGATE, NOTE, ROWS, Input, cannot_hold, signed, summed_up
from penstock.decode.types import Kind
from penstock.names import TableName
from penstock.pipelines.binding import Bound
from penstock.pipelines.expressions_checked import require_computable
from penstock.pipelines.grouping import batches, computed, grouped
from penstock.pipelines.grouping_told import OnGrouping, told
from penstock.pipelines.sums import as_text
from penstock.postgres.copying import copied_blocks
from penstock.postgres.failures import translated
from penstock.spark.errors import computing

# What Spark gets at one go: long beside the start of a job, little memory.
_ROWS_AT_ONCE = 500_000
_ROWS_IN_TASK = 150_000
_COPY_BLOCK = 4 * 2**20
# To add up equal rows, unless so many of a block are different.
_WORTH_IT = 0.5
# Rows read so far.
OnRows = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Truth:
    """What rows add up to, and how many of them are not in it."""

    # Dimensions as text, measures as numbers. Not yet added up.
    sums: pa.Table
    # As the log's reader does: those with values that Spark cannot hold, by reason.
    skipped: Counter[str]


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
    if not bound.config.all_plain:
        require_computable(spark(), [bound])
        # Else Spark's driver makes an object of every row, and computes there: all of its memory.
        spark().conf.set("spark.sql.execution.arrow.localRelationThreshold", "0")
        # Each batch becomes a task, and with the usual 10,000 rows costs more than they do.
        spark().conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", str(_ROWS_IN_TASK))
    for source in bound.config.sources:
        if "insert" not in source.rules:
            continue
        columns = _columns_of(connection, source, bound)
        if bound.config.all_plain:
            with told(connection, source.table, on_grouping):
                parts.append(_grouped_by_server(connection, bound, source, columns, on_more))
        else:
            parts += _grouped_by_spark(connection, bound, source, columns, spark(), on_more)
    empty, _ = _result(bound, [])
    sums = [empty, *(part.sums for part in parts)]
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


def _columns_of(
    connection: psycopg.Connection[Any], source: AggregateSource, bound: Bound
) -> dict[str, str]:
    """The table's own name for each column that is read."""
    existing = {
        name
        for (name,) in connection.execute(
            "SELECT attname FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0"
            " AND NOT attisdropped",
            [source.table.sql],
        )
    }
    return {
        each.name: next(name for name in source.names(each.name) if name in existing)
        for each in bound.summed.inputs
    }


def _reasons(table: TableName, left_out: Mapping[str, int]) -> Counter[str]:
    """From how many rows were left out for a column."""
    return Counter({cannot_hold(table, name): rows for name, rows in left_out.items() if rows})


# --- by Postgres ---------------------------------------------------------------------------------

# Equal values of these are always printed alike, so that grouping by them and by their text is one.
_PRINTED_ALIKE = """
SELECT a.attname
  FROM pg_attribute AS a
  JOIN pg_type AS t ON t.oid = a.atttypid
  LEFT JOIN pg_collation AS c ON c.oid = a.attcollation
 WHERE a.attrelid = %s::regclass AND a.attnum > 0 AND NOT a.attisdropped
   AND (t.typname IN ('bool', 'int2', 'int4', 'int8', 'oid', 'text', 'varchar', 'uuid', 'date',
                      'timestamp', 'timestamptz')
        OR t.typtype = 'e' OR (t.typname IN ('numeric', 'bpchar') AND a.atttypmod >= 0))
   AND coalesce(c.collisdeterministic, true)
"""


def _grouped_by_server(
    connection: psycopg.Connection[Any],
    bound: Bound,
    source: AggregateSource,
    columns: dict[str, str],
    on_more: OnRows,
) -> Truth:
    alike = {name for (name,) in connection.execute(_PRINTED_ALIKE, [source.table.sql])}
    keys = {each.name: sql.Identifier(columns[each.name]) for each in bound.summed.keys}
    sums = {each.name: sql.Identifier(columns[each.name]) for each in bound.summed.sums}
    # A numeric with a precision may be NaN. An integer may not, and costs nothing more.
    special = [each.name for each in bound.summed.sums if each.kind.kind is Kind.DECIMAL]
    counts = _without_special([sums[name] for name in special])
    groups = [key if columns[name] in alike else _printed(key) for name, key in keys.items()]
    statement = sql.SQL("SELECT {selected} FROM {table} GROUP BY {groups}").format(
        selected=sql.SQL(", ").join(
            [
                *(_printed(key) for key in keys.values()),
                sql.SQL("count(*) {}").format(counts),
                *(sql.SQL("coalesce(sum({}) {}, 0)").format(c, counts) for c in sums.values()),
                sql.SQL("count(*)"),
                *(
                    sql.SQL("count(*) FILTER (WHERE {} = {})").format(sums[name], _SPECIAL)
                    for name in special
                ),
            ]
        ),
        table=_rows_of(connection, source.table),
        groups=sql.SQL(", ").join(groups) if groups else sql.SQL("()"),
    )
    with translated(f"count the rows of {source.table}"):
        rows = connection.execute(statement).fetchall()
    found, bad = _result(bound, rows)
    place = len(keys) + 1 + len(sums)
    read = np.array([row[place] for row in rows], np.int64)
    on_more(int(read.sum()))
    left_out = {name: int(read[mask].sum()) for name, mask in bad.items()}
    for number, name in enumerate(special, place + 1):
        if name not in keys:  # else it is among them
            left_out[name] = sum(row[number] for row in rows)
    nothing_left = np.array([row[len(keys)] == 0 for row in rows], bool)
    good = ~np.logical_or.reduce([nothing_left, *bad.values()])
    return Truth(found.filter(pa.array(good)), _reasons(source.table, left_out))


def _printed(column: sql.Composable) -> sql.Composable:
    """As the log has it: a cast to text takes blanks off a char(n), and adds a mask to an inet."""
    return sql.SQL("CASE WHEN {0} IS NOT NULL THEN format('%s', {0}) END").format(column)


# The log's reader leaves a row out that has a value which Spark cannot hold; so do we.
_SPECIAL = sql.SQL("'NaN'::numeric")


def _without_special(columns: Sequence[sql.Composable]) -> sql.Composable:
    if not columns:
        return sql.SQL("")
    conditions = [sql.SQL("{} IS DISTINCT FROM {}").format(each, _SPECIAL) for each in columns]
    return sql.SQL("FILTER (WHERE {})").format(sql.SQL(" AND ").join(conditions))


def _result(bound: Bound, rows: Sequence[Sequence[Any]]) -> tuple[pa.Table, dict[str, Mask]]:
    """From rows of keys, the count and sums to dimensions and measures; and, by key, which of the
    rows have a value of it that its type cannot hold.
    """
    config = bound.config
    sums = [each.name for each in bound.summed.sums]
    keys: dict[str, pa.Array] = {}
    bad: dict[str, Mask] = {}
    for place, each in enumerate(bound.summed.keys):
        keys[each.name] = texts = pa.array([row[place] for row in rows], pa.string())
        if rows:
            # Through the same type as in the log, so that one value is one text.
            values, bad[each.name] = column(texts_of(texts), each.kind)
            keys[each.name] = as_text(values)
    found: dict[str, pa.Array] = {
        name: keys[dimension.plain] if dimension.plain else pa.array([], pa.string())
        for name, dimension in config.dimensions.items()
    }
    for name in config.measures:
        summed = config.summed_by(name)
        place = len(keys) + (0 if summed is None else 1 + sums.index(summed))
        kind = pa.int64() if summed is None else pa.decimal128(38, _scale(bound, summed))
        found[name] = pa.array([row[place] for row in rows], kind)
    return pa.table(found), bad


def _scale(bound: Bound, name: str) -> int:
    return next(each.kind.scale for each in bound.summed.sums if each.name == name)


# --- by Spark ------------------------------------------------------------------------------------


def _grouped_by_spark(
    connection: psycopg.Connection[Any],
    bound: Bound,
    source: AggregateSource,
    columns: dict[str, str],
    spark: SparkSession,
    on_more: OnRows,
) -> Iterator[Truth]:
    # Spark computes one portion while the next is read.
    with ThreadPoolExecutor(1, "computing") as pool:
        under_way: Future[Truth] | None = None
        for rows, portion in _portions(connection, bound, source, columns):
            if under_way is not None:
                yield under_way.result()
            under_way = pool.submit(_computed, spark, bound, portion)
            on_more(rows)
        if under_way is not None:
            yield under_way.result()


def _portions(
    connection: psycopg.Connection[Any],
    bound: Bound,
    source: AggregateSource,
    columns: dict[str, str],
) -> Iterator[tuple[int, Truth]]:
    """How many rows were read since the last time, and what they add, for Spark to group."""
    if not columns:
        yield from _alike(connection, source.table)
        return
    rows = 0
    waiting: list[pa.Table] = []
    left_out: Counter[str] = Counter()
    add_up = summed_up
    for copied in _copied(connection, source.table, list(columns.values())):
        rows += copied.num_rows
        deltas, bad = _deltas(bound, copied, add_up)
        waiting.append(deltas)
        left_out.update(bad)
        if len(deltas) > copied.num_rows * _WORTH_IT:
            add_up = signed  # hardly two rows are equal: Spark adds them up
        if sum(map(len, waiting)) >= _ROWS_AT_ONCE:
            yield rows, Truth(pa.concat_tables(waiting), _reasons(source.table, left_out))
            rows, waiting, left_out = 0, [], Counter()
    if waiting:
        yield rows, Truth(pa.concat_tables(waiting), _reasons(source.table, left_out))


def _alike(connection: psycopg.Connection[Any], table: TableName) -> Iterator[tuple[int, Truth]]:
    """Where no column is read: COPY would send lines of nothing."""
    statement = sql.SQL("SELECT count(*) FROM {}").format(_rows_of(connection, table))
    with translated(f"count the rows of {table}"):
        (rows,) = connection.execute(statement).fetchone() or (0,)
    if rows:
        yield rows, Truth(pa.table({ROWS: pa.array([rows], pa.int64())}), Counter())


def _copied(
    connection: psycopg.Connection[Any], table: TableName, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    selected = sql.SQL(", ").join(map(sql.Identifier, columns))
    statement = sql.SQL("COPY (SELECT {} FROM {}) TO STDOUT (FORMAT csv)").format(
        selected, _rows_of(connection, table)
    )
    names = [str(number) for number in range(len(columns))]
    with (
        translated(f"read the rows of {table}"),
        connection.cursor() as cursor,
        cursor.copy(statement),
    ):
        blocks = _Blocks(copied_blocks(connection.pgconn))
        if blocks.empty:
            return
        yield from csv.open_csv(
            io.BufferedReader(blocks, _COPY_BLOCK),
            csv.ReadOptions(column_names=names, block_size=_COPY_BLOCK),
            # A line of one column that is NULL is empty, and a row all the same.
            csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False),
            csv.ConvertOptions(
                column_types=dict.fromkeys(names, pa.string()),
                null_values=[""],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            ),
        )


class _Blocks(io.RawIOBase):
    """What COPY sends, as a file."""

    def __init__(self, blocks: Iterator[bytes]) -> None:
        self._blocks = blocks
        self._rest = memoryview(next(blocks, b""))
        self.empty = not self._rest

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._rest:
            self._rest = memoryview(next(self._blocks, b""))
        size = min(len(buffer), len(self._rest))
        buffer[:size] = self._rest[:size]
        self._rest = self._rest[size:]
        return size


def _deltas(
    bound: Bound, copied: pa.RecordBatch, add_up: Callable[..., pa.Table]
) -> tuple[pa.Table, dict[str, int]]:
    """What rows add, and how many of them do not for a value of a column."""
    left_out: dict[str, int] = {}
    arrays: dict[Input, pa.Array] = {}
    good = np.ones(copied.num_rows, bool)
    for each, texts in zip(bound.summed.inputs, copied.columns, strict=True):
        if each.kind.kind is Kind.TEXT:
            arrays[each] = texts
            continue
        arrays[each], bad = column(texts_of(texts), each.kind)
        left_out[each.name] = int(np.count_nonzero(bad))
        good &= ~bad
    sign = pa.array(np.ones(copied.num_rows, np.int64))
    return add_up(bound.summed, arrays, sign, good), left_out


def _computed(spark: SparkSession, bound: Bound, portion: Truth) -> Truth:
    deltas = portion.sums
    numbered = deltas.append_column(AGGREGATE, pa.array(np.zeros(len(deltas), np.int32)))
    noted = numbered.append_column(NOTE, pa.nulls(len(deltas), pa.string()))
    frame: DataFrame = spark.createDataFrame(noted)
    rows = grouped(computed(frame, [bound]), [bound])
    with computing():
        result = rows.toArrow()
    (batch,) = batches(result, [bound])
    return Truth(batch.sums, portion.skipped)


def _rows_of(connection: psycopg.Connection[Any], table: TableName) -> sql.Composable:
    """Those that come under its name in the log: of a partitioned table all, of another one not
    those of tables that inherit from it.
    """
    (partitioned,) = connection.execute(
        "SELECT relkind = 'p' FROM pg_class WHERE oid = %s::regclass", [table.sql]
    ).fetchone() or (False,)
    name = sql.Identifier(table.schema, table.name)
    return name if partitioned else sql.SQL("ONLY {}").format(name)
