"""The databases that targets are in: which there are, how set-up reaches each, what it has."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

import psycopg

from penstock.config import Config
from penstock.declarations import AggregateConfig
from penstock.ops.facts import SourceFacts
from penstock.ops.steps import SOURCE
from penstock.pipelines.bookkeeping import SCHEMA
from penstock.pipelines.target_facts import TargetDatabase, read_target_database
from penstock.pipelines.targets import Target, targets_of
from penstock.postgres.connect import connect
from penstock.postgres.failures import translated
from penstock.postgres.pooler import require_own_session
from penstock.sections import Dsn


@dataclass(frozen=True, slots=True)
class Destination:
    """A database with targets, as somebody sees it."""

    # The section of the configuration that leads there.
    name: str
    # Each with the role that will write its targets.
    aggregates: tuple[tuple[AggregateConfig, str], ...]
    facts: TargetDatabase

    @property
    def targets(self) -> tuple[tuple[Target, str], ...]:
        return tuple(
            (target, writer)
            for aggregate, writer in self.aggregates
            for target in targets_of(aggregate)
        )

    def is_source(self, facts: SourceFacts) -> bool:
        here = (facts.server.system_id, facts.server.database)
        return (self.facts.system_id, self.facts.database) == here

    @property
    def missing_targets(self) -> tuple[Target, ...]:
        return tuple(target for target, _ in self.targets if target.table not in self.facts.tables)

    @property
    def missing_schemas(self) -> tuple[str, ...]:
        wanted = (SCHEMA, *(target.table.schema for target, _ in self.targets))
        return tuple(name for name in dict.fromkeys(wanted) if name not in self.facts.schemas)


def find_destinations(config: Config, facts: SourceFacts) -> list[tuple[Destination, Dsn]]:
    """Each with what set-up connects with. `facts` were read by the role that sets up.

    In the source's own database set-up works with its own role, and gives the one of `target_dsn`
    what it needs; elsewhere it has nothing but `target_dsn`.
    """
    here = (facts.server.system_id, facts.server.database)
    found: dict[tuple[int, str], list[tuple[AggregateConfig, str]]] = defaultdict(list)
    ways: dict[tuple[int, str], tuple[str, Dsn]] = {here: (SOURCE, config.source.setup_conninfo)}
    for aggregate in config.aggregate:
        place, writer = here, facts.capture_user
        if aggregate.target_dsn is not None:
            dsn = aggregate.conninfo(config.source.conninfo)
            with connect(dsn) as connection:
                require_own_session(connection, dsn)
                place, writer = _place(connection), connection.info.user
            ways.setdefault(place, (f"[[aggregate]] {aggregate.name}", dsn))
        found[place].append((aggregate, writer))
    destinations = []
    for place, aggregates in found.items():
        name, dsn = ways[place]
        with connect(dsn) as connection:
            destinations.append((read_destination(connection, name, aggregates), dsn))
    return destinations


def read_destination(
    connection: psycopg.Connection, name: str, aggregates: Iterable[tuple[AggregateConfig, str]]
) -> Destination:
    """`aggregates`: each with the role that writes its targets."""
    held = tuple(aggregates)
    dimensions = [each for one, _ in held for each in one.dimensions.values()]
    facts = read_target_database(
        connection,
        [target.table for one, _ in held for target in one.targets],
        writers=[writer for _, writer in held],
        types={each.type for each in dimensions if each.type is not None},
        aggregates=[one.name for one, _ in held],
    )
    return Destination(name, held, facts)


def _place(connection: psycopg.Connection) -> tuple[int, str]:
    with translated("ask the server who it is"):
        row = connection.execute(
            "SELECT (SELECT system_identifier FROM pg_control_system()), current_database()"
        ).fetchone()
    if row is None:  # a SELECT without FROM always has one row
        raise RuntimeError("the server told nothing about itself")
    return row[0], row[1]
