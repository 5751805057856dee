"""Whether an aggregate's sources are the tables, with the values, that it was seeded from. Pure.

Nothing in the stream tells that a table was rewritten with other values, or that a label of an
enum has another name. So marks of the tables are kept beside the aggregate's position since it was
seeded, and compared with the catalog again and again. M4.6
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeAlias

from pydantic import TypeAdapter

from penstock.declarations import AggregateConfig
from penstock.decode.stops import Stop, StopCode
from penstock.names import TableName
from penstock.postgres.table_marks import ColumnMark, FileMark, TableMark

# By the table's name.
Marks: TypeAlias = dict[str, TableMark]

_MARKS = TypeAdapter(Marks)
# Types of which the same values are the same texts.
_TEXTS = ("text", "varchar")


def marked_columns(aggregate: AggregateConfig) -> set[str]:
    """The names that columns which the aggregate reads may have."""
    return {
        each
        for source in aggregate.sources
        for name in aggregate.inputs
        for each in source.names(name)
    }


def marks_of(aggregate: AggregateConfig, found: Mapping[TableName, TableMark]) -> Marks:
    """The marks of what an aggregate reads."""
    return {
        str(source.table): _only(
            found[source.table],
            {each for name in aggregate.inputs for each in source.names(name)},
        )
        for source in aggregate.sources
        if source.rules and source.table in found
    }


def _only(table: TableMark, names: set[str]) -> TableMark:
    return TableMark(
        table.oid,
        {name: column for name, column in table.columns.items() if name in names},
        {
            oid: FileMark(
                each.file, {name: at for name, at in each.written.items() if name in names}
            )
            for oid, each in table.files.items()
        },
    )


def marks_to_json(marks: Marks) -> str:
    return _MARKS.dump_json(marks).decode()


def marks_from_json(text: str) -> Marks:
    return _MARKS.validate_json(text)


def marks_stop(before: Marks, now: Marks) -> Stop | None:
    """Why counts of before and changes of now do not go together.

    None: they do, although marks may differ: a file was rewritten with the same values, a column's
    row was written for something else, partitions came or went. What differs is then to be noted,
    for a file and a column's row that are written at different times mean nothing.
    """
    # Of a rewrite, the column of another type says most.
    found = sorted(_stops(before, now), key=lambda stop: stop.code is StopCode.COLUMN_REWRITTEN)
    return found[0] if found else None


def _stops(before: Marks, now: Marks) -> Iterator[Stop]:
    for name, was in before.items():
        found = now.get(name)
        if found is None:
            continue  # its changes are not sent, which is told otherwise
        if found.oid != was.oid:
            yield Stop(StopCode.TABLE_REPLACED, name)
            continue
        rewritten = set(_rewritten(was, found))
        for column, mark in was.columns.items():
            if (other := found.columns.get(column)) is not None:
                yield from _column_stops(name, column, mark, other, column in rewritten)


def _column_stops(
    table: str, name: str, was: ColumnMark, now: ColumnMark, rewritten: bool
) -> Iterator[Stop]:
    if now.number != was.number:
        yield Stop(StopCode.COLUMN_REPLACED, table, name)
    elif rewritten or not _same_texts(was.base, now.base):
        code = StopCode.COLUMN_REWRITTEN
        if now.type != was.type:
            code = StopCode.COLUMN_RETYPED
        yield Stop(code, table, name, was=was.type, now=now.type)
    elif any(now.labels.get(oid) != label for oid, label in was.labels.items()):
        yield Stop(StopCode.LABEL_RENAMED, table, name)


def _same_texts(was: str, now: str) -> bool:
    return was == now or (was in _TEXTS and now in _TEXTS)


def _rewritten(was: TableMark, now: TableMark) -> Iterator[str]:
    """The columns that may have other values in some file that was there before."""
    for oid, before in was.files.items():
        after = now.files.get(oid)
        if after is None or after.file == before.file:
            continue
        for name, written in before.written.items():
            if name in after.written and after.written[name] != written:
                yield name
