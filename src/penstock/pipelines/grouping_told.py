"""Tells that Postgres is still at it: it may group a table for many minutes without a word."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg

from penstock.beside import beside
from penstock.names import TableName

_TELL_EVERY_S = 5.0


@dataclass(frozen=True, slots=True)
class Grouping:
    """Postgres is still at a table."""

    table: TableName
    # By its statistics; None: it has none.
    about_rows: int | None
    for_s: float

    def __str__(self) -> str:
        rows = "" if self.about_rows is None else f", about {self.about_rows:,} rows"
        return f"{self.table}: being grouped for {self.for_s:.0f} s{rows}"


# Called every few seconds, by another thread.
OnGrouping = Callable[[Grouping], None]

# Of a partitioned table those of its parts; one that was never analyzed is most often empty.
_ABOUT_ROWS = """
SELECT (sum(reltuples::bigint) FILTER (WHERE reltuples >= 0))::bigint
  FROM pg_class
 WHERE oid = %(table)s::regclass AND relkind <> 'p'
    OR oid IN (SELECT relid FROM pg_partition_tree(%(table)s::regclass) WHERE isleaf)
"""


@contextmanager
def told(
    connection: psycopg.Connection[Any], table: TableName, on_grouping: OnGrouping
) -> Iterator[None]:
    """Of a table that the block groups, whose own thread only waits for the server."""
    about_rows = _about_rows(connection, table)
    begun = time.monotonic()
    done = threading.Event()

    def tell() -> None:
        while not done.wait(_TELL_EVERY_S):
            on_grouping(Grouping(table, about_rows, time.monotonic() - begun))

    with beside(tell, done.set, "telling"):
        yield


def _about_rows(connection: psycopg.Connection[Any], table: TableName) -> int | None:
    row = connection.execute(_ABOUT_ROWS, {"table": table.sql}).fetchone()
    return row[0] if row else None
