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

# Rows read so far, or more of them.
OnRows = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Truth:
    """What rows add up to, and how many of them are not in it."""

    # Dimensions as text, measures as numbers. Not yet added up.
    sums: pa.Table
    # As the log's reader does: those with values that Spark cannot hold, by reason.
    skipped: Counter[str]


def columns_of(
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
