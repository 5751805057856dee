"""Whether DDL has changed what an aggregate's aliases stand for in rows that are there. Pure. M4.6

Of several aliases the first that is not NULL counts. A column that is added with values in it, and
one that is dropped while an earlier alias is NULL in some rows, change what counts without a word
in the log. What cannot have changed anything goes on: a column that is added empty, and one that is
dropped behind a column that is NOT NULL.

A column of which no alias is left stops its aggregate as well: before the next change of the table
another column may have its name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from penstock.declarations import AggregateConfig, AggregateSource
from penstock.decode.stops import Stop, StopCode
from penstock.names import TableName
from penstock.pipelines.inputs import counting_sources
from penstock.pipelines.source_marks import Marks
from penstock.postgres.tables import Column, TableFacts


def alias_stop(
    aggregate: AggregateConfig,
    before: Marks,
    now: Marks,
    tables: Mapping[TableName, TableFacts],
) -> Stop | None:
    """Return why an aggregate stops, or None; `tables` are the sources as they are now."""
    for source, table in counting_sources(aggregate, tables):
        name = str(source.table)
        if name in before and name in now:
            was, found = (
                {column: mark.number for column, mark in each[name].columns.items()}
                for each in (before, now)
            )
            for stop in alias_stops(aggregate, source, was, found, table):
                return stop
    return None


def alias_stops(
    aggregate: AggregateConfig,
    source: AggregateSource,
    before: Mapping[str, int],
    now: Mapping[str, int],
    table: TableFacts,
) -> Iterator[Stop]:
    """Compare the columns of a source, by name and number (`attnum`); `table` is as it is now."""
    columns = {column.name: column for column in table.columns}
    for name in aggregate.inputs:
        names = source.names(name)
        there = [each for each in names if each in now]
        if not there:
            if noted := [each for each in names if each in before]:
                yield Stop(StopCode.COLUMN_GONE, str(table.name), noted[0])
            continue
        if len(names) == 1:
            continue  # that it was replaced is found by its number
        numbers = {now[each] for each in there}
        known = {before[each] for each in names if each in before}
        for each in there:
            added = now[each] not in known and _may_be_filled(columns[each])
            if known and added and not _is_hidden(names, each, columns):
                yield Stop(StopCode.ALIAS_FILLED, str(table.name), each)
        for each in names:
            gone = each in before and before[each] not in numbers
            if gone and not _is_hidden(names, each, columns):
                yield Stop(StopCode.ALIAS_GONE, str(table.name), each)


def _is_hidden(names: tuple[str, ...], name: str, columns: Mapping[str, Column]) -> bool:
    """Whether an earlier alias is never NULL, so that this one never counts."""
    earlier = (columns[each] for each in names[: names.index(name)] if each in columns)
    return any(column.not_null for column in earlier)


def _may_be_filled(column: Column) -> bool:
    """Whether rows that were there may have got a value when the column was added.

    A function in a default may be volatile: then the server writes the values into the rows.
    """
    called = column.default is not None and "(" in column.default
    return column.prefilled or called or bool(column.generated) or bool(column.identity)
