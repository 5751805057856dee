"""An aggregate's target tables as their database has them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg

from penstock.declarations import AggregateConfig
from penstock.errors import TargetMismatch, TargetUnavailable
from penstock.names import TableName
from penstock.pipelines.merging import Column, TargetTable
from penstock.postgres.tables import TableFacts, read_tables

# Others' transactions and locks: doctor finds nothing wrong.
_BUSY = ("40", "55P03")
# A table, a column, a function, or a type that a function of the user's names is not found.
_UNDEFINED = ("42P01", "42703", "42883", "42704", "3F000")


def read_targets(
    connection: psycopg.Connection[Any], aggregate: AggregateConfig
) -> tuple[TargetTable, ...]:
    """Raises `TargetMismatch` for a table or a column that is missing; doctor looks closer."""
    tables = read_tables(connection, [target.table for target in aggregate.targets])
    found = []
    for target in aggregate.targets:
        types = _casts(tables.get(target.table))
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


def _casts(table: TableFacts | None) -> dict[str, str]:
    if table is None:
        return {}
    # For statements with parameters, in which % has a meaning.
    return {column.name: column.base.cast.replace("%", "%%") for column in table.columns}


def _missing(aggregate: str, table: TableName, column: str | None) -> TargetMismatch:
    what = f"target {table} of aggregate {aggregate} does not exist"
    if column is not None:
        what = f"target {table} of aggregate {aggregate} has no column {column}"
    return TargetMismatch(
        what,
        remedy="Run: penstock setup; or penstock doctor, which says what is wrong",
        table=table,
    )


@contextmanager
def usable(aggregate: str) -> Iterator[None]:
    """Statements on a target; what the server refuses is told as our own error."""
    try:
        yield
    except psycopg.Error as error:
        raise unusable(aggregate, error) from error


def unusable(aggregate: str, error: psycopg.Error) -> TargetUnavailable:
    what, said = type(error).__name__, error.diag.message_primary
    # The server's text may quote values: not while it only reads a statement, or where it refuses
    # a privilege, unless a function of the user's says so.
    refused = error.sqlstate == "42501" and error.diag.context is None
    if said and (refused or error.diag.statement_position is not None):
        what += f": {said}"
    remedy = "Run: penstock doctor, which says what is wrong with it"
    if error.sqlstate is not None and error.sqlstate.startswith(_BUSY):
        remedy = "Others write there, such as a reset: try again when they are done"
    elif error.sqlstate in _UNDEFINED and error.diag.context is not None:
        remedy = (
            "A function failed that a trigger on it calls: it runs with search_path = pg_catalog, "
            "pg_temp. Write names in it with their schemas, or give it a path of its own: "
            "ALTER FUNCTION … SET search_path = public"
        )
    return TargetUnavailable(
        f"the target of aggregate {aggregate} cannot be used: {what}",
        remedy=remedy,
        aggregate=aggregate,
    )
