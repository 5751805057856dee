"""Gives new partitions the replica identity of their root, with `fix_new_partitions`. M4.2

A new partition has DEFAULT, whatever its root has, and until that is changed UPDATE and DELETE
leave out old values that an aggregate must subtract. In an empty partition nothing was changed yet,
so its identity is set and all is well. In one with rows, what was changed there before may have
been counted wrongly: its aggregates stop as they do without the setting. The identity of such a
partition is set only after the stops are written, because nothing else shows that they are due.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import psycopg
import structlog

from penstock.config import SourceConfig
from penstock.declarations import AggregateConfig
from penstock.errors import PenstockError
from penstock.names import TableName
from penstock.pipelines.old_values import lacking_leaves, wanted_like_root
from penstock.postgres.connect import connect
from penstock.postgres.failures import translated
from penstock.postgres.identity import Wanted
from penstock.postgres.tables import TableFacts

_LOG = structlog.get_logger()

# ALTER TABLE waits for those who use the partition, and the application waits behind it.
_LOCK_TIMEOUT_MS = 2000
# After a failure, so that neither the log nor the application has much of it.
_PAUSE_S = 600.0
# By database and leaf: when it is tried again. For all looks of the process.
_try_again_at: dict[tuple[str, int], float] = {}
_IS_EMPTY = "SELECT pg_catalog.pg_relation_size(%s::oid) = 0"


def fix_partitions(
    source: SourceConfig,
    aggregates: Iterable[AggregateConfig],
    tables: Mapping[TableName, TableFacts],
) -> dict[TableName, TableFacts]:
    """Set the identity of empty leaves that lack what aggregates need.

    Returns the tables, in which these leaves have their new identity. All others are as they were,
    so that aggregates stop for them.
    """
    fixed = {
        name: wanted.applied_to(leaf)
        for name, (leaf, wanted, _) in _lacking(aggregates, tables).items()
        if _is_fixed(source, leaf, wanted, with_rows=False)
    }
    return {
        name: replace(root, leaves=tuple(fixed.get(leaf.name, leaf) for leaf in root.leaves))
        for name, root in tables.items()
    }


def fix_filled_partitions(
    source: SourceConfig,
    aggregates: Iterable[AggregateConfig],
    tables: Mapping[TableName, TableFacts],
    is_settled: Callable[[str], bool],
) -> None:
    """Set the identity of leaves with rows, if all aggregates that need it have stopped for it.

    `is_settled` says so of an aggregate, by its name.
    """
    for leaf, wanted, names in _lacking(aggregates, tables).values():
        if all(map(is_settled, names)):
            _is_fixed(source, leaf, wanted, with_rows=True)


def _lacking(
    aggregates: Iterable[AggregateConfig], tables: Mapping[TableName, TableFacts]
) -> dict[TableName, tuple[TableFacts, Wanted, list[str]]]:
    """Leaves, the identity that each should have, and the aggregates that need it."""
    found: dict[TableName, tuple[TableFacts, Wanted, list[str]]] = {}
    for aggregate in aggregates:
        for root, leaf in lacking_leaves(aggregate, tables):
            if (wanted := wanted_like_root(root, leaf)) is not None:
                _, _, names = found.setdefault(leaf.name, (leaf, wanted, []))
                names.append(aggregate.name)
    return found


def _is_fixed(source: SourceConfig, leaf: TableFacts, wanted: Wanted, *, with_rows: bool) -> bool:
    """Set the identity, if the leaf has no rows or `with_rows`; return whether it was set."""
    place = (str(source.setup_conninfo), leaf.oid)
    if time.monotonic() < _try_again_at.get(place, 0.0):
        return False
    statement = wanted.sql(leaf)
    try:
        with (
            connect(source.setup_conninfo) as connection,
            translated(f"set the replica identity of {leaf.name}"),
        ):
            # First without a lock, so that nobody waits for one that is left alone.
            if not (with_rows or _is_empty(connection, leaf)):
                return False
            with connection.transaction():
                connection.execute(f"SET LOCAL lock_timeout = {_LOCK_TIMEOUT_MS}".encode())
                connection.execute(statement.encode())
                # Nobody else writes to it now.
                is_empty = _is_empty(connection, leaf)
                if not (with_rows or is_empty):
                    raise psycopg.Rollback
    except PenstockError as error:
        _try_again_at[place] = time.monotonic() + _PAUSE_S
        _LOG.error(
            "the replica identity of a partition could not be set",
            partition=str(leaf.name),
            reason=error.problem,
            remedy=f"The role of {source.setup_conninfo.origin} must own it. As its owner: "
            f"{statement}",
        )
        return False
    if with_rows or is_empty:
        _LOG.warning(
            "the replica identity of a partition was set",
            partition=str(leaf.name),
            sql=statement,
            was_empty=is_empty,
        )
        return True
    return False


def _is_empty(connection: psycopg.Connection[Any], leaf: TableFacts) -> bool:
    row = connection.execute(_IS_EMPTY, [leaf.oid]).fetchone()
    return bool(row and row[0])
