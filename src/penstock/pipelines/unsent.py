"""What a publication leaves out of what aggregates count: changes that never reach the log, so that
nobody would notice that they are missing. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from penstock.declarations import AggregateConfig, AggregateSource
from penstock.errors import InputUnfit
from penstock.names import TableName, quote
from penstock.pipelines.inputs import counting_sources, read_columns, unfit
from penstock.postgres.publications import (
    OPERATIONS,
    PublicationFacts,
    PublishedTable,
    publish_again,
    publish_generated,
    publish_operations,
    publish_via_root,
)
from penstock.postgres.tables import Column, TableFacts, set_logged
from penstock.printed_sql import PrintedSql, SqlKind
from penstock.words import few

# Stored generated columns can be sent.
GENERATED_VERSION = 18


def absent_errors(
    aggregates: Sequence[AggregateConfig],
    tables: Mapping[TableName, TableFacts],
    publication: PublicationFacts | None,
) -> Iterator[tuple[AggregateConfig, InputUnfit]]:
    """Tables that count and of which nothing is sent at all; without a publication nothing is
    captured, which capture tells.
    """
    for aggregate in aggregates:
        for source in aggregate.sources:
            wrong = _not_there(source.table, tables.get(source.table), publication)
            if source.rules and wrong is not None:
                yield aggregate, _uncounted(aggregate, source.table, *wrong)


def unsent_errors(
    aggregates: Sequence[AggregateConfig],
    tables: Mapping[TableName, TableFacts],
    publication: PublicationFacts,
    major: int,
) -> Iterator[tuple[AggregateConfig, InputUnfit]]:
    """What the publication leaves out of its tables, and which aggregate counts it.

    The remedy for a table holds for all of these aggregates.
    """
    for aggregate in aggregates:
        for source, table in counting_sources(aggregate, tables):
            for what, remedy in _not_all_sent(aggregate, source, table, publication, aggregates):
                yield aggregate, _uncounted(aggregate, table.name, what, remedy)
            for column in read_columns(aggregate, source, table):
                for what, remedy in _not_sent(column, table, publication, major, aggregates):
                    yield aggregate, unfit(aggregate, table, column, what, remedy)


def _uncounted(aggregate: AggregateConfig, table: TableName, what: str, remedy: str) -> InputUnfit:
    about = f"aggregate {aggregate.name} counts rows of {table}"
    return InputUnfit(f"{about}, {what}", remedy=remedy, table=table)


def _not_there(
    name: TableName, table: TableFacts | None, publication: PublicationFacts | None
) -> tuple[str, str] | None:
    if table is None:
        return (
            "which does not exist",
            (
                "If it was renamed, its changes come under the new name: give it the old one "
                "again, or name the new one in sources, and in tables in "
                "[source], after which only a reset will do. If it was dropped, take it out there"
            ),
        )
    if not table.publishable:
        return (
            f"which cannot be published ({table.spelled_kind}): its changes are not in the WAL",
            set_logged(name).after("Run")
            if table.persistence == "unlogged"
            else "Name a table instead in sources, and in tables in [source]",
        )
    if publication is not None and publication.entry(table) is None:
        return (
            f'which publication "{publication.name}" does not hold',
            "Run `penstock setup`, which adds it",
        )
    return None


def _not_all_sent(
    aggregate: AggregateConfig,
    source: AggregateSource,
    table: TableFacts,
    publication: PublicationFacts,
    aggregates: Sequence[AggregateConfig],
) -> Iterator[tuple[str, str]]:
    # One that was seeded is wrong after a truncate that it has not heard of.
    needed = source.rules | ({"truncate"} if aggregate.seed else set())
    if missing := [op for op in OPERATIONS if op in needed - publication.operations]:
        yield (
            f'and publication "{publication.name}" does not send {", ".join(missing)}',
            publish_operations(publication).after("Run"),
        )
    yield from _sent_elsewhere(table, publication)
    yield from _never_sent(table)
    held = publication.entry(table)
    if aggregate.seed and held is not None and held.row_filter:
        # The log has rows that come and go where they cross the filter; the table has all.
        yield (
            (
                f'of which publication "{publication.name}" sends only those with '
                f"{held.row_filter}, while seeding counts all"
            ),
            (
                _published_anew(table, held, publication, aggregates).after(
                    "Count only what changes from now on (seed = false), or give the aggregate a "
                    "filter instead and run"
                )
            ),
        )


def _never_sent(table: TableFacts) -> Iterator[tuple[str, str]]:
    """Partitions whose rows are read with the root's, and whose changes are not in the WAL."""
    if not (never := [leaf for leaf in table.leaves if not leaf.publishable]):
        return
    which = few(f"{leaf.name} ({leaf.spelled_kind})" for leaf in never)
    first = next((leaf for leaf in never if leaf.persistence == "unlogged"), never[0])
    yield (
        f"of which the changes of {which} are never in the WAL",
        set_logged(first.name).after("Run")
        if first.persistence == "unlogged"
        else f"Detach {first.name} from {table.name}, or count the other partitions by themselves",
    )


def _published_anew(
    table: TableFacts,
    held: PublishedTable,
    publication: PublicationFacts,
    aggregates: Sequence[AggregateConfig],
) -> PrintedSql:
    """The SQL that publishes a table with all that aggregates need of it, and else as it was."""
    counting = [
        (each, source)
        for each in aggregates
        for source, _ in counting_sources(each, {table.name: table})
    ]
    listed, rows = "", ""
    if held.columns is not None:
        read = (column for each, source in counting for column in read_columns(each, source, table))
        sent = (column.name for column in read if column.generated != "virtual")
        listed = f" ({', '.join(map(quote, dict.fromkeys((*held.columns, *sent))))})"
    if held.row_filter and not any(each.seed for each, _ in counting):
        rows = f" WHERE {held.row_filter}"
    return publish_again(SqlKind.PUBLISH_NEEDED, publication, held.name, f"{listed}{rows}")


def _sent_elsewhere(table: TableFacts, publication: PublicationFacts) -> Iterator[tuple[str, str]]:
    """Changes that reach the log under another name than the table's: nobody looks for them."""
    if publication.entry(table) is None:
        return
    sent = f'whose changes publication "{publication.name}" sends under the'
    under = publication.sent_under(table)
    if under is None:
        yield (
            f"{sent} names of its partitions",
            publish_via_root(publication).after("Run"),
        )
    elif under != table.name:
        yield (
            f"{sent} name of {under}, which is published too and of which it is a partition",
            (
                f'Name "{under}" in sources, and in tables in [source], instead of "{table.name}", '
                "with a filter if only some of its rows are to count"
            ),
        )


def _not_sent(
    column: Column,
    table: TableFacts,
    publication: PublicationFacts,
    major: int,
    aggregates: Sequence[AggregateConfig],
) -> Iterator[tuple[str, str]]:
    held = publication.entry(table)
    listed = held.columns if held is not None else None
    if column.generated == "virtual":
        yield (
            "a virtual generated column, which is never in the WAL",
            (
                "Read the columns that it is computed from, with an expression of Spark SQL; or "
                "make it STORED"
            ),
        )
    elif held is not None and listed is not None and column.name not in listed:
        yield (
            f'which publication "{publication.name}" does not send',
            _published_anew(table, held, publication, aggregates).after("Run"),
        )
    elif column.generated == "stored" and listed is None and not publication.generated_columns:
        instead = "read the columns that it is computed from, with an expression of Spark SQL"
        yield (
            f'a generated column, which publication "{publication.name}" does not send',
            publish_generated(publication.name).after(f"{instead.capitalize()}; or run")
            if major >= GENERATED_VERSION
            else f"PostgreSQL {major} cannot send it: {instead}",
        )
