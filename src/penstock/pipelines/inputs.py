"""The columns that an aggregate reads, in the tables as they are: which, and what is wrong with
them. Pure; set-up refuses what doctor reports.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from penstock.declarations import AggregateConfig, AggregateSource
from penstock.decode.types import TEXT, Kind, ValueType, common_type, named_type
from penstock.errors import InputUnfit, PenstockError
from penstock.names import TableName, quote
from penstock.postgres.column_types import BaseType
from penstock.postgres.publications import OPERATIONS, PublicationFacts, PublishedTable
from penstock.postgres.tables import Column, TableFacts

INTEGERS = ("int2", "int4", "int8")
# A sum has ten digits more than its values, and Spark's decimals have 38.
MAX_SUMMED_PRECISION = 28
# Stored generated columns can be sent.
GENERATED_VERSION = 18
# Types of which two values are equal for the server just when Spark takes them for equal.
_GROUPABLE = frozenset(
    "bool int2 int4 int8 oid float4 float8 numeric text varchar bpchar char name uuid date "
    "timestamp timestamptz time bytea bit varbit inet cidr macaddr macaddr8 pg_lsn xid8".split()
)


def counting_sources(
    aggregate: AggregateConfig, tables: Mapping[TableName, TableFacts]
) -> Iterator[tuple[AggregateSource, TableFacts]]:
    """The sources with any rule on, of which the table exists."""
    for source in aggregate.sources:
        if source.rules and source.table in tables:
            yield source, tables[source.table]


def input_column(source: AggregateSource, table: TableFacts, name: str) -> Column | None:
    """The table's column for a name in the aggregate: the first of its names that exists."""
    by_name = {column.name: column for column in table.columns}
    return next((by_name[each] for each in source.names(name) if each in by_name), None)


def input_types(
    aggregate: AggregateConfig, tables: Mapping[TableName, TableFacts], name: str
) -> tuple[BaseType, ...]:
    """The different types that an input has in the sources."""
    columns = (
        input_column(source, table, name) for source, table in counting_sources(aggregate, tables)
    )
    return tuple(dict.fromkeys(column.base for column in columns if column is not None))


def value_type(column: Column) -> ValueType:
    """As the log will give it: of a domain the base type, without the domain's modifier."""
    if not column.base.builtin:
        return TEXT
    return named_type(column.base.name, -1 if column.is_domain else column.base.modifier)


def reads_generated(aggregate: AggregateConfig, tables: Mapping[TableName, TableFacts]) -> bool:
    """Whether an input is a stored generated column somewhere."""
    columns = (
        input_column(source, table, name)
        for source, table in counting_sources(aggregate, tables)
        for name in aggregate.inputs
    )
    return any(column is not None and column.generated == "stored" for column in columns)


def can_group(column: Column) -> bool:
    """It can be a dimension."""
    return not any(True for _ in _not_grouped(column))


def can_sum(column: Column) -> bool:
    """It can be added up."""
    return not any(True for _ in _not_summed(column))


def input_errors(
    aggregate: AggregateConfig,
    tables: Mapping[TableName, TableFacts],
    publication: PublicationFacts,
    major: int,
) -> Iterator[PenstockError]:
    """All that is wrong; `publication` is ours, as it is or as set-up will make it."""
    for _, unsent in unsent_errors([aggregate], tables, publication, major):
        yield unsent
    for source, table in counting_sources(aggregate, tables):
        for name in aggregate.inputs:
            column = input_column(source, table, name)
            if column is None:
                yield _missing(aggregate, source, name)
                continue
            for what, remedy in (
                *(_not_summed(column) if name in aggregate.summed else ()),
                *(_not_grouped(column) if _is_dimension(aggregate, name) else ()),
            ):
                yield _unfit(aggregate, table, column, what, remedy)
    for name in aggregate.inputs:
        yield from _not_together(aggregate, tables, name)


def unsent_errors(
    aggregates: Sequence[AggregateConfig],
    tables: Mapping[TableName, TableFacts],
    publication: PublicationFacts,
    major: int,
) -> Iterator[tuple[AggregateConfig, InputUnfit]]:
    """What the publication leaves out of its tables, and which aggregate counts it: changes that
    never reach the log, so that nobody would notice that they are missing.

    The remedy for a table holds for all of these aggregates.
    """
    for aggregate in aggregates:
        for source, table in counting_sources(aggregate, tables):
            for what, remedy in _not_all_sent(aggregate, source, table, publication, aggregates):
                about = f"aggregate {aggregate.name} counts rows of {table.name}"
                yield aggregate, InputUnfit(f"{about}, {what}", remedy=remedy, table=table.name)
            for name in aggregate.inputs:
                if (column := input_column(source, table, name)) is not None:
                    for what, remedy in _not_sent(column, table, publication, major, aggregates):
                        yield aggregate, _unfit(aggregate, table, column, what, remedy)


def _unfit(
    aggregate: AggregateConfig, table: TableFacts, column: Column, what: str, remedy: str
) -> InputUnfit:
    about = f"aggregate {aggregate.name} reads column {column.name} of {table.name}"
    return InputUnfit(f"{about}, {what}", remedy=remedy, table=table.name, column=column.name)


def _not_together(
    aggregate: AggregateConfig, tables: Mapping[TableName, TableFacts], name: str
) -> Iterator[InputUnfit]:
    """Types in several tables that are not read as one; what is wrong with each is told before."""
    found = {
        table.name: column
        for source, table in counting_sources(aggregate, tables)
        if (column := input_column(source, table, name)) is not None
    }
    if not found:
        return
    common = common_type([value_type(column) for column in found.values()])
    summed = name in aggregate.summed and all(map(can_sum, found.values()))
    if common is None:
        problem = "do not go together"
    elif summed and common.kind is Kind.DECIMAL and common.precision > MAX_SUMMED_PRECISION:
        problem = f"have more than {MAX_SUMMED_PRECISION} digits together, too many for sums"
    else:
        return
    types = " and ".join(f"{column.type} in {table}" for table, column in found.items())
    yield InputUnfit(
        f"aggregate {aggregate.name} reads column {name}, which is {types}: these {problem}",
        remedy=(
            "Give the columns one type (ALTER COLUMN … TYPE, which rewrites the table), or make "
            "an aggregate for each"
        ),
        column=name,
    )


def _not_all_sent(
    aggregate: AggregateConfig,
    source: AggregateSource,
    table: TableFacts,
    publication: PublicationFacts,
    aggregates: Sequence[AggregateConfig],
) -> Iterator[tuple[str, str]]:
    name = quote(publication.name)
    # One that was seeded is wrong after a truncate that it has not heard of.
    needed = source.rules | ({"truncate"} if aggregate.seed else set())
    if missing := [op for op in OPERATIONS if op in needed - publication.operations]:
        yield (
            f'and publication "{publication.name}" does not send {", ".join(missing)}',
            f"Run: ALTER PUBLICATION {name} SET (publish = '{', '.join(OPERATIONS)}')",
        )
    yield from _sent_elsewhere(table, publication)
    held = publication.entry(table)
    if aggregate.seed and held is not None and held.row_filter:
        # The log has rows that come and go where they cross the filter; the table has all.
        yield (
            (
                f'of which publication "{publication.name}" sends only those with '
                f"{held.row_filter}, while seeding counts all"
            ),
            (
                f"Run: {_published_anew(table, held, publication, aggregates)}; and give the "
                "aggregate a filter instead. Or count only what changes from now on: seed = false"
            ),
        )


def _published_anew(
    table: TableFacts,
    held: PublishedTable,
    publication: PublicationFacts,
    aggregates: Sequence[AggregateConfig],
) -> str:
    """The SQL that publishes a table with all that aggregates need of it, and else as it was."""
    counting = [
        (each, source)
        for each in aggregates
        for source, _ in counting_sources(each, {table.name: table})
    ]
    listed, rows = "", ""
    if held.columns is not None:
        read = (
            input_column(source, table, name) for each, source in counting for name in each.inputs
        )
        sent = (
            column.name for column in read if column is not None and column.generated != "virtual"
        )
        listed = f" ({', '.join(map(quote, dict.fromkeys((*held.columns, *sent))))})"
    if held.row_filter and not any(each.seed for each, _ in counting):
        rows = f" WHERE {held.row_filter}"
    name, sql = quote(publication.name), held.name.sql
    return (
        f"BEGIN; ALTER PUBLICATION {name} DROP TABLE {sql}; "
        f"ALTER PUBLICATION {name} ADD TABLE {sql}{listed}{rows}; COMMIT"
    )


def _sent_elsewhere(table: TableFacts, publication: PublicationFacts) -> Iterator[tuple[str, str]]:
    """Changes that reach the log under another name than the table's: nobody looks for them."""
    if publication.entry(table) is None:
        return
    sent = f'whose changes publication "{publication.name}" sends under the'
    under = publication.sent_under(table)
    if under is None:
        yield (
            f"{sent} names of its partitions",
            (
                f"Run: ALTER PUBLICATION {quote(publication.name)} "
                "SET (publish_via_partition_root = true)"
            ),
        )
    elif under != table.name:
        yield (
            f"{sent} name of {under}, which is published too and of which it is a partition",
            (
                f'Name "{under}" in sources, and in tables in [source], instead of "{table.name}", '
                "with a filter if only some of its rows are to count"
            ),
        )


def _is_dimension(aggregate: AggregateConfig, name: str) -> bool:
    return any(each.plain == name for each in aggregate.dimensions.values())


def _missing(aggregate: AggregateConfig, source: AggregateSource, name: str) -> InputUnfit:
    names = " or ".join(source.names(name))
    return InputUnfit(
        f"aggregate {aggregate.name} reads column {names} of {source.table}, which has none",
        remedy=(
            f"Correct the name in [[aggregate]] {aggregate.name}, or tell what {source.table} "
            f'calls it: aliases = {{ {quote(name)} = ["its name"] }} in the entry of sources'
        ),
        table=source.table,
        column=name,
    )


def _not_sent(
    column: Column,
    table: TableFacts,
    publication: PublicationFacts,
    major: int,
    aggregates: Sequence[AggregateConfig],
) -> Iterator[tuple[str, str]]:
    name = quote(publication.name)
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
            f"Run: {_published_anew(table, held, publication, aggregates)}",
        )
    elif column.generated == "stored" and listed is None and not publication.generated_columns:
        instead = "read the columns that it is computed from, with an expression of Spark SQL"
        yield (
            f'a generated column, which publication "{publication.name}" does not send',
            f"Run: ALTER PUBLICATION {name} SET (publish_generated_columns = stored); or {instead}"
            if major >= GENERATED_VERSION
            else f"PostgreSQL {major} cannot send it: {instead}",
        )


def _not_summed(column: Column) -> Iterator[tuple[str, str]]:
    base, limits = column.base, column.base.limits
    kinds = f"smallint, integer, bigint and numeric of up to {MAX_SUMMED_PRECISION} digits"
    # The stream tells the digits of a numeric, but not those of a domain over one.
    told = limits is not None and not column.is_domain
    if base.name in INTEGERS or (told and limits and max(limits) <= MAX_SUMMED_PRECISION):
        return
    reasons = {
        "float4": "and a sum of floats depends on their order",
        "float8": "and a sum of floats depends on their order",
        "numeric": "whose sums may have more digits than there is room for"
        if told
        else "a domain, of which the stream does not tell the number of digits"
        if limits
        else "which has no fixed number of digits",
    }
    reason = reasons.get(base.name, "which cannot be summed exactly")
    remedy = f"What can be summed are {kinds}"
    if base.name in reasons:
        remedy += (
            ": give it such a type (ALTER COLUMN … TYPE numeric(20, 4), which rewrites the table), "
            "or sum another column"
        )
    yield f"of type {column.type}, {reason}", remedy


def _not_grouped(column: Column) -> Iterator[tuple[str, str]]:
    base = column.base
    unlimited = base.name == "numeric" and base.limits is None
    known = base.is_enum or (base.builtin and base.name in _GROUPABLE)
    if known and column.exact and not unlimited:
        return
    what = "an array" if base.is_array else f"of type {column.type}"
    yield (
        f"{what}, which cannot be a dimension: equal values may be written differently",
        (
            "Make it an expression of Spark SQL with a type that can, such as "
            f'{{ expression = "cast({column.name} as string)", type = "text" }}'
        ),
    )
