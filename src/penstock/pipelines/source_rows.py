"""A source's rows at one snapshot: what is common to both ways to count them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
import pyarrow as pa
from psycopg import sql

from penstock.declarations import AggregateSource
from penstock.decode.deltas import cannot_hold
from penstock.names import TableName
from penstock.pipelines.binding import Bound
from penstock.pipelines.inputs import input_columns
from penstock.postgres.forms import PRINTED
from penstock.postgres.tables import Column, read_tables

# Rows read so far, or more of them.
OnRows = Callable[[int], None]
# Equal values of these are always printed alike, so that grouping by them and by their text is one.
_PRINTED_ALIKE = """
SELECT a.attname
  FROM pg_attribute AS a
  JOIN pg_type AS t ON t.oid = a.atttypid
  LEFT JOIN pg_collation AS c ON c.oid = a.attcollation
 WHERE a.attrelid = %s::regclass AND a.attnum > 0 AND NOT a.attisdropped
   AND (t.typtype = 'e'
        OR (t.typnamespace = 'pg_catalog'::regnamespace
            AND (t.typname IN ('bool', 'int2', 'int4', 'int8', 'oid', 'text', 'varchar', 'uuid',
                               'date', 'timestamp', 'timestamptz')
                 OR (t.typname IN ('numeric', 'bpchar') AND a.atttypmod >= 0))))
   AND coalesce(c.collisdeterministic, true)
"""


_WIDER = {"float4": sql.SQL("float8"), "_float4": sql.SQL("float8[]")}


@dataclass(frozen=True, slots=True)
class Truth:
    """What rows add up to, and how many of them are not in it."""

    # Dimensions as text, measures as numbers. A combination may be there more than once.
    sums: pa.Table
    # As the log's reader does: those with values that Spark cannot hold, by reason.
    skipped: Counter[str]


def columns_of(
    connection: psycopg.Connection[Any], source: AggregateSource, bound: Bound
) -> dict[str, tuple[Column, ...]]:
    """The table's own columns for each that is read: the first that is not NULL counts."""
    table = read_tables(connection, [source.table])[source.table]
    return {each.name: input_columns(source, table, each.name) for each in bound.summed.inputs}


def printed(columns: Sequence[Column]) -> sql.Composable:
    """SQL for the first value that is not NULL, as the log has it."""
    if len(columns) == 1:
        return sql.SQL(PRINTED).format(sql.Identifier(columns[0].name))
    differ = len({column.base.name for column in columns}) > 1
    texts = [sql.SQL(PRINTED).format(_widened(column, differ)) for column in columns]
    # Columns may have different collations, by which no text can be grouped.
    listed = (sql.SQL('{} COLLATE "C"').format(text) for text in texts)
    return sql.SQL("coalesce({})").format(sql.SQL(", ").join(listed))


def _widened(column: Column, differ: bool) -> sql.Composable:
    """The column; a real as the double that the log's reader makes of it beside doubles."""
    name = sql.Identifier(column.name)
    wide = _WIDER.get(column.base.name) if differ else None
    return name if wide is None else sql.SQL("{}::{}").format(name, wide)


def printed_alike(connection: psycopg.Connection[Any], table: TableName) -> set[str]:
    """The columns of which equal values have one text, and one binary form."""
    return {name for (name,) in connection.execute(_PRINTED_ALIKE, [table.sql])}


def rows_of(connection: psycopg.Connection[Any], table: TableName) -> sql.Composable:
    """Those that come under its name in the log: of a partitioned table all, of another one not
    those of tables that inherit from it.
    """
    (partitioned,) = connection.execute(
        "SELECT relkind = 'p' FROM pg_class WHERE oid = %s::regclass", [table.sql]
    ).fetchone() or (False,)
    name = sql.Identifier(table.schema, table.name)
    return name if partitioned else sql.SQL("ONLY {}").format(name)


def reasons(table: TableName, left_out: Mapping[str, int]) -> Counter[str]:
    """From how many rows were left out for a column; each for the first that is wrong with it."""
    return Counter({cannot_hold(table, name): rows for name, rows in left_out.items() if rows})
