"""Gives new partitions the replica identity of their root, with `fix_new_partitions`. M4.2

A new partition has DEFAULT, whatever its root has, and until that is changed UPDATE and DELETE
leave out old values that an aggregate must subtract. In an empty partition nothing was changed yet,
so its identity is set and all is well. In one with rows it is set as well, but what was changed
there before may have been counted wrongly: its aggregates stop as they do without the setting.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import replace

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
    """Set the identity of leaves that lack what aggregates need.

    Returns the tables, in which leaves that were empty have their new identity. All others are as
    they were, so that aggregates stop for them.
    """
    lacking = {
        leaf.name: (leaf, wanted)
        for aggregate in aggregates
        for root, leaf in lacking_leaves(aggregate, tables)
        if (wanted := wanted_like_root(root, leaf)) is not None
    }
    fixed = {
        name: wanted.applied_to(leaf)
        for name, (leaf, wanted) in lacking.items()
        if _was_empty(source, leaf, wanted)
    }
    return {
        name: replace(root, leaves=tuple(fixed.get(leaf.name, leaf) for leaf in root.leaves))
        for name, root in tables.items()
    }


def _was_empty(source: SourceConfig, leaf: TableFacts, wanted: Wanted) -> bool:
    """Set the identity; return whether the leaf had no rows by then."""
    place = (str(source.setup_conninfo), leaf.oid)
    if time.monotonic() < _try_again_at.get(place, 0.0):
        return False
    statement = wanted.sql(leaf)
    try:
        with (
            connect(source.setup_conninfo) as connection,
            translated(f"set the replica identity of {leaf.name}"),
            connection.transaction(),
        ):
            connection.execute(f"SET LOCAL lock_timeout = {_LOCK_TIMEOUT_MS}".encode())
            connection.execute(statement.encode())
            # Nobody else writes to it now.
            row = connection.execute(_IS_EMPTY, [leaf.oid]).fetchone()
            is_empty = bool(row and row[0])
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
    _LOG.warning(
        "the replica identity of a partition was set",
        partition=str(leaf.name),
        sql=statement,
        was_empty=is_empty,
    )
    return is_empty
