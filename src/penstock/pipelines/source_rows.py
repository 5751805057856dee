"""A source's rows at one snapshot: what is common to both ways to count them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import psycopg
import pyarrow as pa
from psycopg import sql

from penstock.declarations import AggregateSource
from penstock.decode.deltas import cannot_hold
from penstock.names import TableName
from penstock.pipelines.binding import Bound
from penstock.pipelines.inputs import input_column
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


@dataclass(frozen=True, slots=True)
class Truth:
    """What rows add up to, and how many of them are not in it."""

    # Dimensions as text, measures as numbers. A combination may be there more than once.
    sums: pa.Table
    # As the log's reader does: those with values that Spark cannot hold, by reason.
    skipped: Counter[str]


def columns_of(
    connection: psycopg.Connection[Any], source: AggregateSource, bound: Bound
) -> dict[str, Column]:
    """The table's own column for each that is read."""
    table = read_tables(connection, [source.table])[source.table]
    found = {each.name: input_column(source, table, each.name) for each in bound.summed.inputs}
    return {name: column for name, column in found.items() if column is not None}


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
