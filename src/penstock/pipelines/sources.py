"""The tables that aggregates count, as they are now; refused where counts would go wrong and
nothing in the stream would tell. M4.2, M4.6
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from penstock.config import Config
from penstock.declarations import AggregateConfig
from penstock.errors import InputUnfit, PenstockError, SourceError
from penstock.names import TableName
from penstock.pipelines.inputs import counting_sources, sent_elsewhere
from penstock.pipelines.old_values import corrected, partition_error
from penstock.postgres.connect import connect
from penstock.postgres.failures import translated
from penstock.postgres.publications import PublicationFacts, read_publications
from penstock.postgres.tables import TableFacts, read_tables


def read_sources(config: Config) -> dict[TableName, TableFacts]:
    """Those that exist. The job asks at its start, and again and again: partitions come."""
    tables, publication = _read(config, config.aggregate)
    for error in source_errors(config.aggregate, tables, publication):
        raise error
    return tables


def source_warnings(config: Config, aggregates: Sequence[AggregateConfig]) -> list[PenstockError]:
    """What would stop the job, for a command that seeds or verifies: it does so all the same, but
    what comes afterwards would be counted wrongly.

    A server that cannot be asked is told by what the command needs it for.
    """
    try:
        return list(source_errors(aggregates, *_read(config, aggregates)))
    except SourceError:
        return []


def _read(
    config: Config, aggregates: Sequence[AggregateConfig]
) -> tuple[dict[TableName, TableFacts], PublicationFacts | None]:
    names = [source.table for each in aggregates for source in each.sources]
    with connect(config.source.conninfo) as source, translated("read the source's catalog"):
        tables = read_tables(source, names)
        wanted = config.source.publication
        return tables, read_publications(source, wanted, tables.values()).get(wanted)


def source_errors(
    aggregates: Sequence[AggregateConfig],
    tables: Mapping[TableName, TableFacts],
    publication: PublicationFacts | None,
) -> Iterator[PenstockError]:
    """Without a publication nothing is captured, which capture tells."""
    if publication is not None and (unseen := _unseen(aggregates, tables, publication)) is not None:
        yield unseen
    if (differs := partition_error(aggregates, tables)) is not None:
        yield differs


def _unseen(
    aggregates: Sequence[AggregateConfig],
    tables: Mapping[TableName, TableFacts],
    publication: PublicationFacts,
) -> InputUnfit | None:
    """One for all aggregates: one remedy may mend all, and then nothing tells of the others."""
    found = [
        (aggregate, f"aggregate {aggregate.name} counts rows of {table.name}, {what}", remedy)
        for aggregate in aggregates
        for _, table in counting_sources(aggregate, tables)
        for what, remedy in sent_elsewhere(table, publication)
    ]
    if not found:
        return None
    wrong = {aggregate.name: aggregate for aggregate, _, _ in found}
    remedies = ". ".join(dict.fromkeys(remedy for _, _, remedy in found))
    return InputUnfit(
        "; ".join(problem for _, problem, _ in found),
        remedy=f"{remedies}. Then correct what was counted: {corrected(wrong.values())}",
    )
