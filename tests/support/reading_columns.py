"""A table's rows as seeding reads them: in columns, packed by the server or copied."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from psycopg import sql

from penstock.decode.types import Kind
from penstock.names import TableName
from penstock.pipelines import source_columns
from penstock.pipelines.binding import bind, types_of
from penstock.pipelines.rows_read import Rows
from penstock.pipelines.source_columns import rows_in_columns
from penstock.pipelines.source_rows import printed_alike
from penstock.postgres import packing
from penstock.postgres.snapshots import Snapshot, keep_as_they_were, snapshot
from penstock.postgres.tables import read_tables
from support.database import Database
from support.targets import declared


def read(source: Snapshot, *columns: str) -> Iterator[Rows]:
    config = declared(dimensions=list(columns))
    tables = [each.table for each in config.sources]
    keep_as_they_were(source.connection, tables)
    bound = bind(config, types_of(read_tables(source.connection, tables)), source.lsn)
    yield from rows_in_columns(source.connection, bound, config.sources[0])


def values(rows: Sequence[Rows]) -> list[tuple[Any, ...]]:
    """Of each row its values, as Arrow prints them, and which of them are bad; by the columns'
    names.
    """
    found = []
    for each in rows:
        columns: list[Sequence[Any]] = []
        for key in sorted({*each.own, *each.shared}, key=lambda key: key.name):
            array = each.by_row(key)
            assert array.type == key.kind.arrow
            array.validate(full=True)
            is_float = key.kind.kind in (Kind.REAL, Kind.DOUBLE)
            columns.append((array.cast(pa.string()) if is_float else array).to_pylist())
            columns.append(each.bad.get(key, np.zeros(each.count, bool)).tolist())
        found += list(zip(*columns, strict=True))
    return sorted(found, key=repr)


class Together(packing.Packing):
    """Rows come together by all columns by which they may."""

    def packed(self, pages: sql.Composable, shared: frozenset[int] = frozenset()) -> Any:
        alike = printed_alike(self._connection, TableName("public", "notifications"))
        names = [column.name.as_string().strip('"') for column in self._columns]
        self.shared = frozenset(place for place, name in enumerate(names) if name in alike)
        return super().packed(pages, self.shared)


def packed_and_copied(
    database: Database, *columns: str
) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]:
    with snapshot(database.dsn()) as source, pytest.MonkeyPatch.context() as patched:
        patched.setattr(source_columns, "copied_rows", None)
        packed = values(list(read(source, *columns)))
        patched.setattr(source_columns, "Packing", Together)
        assert values(list(read(source, *columns))) == packed
        patched.undo()
        patched.setattr(source_columns, "leaf_pages", lambda *_: {})
        return packed, values(list(read(source, *columns)))


def explain(connection: Any, plans: list[str], patched: pytest.MonkeyPatch) -> None:
    """Notes how the server reads pages."""
    execute = connection.execute

    def explained(statement: Any, *arguments: Any, **options: Any) -> Any:
        if isinstance(statement, sql.Composed) and "ctid" in statement.as_string():
            plan = execute(sql.SQL("EXPLAIN (ANALYZE, TIMING OFF) ") + statement).fetchall()
            plans.append("\n".join(line for (line,) in plan))
        return execute(statement, *arguments, **options)

    patched.setattr(connection, "execute", explained)
