"""The tables that aggregates count, as they are now; refused where counts would go wrong and
nothing in the stream would tell. M4.2, M4.6
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import psycopg

from penstock.config import Config
from penstock.declarations import AggregateConfig
from penstock.decode.stops import Stop, StopCode
from penstock.errors import InputUnfit, PenstockError, SourceError
from penstock.lsn import ZERO, Lsn
from penstock.names import TableName
from penstock.pipelines.old_values import partition_error
from penstock.pipelines.partition_fixes import fix_partitions
from penstock.pipelines.source_marks import Marks, marked_columns, marks_of
from penstock.pipelines.unsent import absent_errors, unsent_errors
from penstock.postgres.connect import connect
from penstock.postgres.failures import translated
from penstock.postgres.publications import PublicationFacts, read_publications
from penstock.postgres.table_marks import TableMark, read_marks
from penstock.postgres.tables import TableFacts, read_tables


@dataclass(frozen=True, slots=True)
class Unfit:
    """Why an aggregate cannot be counted, as its sources are."""

    error: PenstockError
    # For one that has begun: changes were lost.
    stop: Stop


@dataclass(frozen=True, slots=True)
class Sources:
    # Those that exist.
    tables: dict[TableName, TableFacts]
    # By aggregate; all others can be counted.
    unfit: Mapping[str, Unfit]
    # By aggregate.
    marks: Mapping[str, Marks]
    # A position of the log from before the catalog was read.
    known_up_to: Lsn = ZERO


@dataclass(frozen=True, slots=True)
class _Catalog:
    # Those that exist.
    tables: dict[TableName, TableFacts]
    # None: nothing is captured, which capture tells.
    publication: PublicationFacts | None
    major: int
    marks: Mapping[TableName, TableMark]


def read_sources(config: Config) -> Sources:
    """Read the catalog for all aggregates. The job does so at its start, and again and again:
    partitions come, and tables are renamed or taken out of the publication.
    """
    catalog = _read(config, config.aggregate)
    if config.source.fix_new_partitions:
        tables = fix_partitions(config.source, config.aggregate, catalog.tables)
        catalog = replace(catalog, tables=tables)
    marks = {each.name: marks_of(each, catalog.marks) for each in config.aggregate}
    return Sources(catalog.tables, _unfit(config.aggregate, catalog), marks)


def require_fit(
    config: Config, aggregate: AggregateConfig, connection: psycopg.Connection[Any] | None = None
) -> None:
    """Raises what would stop an aggregate, before it is seeded: what comes after the seeding would
    be lost. `connection` has the snapshot that is read; without it, the catalog is as it is now.
    """
    with translated("read the source's catalog"):
        if connection is None:
            catalog = _read(config, [aggregate])
        else:
            catalog = _catalog(connection, config, [aggregate])
    for found in _unfit([aggregate], catalog).values():
        raise found.error


def source_warnings(config: Config, aggregates: Sequence[AggregateConfig]) -> list[PenstockError]:
    """What would stop these aggregates, for a command that verifies: it does so all the same, but
    what comes afterwards would be counted wrongly.

    A server that cannot be asked is told by what the command needs it for.
    """
    try:
        found = _unfit(aggregates, _read(config, aggregates))
    except SourceError:
        return []
    return [each.error for each in found.values()]


def _read(config: Config, aggregates: Sequence[AggregateConfig]) -> _Catalog:
    with connect(config.source.conninfo) as source, translated("read the source's catalog"):
        # At one moment: a table that is moved in the publication, in one transaction, is never out.
        source.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        return _catalog(source, config, aggregates)


def _catalog(
    source: psycopg.Connection[Any], config: Config, aggregates: Sequence[AggregateConfig]
) -> _Catalog:
    names = [table.table for each in aggregates for table in each.sources]
    tables = read_tables(source, names)
    wanted = config.source.publication
    publication = None
    if config.source.publishes:
        publication = read_publications(source, wanted, tables.values()).get(wanted)
    columns = {name for each in aggregates for name in marked_columns(each)}
    marks = read_marks(source, tables.values(), columns)
    return _Catalog(tables, publication, source.info.server_version // 10_000, marks)


def _unfit(aggregates: Sequence[AggregateConfig], catalog: _Catalog) -> dict[str, Unfit]:
    unsent = list(absent_errors(aggregates, catalog.tables, catalog.publication))
    if catalog.publication is not None:
        unsent += unsent_errors(aggregates, catalog.tables, catalog.publication, catalog.major)
    found = {}
    for aggregate in aggregates:
        ours = [error for each, error in unsent if each is aggregate]
        if ours:
            found[aggregate.name] = _not_sent(aggregate, ours)
        elif (differs := partition_error([aggregate], catalog.tables)) is not None:
            stop = Stop(StopCode.PARTITION_DIFFERS, ", ".join(map(str, differs.roots)))
            found[aggregate.name] = Unfit(differs, stop)
    return found


def _not_sent(aggregate: AggregateConfig, found: Sequence[InputUnfit]) -> Unfit:
    remedies = "\n".join(dict.fromkeys(error.remedy for error in found))
    first = found[0]
    return Unfit(
        InputUnfit(
            "; ".join(error.problem for error in found),
            remedy=f"{remedies}\nThen, if it has begun: penstock reset {aggregate.name}",
            aggregate=aggregate.name,
        ),
        Stop(StopCode.NOT_SENT, str(first.table or ""), first.column),
    )
