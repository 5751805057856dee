"""The columns that an aggregate reads, in the tables as they are. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from penstock.declarations import AggregateConfig, AggregateSource
from penstock.decode.types import TEXT, ValueType, named_type
from penstock.errors import InputUnfit
from penstock.names import TableName
from penstock.postgres.column_types import BaseType
from penstock.postgres.tables import Column, TableFacts


def counting_sources(
    aggregate: AggregateConfig, tables: Mapping[TableName, TableFacts]
) -> Iterator[tuple[AggregateSource, TableFacts]]:
    """The sources with any rule on, of which the table exists."""
    for source in aggregate.sources:
        if source.rules and source.table in tables:
            yield source, tables[source.table]


def alias_columns(source: AggregateSource, table: TableFacts, name: str) -> tuple[Column, ...]:
    """All columns of the table that a name in the aggregate may stand for, in their order: of each
    row the first that is not NULL counts.
    """
    by_name = {column.name: column for column in table.columns}
    return tuple(by_name[each] for each in source.names(name) if each in by_name)


def input_columns(source: AggregateSource, table: TableFacts, name: str) -> tuple[Column, ...]:
    """The columns of which values can count: those up to the first that is never NULL."""
    found: list[Column] = []
    for column in alias_columns(source, table, name):
        found.append(column)
        if column.not_null:
            break
    return tuple(found)


def read_columns(
    aggregate: AggregateConfig, source: AggregateSource, table: TableFacts
) -> tuple[Column, ...]:
    """All columns of the table that the aggregate reads."""
    found = (input_columns(source, table, name) for name in aggregate.inputs)
    return tuple(dict.fromkeys(column for columns in found for column in columns))


def input_types(
    aggregate: AggregateConfig, tables: Mapping[TableName, TableFacts], name: str
) -> tuple[BaseType, ...]:
    """The different types that an input has in the sources."""
    columns = (
        column
        for source, table in counting_sources(aggregate, tables)
        for column in input_columns(source, table, name)
    )
    return tuple(dict.fromkeys(column.base for column in columns))


def value_type(column: Column) -> ValueType:
    """As the log will give it: of a domain the base type, without the domain's modifier."""
    if not column.base.builtin:
        return TEXT
    return named_type(column.base.name, -1 if column.is_domain else column.base.modifier)


def reads_generated(aggregate: AggregateConfig, tables: Mapping[TableName, TableFacts]) -> bool:
    """Whether an input is a stored generated column somewhere."""
    return any(
        column.generated == "stored"
        for source, table in counting_sources(aggregate, tables)
        for column in read_columns(aggregate, source, table)
    )


def unfit(
    aggregate: AggregateConfig, table: TableFacts, column: Column, what: str, remedy: str
) -> InputUnfit:
    about = f"aggregate {aggregate.name} reads column {column.name} of {table.name}"
    return InputUnfit(f"{about}, {what}", remedy=remedy, table=table.name, column=column.name)
