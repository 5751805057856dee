"""An aggregate's target tables as their database has them."""

from __future__ import annotations

from typing import Any

import psycopg

from penstock.declarations import AggregateConfig
from penstock.errors import TargetMismatch, TargetUnavailable
from penstock.names import TableName
from penstock.pipelines.merging import Column, TargetTable

# To cast to: without any modifier, a domain's neither, for a cast cuts off in silence what an
# assignment refuses. NULL instead of -1 would make a char(1) of every char.
_COLUMNS = """
WITH RECURSIVE base AS (
    SELECT oid, oid AS type, typbasetype FROM pg_type
    UNION ALL
    SELECT base.oid, t.oid, t.typbasetype FROM base JOIN pg_type AS t ON t.oid = base.typbasetype
)
SELECT a.attname, format_type(base.type, -1)
  FROM pg_namespace AS n
  JOIN pg_class AS c ON c.relnamespace = n.oid
  JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
  JOIN base ON base.oid = a.atttypid AND base.typbasetype = 0
 WHERE n.nspname = %s AND c.relname = %s
"""


def read_targets(
    connection: psycopg.Connection[Any], aggregate: AggregateConfig
) -> tuple[TargetTable, ...]:
    """Raises `TargetMismatch` for a table or a column that is missing; doctor looks closer."""
    found = []
    for target in aggregate.targets:
        rows = connection.execute(_COLUMNS, [target.table.schema, target.table.name]).fetchall()
        # For statements with parameters, in which % has a meaning.
        types = {name: kind.replace("%", "%%") for name, kind in rows}
        dimensions, measures = aggregate.shown_by(target)
        for name in (*dimensions, *measures):
            if name not in types:
                raise _missing(aggregate.name, target.table, name if types else None)
        counts = {name for name in measures if aggregate.summed_by(name) is None}
        found.append(
            TargetTable(
                target.table,
                tuple(Column(name, types[name]) for name in dimensions),
                tuple(Column(name, types[name]) for name in measures),
                frozenset(counts if aggregate.floor else ()),
            )
        )
    return tuple(found)


def _missing(aggregate: str, table: TableName, column: str | None) -> TargetMismatch:
    what = f"target {table} of aggregate {aggregate} does not exist"
    if column is not None:
        what = f"target {table} of aggregate {aggregate} has no column {column}"
    return TargetMismatch(
        what,
        remedy="Run: penstock setup; or penstock doctor, which says what is wrong",
        table=table,
    )


def unwritable(aggregate: str, error: psycopg.Error) -> TargetUnavailable:
    """Without the server's text, which quotes values."""
    return TargetUnavailable(
        f"the target of aggregate {aggregate} cannot be written: {type(error).__name__}",
        remedy="Run: penstock doctor, which says what is wrong with it",
        aggregate=aggregate,
    )
