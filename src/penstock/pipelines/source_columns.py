"""What an aggregate reads of all rows of a table, as columns: packed by the server, or copied.

Copied are columns of which one value may be as large as all others (documents, arrays), and pages
that turn out to hold long texts: then all of it is never in memory at once.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, TypeAlias

import psycopg
import pyarrow as pa
from psycopg import sql

from penstock.declarations import AggregateSource
from penstock.decode.columns import Mask, column_as, texts_of
from penstock.decode.deltas import Input
from penstock.decode.packed import packed_column
from penstock.decode.types import ValueType
from penstock.errors import TableRewritten
from penstock.pipelines.binding import Bound
from penstock.pipelines.copied_rows import copied_rows
from penstock.pipelines.source_rows import columns_of, rows_of
from penstock.postgres.failures import translated
from penstock.postgres.packing import (
    PackedRows,
    Packing,
    form_of,
    in_pages,
    leaf_pages,
    page_bounds,
)
from penstock.postgres.reading_ahead import ahead
from penstock.postgres.tables import Column

# Ranges one after the other that turn out to have a value too large to be packed: then that is
# usual, and what is left is copied at one go.
_MOST_IN_VAIN = 2
_Copied: TypeAlias = Generator[pa.RecordBatch, None, None]


@dataclass(frozen=True, slots=True)
class _Column:
    """What is read, the table's column for it, and its type there."""

    input: Input
    column: Column
    given: ValueType


@dataclass(frozen=True, slots=True)
class Rows:
    count: int
    arrays: Mapping[Input, pa.Array]
    # Which of them have a value that its type cannot hold.
    bad: Mapping[Input, Mask]


def rows_in_columns(
    connection: psycopg.Connection[Any], bound: Bound, source: AggregateSource
) -> Generator[Rows, None, None]:
    """All of a table, to be closed. `TableRewritten`: it got a partition meanwhile, with rows of
    its own.
    """
    table = source.table
    with translated(f"read the rows of {table}"):
        rows = rows_of(connection, table)
        columns = _columns(connection, bound, source)
        names = [each.column.name for each in columns]
        forms = [form for each in columns if (form := form_of(each.column.base)) is not None]
        leaves = leaf_pages(connection, table) if len(forms) == len(columns) else {}

        def copying(condition: sql.Composable) -> _Copied:
            return copied_rows(connection, rows, names, condition)

        if leaves:
            packing = Packing(connection, rows, list(zip(names, forms, strict=True)))
            found = _by_pages(packing, page_bounds(leaves.values()), copying)
        else:
            found = copying(sql.SQL("true"))
        with closing(ahead(found, connection)) as portions:
            for portion in portions:
                yield _rows(portion, columns)
        if leaves and not leaf_pages(connection, table).keys() <= leaves.keys():
            raise TableRewritten(
                f"{table} got a partition while its rows were read", remedy="Run this again"
            )


def _columns(
    connection: psycopg.Connection[Any], bound: Bound, source: AggregateSource
) -> list[_Column]:
    given, found = bound.given[source.table], columns_of(connection, source, bound)
    return [_Column(i, found[i.name], given[i.name]) for i in bound.summed.inputs]


def _by_pages(
    packing: Packing,
    bounds: Sequence[int],
    copying: Callable[[sql.Composable], _Copied],
) -> Generator[PackedRows | pa.RecordBatch, None, None]:
    in_vain = 0
    for first, end in zip(bounds, [*bounds[1:], None], strict=True):
        packed = packing.packed(in_pages(first, end))
        if packed is not None:
            in_vain = 0
            if packed.count:
                yield packed
            continue
        in_vain += 1
        if in_vain == _MOST_IN_VAIN:
            yield from copying(in_pages(first, None))
            return
        yield from copying(in_pages(first, end))


def _rows(portion: PackedRows | pa.RecordBatch, columns: Sequence[_Column]) -> Rows:
    if isinstance(portion, PackedRows):
        return _together(portion.count, columns, _unpacked(portion, columns))
    return _together(portion.num_rows, columns, _parsed(portion, columns))


def _unpacked(rows: PackedRows, columns: Sequence[_Column]) -> Iterator[tuple[pa.Array, Mask]]:
    for each, values in zip(columns, rows.columns, strict=True):
        array, bad = packed_column(values, each.given, rows.count)
        yield array.cast(each.input.kind.arrow), bad


def _parsed(texts: pa.RecordBatch, columns: Sequence[_Column]) -> Iterator[tuple[pa.Array, Mask]]:
    for each, values in zip(columns, texts.columns, strict=True):
        yield column_as(texts_of(values), each.given, each.input.kind)


def _together(
    count: int, columns: Sequence[_Column], found: Iterator[tuple[pa.Array, Mask]]
) -> Rows:
    by_input = dict(zip((each.input for each in columns), found, strict=True))
    return Rows(
        count,
        {each: array for each, (array, _) in by_input.items()},
        {each: bad for each, (_, bad) in by_input.items()},
    )
