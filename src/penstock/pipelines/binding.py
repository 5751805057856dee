"""Declared aggregates and the source's catalog in; what to ask of the log out.

The types of columns are read from the server, not from the log: a table that has not changed yet is
not in the log, and its aggregate should start all the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from penstock.declarations import AggregateConfig, AggregateSource
from penstock.decode.deltas import Input, Summed, SummedSource
from penstock.decode.types import Kind, ValueType, common_type
from penstock.errors import SchemaMismatch
from penstock.lsn import Lsn
from penstock.names import TableName
from penstock.pipelines.inputs import value_type
from penstock.postgres.tables import TableFacts

# What can be added up exactly.
_SUMMABLE = (Kind.SMALLINT, Kind.INTEGER, Kind.BIGINT, Kind.DECIMAL)
# By table, then by column.
Types = Mapping[TableName, Mapping[str, ValueType]]


@dataclass(frozen=True, slots=True)
class Bound:
    """An aggregate, and what is asked of the log for it."""

    config: AggregateConfig
    summed: Summed
    # As each table that counts has what is read, by the aggregate's names: one may have a real
    # where another has a double.
    given: Types

    def after(self, applied_lsn: Lsn) -> Bound:
        """For targets that have everything up to there."""
        return replace(self, summed=replace(self.summed, applied_lsn=int(applied_lsn)))

    def of_tables(self, tables: Mapping[TableName, TableFacts]) -> Bound:
        """For changes of these tables, and of no others that have their names."""
        sources = (
            replace(source, oid=tables[source.table].oid) if source.table in tables else source
            for source in self.summed.sources
        )
        return replace(self, summed=replace(self.summed, sources=tuple(sources)))


def types_of(tables: Mapping[TableName, TableFacts]) -> Types:
    """As the log will give them."""
    return {
        name: {column.name: value_type(column) for column in table.columns}
        for name, table in tables.items()
    }


def bind(aggregate: AggregateConfig, types: Types, known_up_to: Lsn) -> Bound:
    """Raises `SchemaMismatch` where a column is missing or has a type that does not fit.

    `known_up_to` is a position of the log from before the types were read.
    """
    sources = [source for source in aggregate.sources if source.rules]
    given = {
        source.table: {
            name: _kind(aggregate.name, source, name, types) for name in aggregate.inputs
        }
        for source in sources
    }
    kinds = {
        name: _common(aggregate.name, name, [each[name] for each in given.values()])
        for name in aggregate.inputs
    }
    for name in aggregate.summed:
        if kinds[name].kind not in _SUMMABLE:
            raise SchemaMismatch(
                f"column {name} of aggregate {aggregate.name} cannot be summed up: it is neither "
                "an integer nor a numeric with a precision of at most 38",
                remedy="Give the column such a type, or leave the sum out",
                column=name,
            )
    return Bound(
        aggregate,
        Summed(
            aggregate.name,
            tuple(
                SummedSource(
                    source.table,
                    source.rules,
                    frozenset(source.immutable),
                    source.aliases,
                    int(known_up_to),
                )
                for source in aggregate.sources
            ),
            keys=tuple(Input(name, kinds[name]) for name in aggregate.keys),
            sums=tuple(Input(name, kinds[name]) for name in aggregate.summed),
        ),
        given,
    )


def _kind(aggregate: str, source: AggregateSource, name: str, types: Types) -> ValueType:
    """The type of a column in one table: the one that holds the values of all its aliases."""
    if source.table not in types:
        raise SchemaMismatch(
            f"table {source.table} does not exist in the source",
            remedy="Correct sources in [[aggregate]]",
            table=source.table,
        )
    columns = types[source.table]
    if found := [columns[each] for each in source.names(name) if each in columns]:
        return _common(aggregate, name, found)
    raise SchemaMismatch(
        f"{source.table} has no column {' or '.join(source.names(name))}",
        remedy=f"Its columns are: {', '.join(columns)}. Correct [[aggregate]], or add an alias",
        table=source.table,
        column=name,
    )


def _common(aggregate: str, name: str, kinds: list[ValueType]) -> ValueType:
    """One type for a column that several tables have; set-up has looked, but types change."""
    if (found := common_type(kinds)) is not None:
        return found
    raise SchemaMismatch(
        f"column {name} of aggregate {aggregate} has types that do not go together: "
        f"{', '.join(str(kind) for kind in dict.fromkeys(kinds))}",
        remedy="Make two aggregates of it, or give the columns one type",
        column=name,
    )
