"""At the start of a pipeline: its targets are ready, or an error says what to do first."""

from __future__ import annotations

import psycopg

from penstock.declarations import AggregateConfig
from penstock.errors import TargetMismatch
from penstock.pipelines.bookkeeping import SCHEMA
from penstock.pipelines.target_checks import target_errors
from penstock.pipelines.target_facts import (
    BOOKKEEPING,
    check_target_version,
    read_target_tables,
)
from penstock.pipelines.targets import Tables, targets_of


def require_targets(
    connection: psycopg.Connection, aggregate: AggregateConfig, tables: Tables
) -> None:
    """Raises `TargetMismatch` where one is missing or has changed since set-up, so that nothing is
    written that would be wrong. `tables` are the sources.
    """
    check_target_version(connection.info.server_version)
    targets = targets_of(aggregate)
    wanted = (*BOOKKEEPING, *(target.table for target in targets))
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
    for target in targets:
        for error in target_errors(target, found[target.table], tables):
            raise error
