"""Where all dimensions are columns, Postgres groups a source's rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from itertools import islice
from typing import Any

import numpy as np
import psycopg
import pyarrow as pa
from psycopg import sql

from penstock.declarations import AggregateSource
from penstock.decode.columns import Mask, column_as, texts_of
from penstock.decode.types import Kind, ValueType
from penstock.names import TableName
from penstock.pipelines.binding import Bound
from penstock.pipelines.source_rows import (
    OnRows,
    Truth,
    columns_of,
    printed,
    printed_alike,
    reasons,
    rows_of,
)
from penstock.pipelines.sums import as_text
from penstock.postgres.failures import translated
from penstock.postgres.tables import Column

# As Python's objects they take ten times the memory that they take in Arrow.
_MOST_ROWS = 50_000
# Rows that libpq hands over together; older ones hand over each by itself.
_AT_ONCE = 1000


def grouped_by_postgres(
    connection: psycopg.Connection[Any],
    bound: Bound,
    source: AggregateSource,
    on_more: OnRows,
) -> Generator[Truth, None, None]:
    """All of a table, by portions, one at least; `on_more` is told how many rows each has. Until
    it is closed, the connection is its own.
    """
    columns = columns_of(connection, source, bound)
    alike = printed_alike(connection, source.table)
    keys = {each.name: printed(columns[each.name]) for each in bound.summed.keys}
    sums = {each.name: _first(columns[each.name]) for each in bound.summed.sums}
    # A numeric with a precision may be NaN. An integer may not, and costs nothing more.
    special = [each.name for each in bound.summed.sums if each.kind.kind is Kind.DECIMAL]
    counts = _without_special([sums[name] for name in special])
    groups = [
        _first(own) if len(own) == 1 and own[0].name in alike else printed(own)
        for own in (columns[name] for name in keys)
    ]
    statement = sql.SQL("SELECT {selected} FROM {table} GROUP BY {groups}").format(
        selected=sql.SQL(", ").join(
            [
                *keys.values(),
                sql.SQL("count(*) {}").format(counts),
                *(sql.SQL("coalesce(sum({}) {}, 0)").format(c, counts) for c in sums.values()),
                sql.SQL("count(*)"),
                *(_first_special(sums, special[: number + 1]) for number in range(len(special))),
            ]
        ),
        table=rows_of(connection, source.table),
        groups=sql.SQL(", ").join(groups) if groups else sql.SQL("()"),
    )
    place = len(keys) + 1 + len(sums)
    with closing(_blocks(connection, statement, source.table)) as blocks:
        for rows in blocks:
            found, bad = _result(bound, rows, bound.given[source.table])
            read = np.array([row[place] for row in rows], np.int64)
            on_more(int(read.sum()))
            left_out: Counter[str] = Counter()
            good = np.ones(len(rows), bool)
            for name, mask in bad.items():
                left_out[name] = int(read[good & mask].sum())
                good &= ~mask
            for number, name in enumerate(special, place + 1):
                left_out[name] += sum(rows[each][number] for each in np.flatnonzero(good))
            good &= np.array([row[len(keys)] > 0 for row in rows], bool)
            yield Truth(found.filter(pa.array(good)), reasons(source.table, left_out))


def _blocks(
    connection: psycopg.Connection[Any], statement: sql.Composed, table: TableName
) -> Generator[list[tuple[Any, ...]], None, None]:
    """As the server sends them; one at least. Not by a cursor of the server's, which works alone:
    several processes would not group the table together.
    """
    at_once = _AT_ONCE if psycopg.capabilities.has_stream_chunked() else 1
    with connection.cursor() as cursor:
        rows = cursor.stream(statement, size=at_once)
        is_last = False
        while not is_last:
            with translated(f"count the rows of {table}"):
                block = list(islice(rows, _MOST_ROWS))
            is_last = len(block) < _MOST_ROWS
            yield block


def _first(columns: Sequence[Column]) -> sql.Composable:
    """SQL for the first value that is not NULL."""
    names = [sql.Identifier(column.name) for column in columns]
    return (
        names[0] if len(names) == 1 else sql.SQL("coalesce({})").format(sql.SQL(", ").join(names))
    )


# The log's reader leaves a row out that has a value which Spark cannot hold; so do we.
_SPECIAL = sql.SQL("'NaN'::numeric")


def _without_special(columns: Sequence[sql.Composable]) -> sql.Composable:
    if not columns:
        return sql.SQL("")
    conditions = [sql.SQL("{} IS DISTINCT FROM {}").format(each, _SPECIAL) for each in columns]
    return sql.SQL("FILTER (WHERE {})").format(sql.SQL(" AND ").join(conditions))


def _first_special(columns: Mapping[str, sql.Composable], names: Sequence[str]) -> sql.Composable:
    """How many rows have such a value in the last of the columns, and in none before."""
    *before, last = names
    conditions = [
        *(sql.SQL("{} IS DISTINCT FROM {}").format(columns[each], _SPECIAL) for each in before),
        sql.SQL("{} = {}").format(columns[last], _SPECIAL),
    ]
    return sql.SQL("count(*) FILTER (WHERE {})").format(sql.SQL(" AND ").join(conditions))


def nothing(bound: Bound) -> pa.Table:
    """No row, in the columns that all have."""
    return _result(bound, [], {})[0]


def _result(
    bound: Bound, rows: Sequence[Sequence[Any]], given: Mapping[str, ValueType]
) -> tuple[pa.Table, dict[str, Mask]]:
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
            # Through the same types as in the log, so that one value is one text.
            values, bad[each.name] = column_as(texts_of(texts), given[each.name], each.kind)
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
