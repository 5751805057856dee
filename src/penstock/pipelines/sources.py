"""The tables that aggregates count, as they are now; refused where counts would go wrong and
nothing in the stream would tell. M4.2, M4.6
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from penstock.config import Config
from penstock.declarations import AggregateConfig
from penstock.errors import InputUnfit, PenstockError, SourceError
from penstock.names import TableName
from penstock.pipelines.old_values import corrected, partition_error
from penstock.pipelines.unsent import absent_errors, unsent_errors
from penstock.postgres.connect import connect
from penstock.postgres.failures import translated
from penstock.postgres.publications import PublicationFacts, read_publications
from penstock.postgres.tables import TableFacts, read_tables


@dataclass(frozen=True, slots=True)
class _Catalog:
    # Those that exist.
    tables: dict[TableName, TableFacts]
    # None: nothing is captured, which capture tells.
    publication: PublicationFacts | None
    major: int


def read_sources(config: Config) -> dict[TableName, TableFacts]:
    """The job asks at its start, and again and again: partitions come, and tables are renamed or
    taken out of the publication.
    """
    catalog = _read(config, config.aggregate)
    for error in _source_errors(config.aggregate, catalog):
        raise error
    return catalog.tables


def source_warnings(config: Config, aggregates: Sequence[AggregateConfig]) -> list[PenstockError]:
    """What would stop the job, for a command that seeds or verifies: it does so all the same, but
    what comes afterwards would be counted wrongly.

    A server that cannot be asked is told by what the command needs it for.
    """
    try:
        return list(_source_errors(aggregates, _read(config, aggregates)))
    except SourceError:
        return []


def _read(config: Config, aggregates: Sequence[AggregateConfig]) -> _Catalog:
    names = [source.table for each in aggregates for source in each.sources]
    with connect(config.source.conninfo) as source, translated("read the source's catalog"):
        # At one moment: a table that is moved in the publication, in one transaction, is never out.
        source.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        tables = read_tables(source, names)
        wanted = config.source.publication
        publication = read_publications(source, wanted, tables.values()).get(wanted)
        return _Catalog(tables, publication, source.info.server_version // 10_000)


def _source_errors(
    aggregates: Sequence[AggregateConfig], catalog: _Catalog
) -> Iterator[PenstockError]:
    if (unseen := _unseen(aggregates, catalog)) is not None:
        yield unseen
    if (differs := partition_error(aggregates, catalog.tables)) is not None:
        yield differs


def _unseen(aggregates: Sequence[AggregateConfig], catalog: _Catalog) -> InputUnfit | None:
    """One for all aggregates: one remedy may mend all, and then nothing tells of the others."""
    found = list(absent_errors(aggregates, catalog.tables, catalog.publication))
    if catalog.publication is not None:
        found += unsent_errors(aggregates, catalog.tables, catalog.publication, catalog.major)
    if not found:
        return None
    wrong = {aggregate.name: aggregate for aggregate, _ in found}
    remedies = ". ".join(dict.fromkeys(error.remedy for _, error in found))
    return InputUnfit(
        "; ".join(error.problem for _, error in found),
        remedy=f"{remedies}. Then correct what was counted: {corrected(wrong.values())}",
        aggregates=tuple(wrong),
    )
