"""At the start of a pipeline: its targets are ready, or an error says what to do first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import psycopg

from penstock.declarations import AggregateConfig
from penstock.errors import TargetMismatch
from penstock.names import TableName
from penstock.pipelines.bookkeeping import SCHEMA
from penstock.pipelines.target_checks import target_errors
from penstock.pipelines.target_facts import (
    BOOKKEEPING,
    TargetFacts,
    check_target_version,
    read_target_tables,
)
from penstock.pipelines.targets import Tables, targets_of


def require_bookkeeping(connection: psycopg.Connection, aggregate: AggregateConfig) -> None:
    """Raises `TargetMismatch` where one of Penstock's own tables is missing."""
    check_target_version(connection.info.server_version)
    _require(connection, aggregate, BOOKKEEPING)


def require_targets(
    connection: psycopg.Connection, aggregate: AggregateConfig, tables: Tables
) -> None:
    """Raises `TargetMismatch` where one is missing or has changed since set-up, so that nothing is
    written that would be wrong. `tables` are the sources.
    """
    require_bookkeeping(connection, aggregate)
    targets = targets_of(aggregate)
    found = _require(connection, aggregate, [target.table for target in targets])
    for target in targets:
        for error in target_errors(target, found[target.table], tables):
            raise error


def _require(
    connection: psycopg.Connection, aggregate: AggregateConfig, wanted: Sequence[TableName]
) -> Mapping[TableName, TargetFacts]:
    found = read_target_tables(connection, wanted)
    for name in wanted:
        if name not in found:
            what = "the table" if name.schema == SCHEMA else "target"
            raise TargetMismatch(
                f"{what} {name} of aggregate {aggregate.name} does not exist in database "
                f'"{connection.info.dbname}"',
                remedy="Run `penstock setup`",
                table=name,
                aggregate=aggregate.name,
            )
    return found
