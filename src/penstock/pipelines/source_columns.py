"""What an aggregate reads of all rows of a table, as columns: packed by the server, or copied.

Copied are columns of which one value may be as large as all others (documents, arrays), and pages
that turn out to hold long texts: then all of it is never in memory at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

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
from penstock.postgres.packing import Packed, Packing, form_of, in_pages, leaf_pages, page_bounds
from penstock.postgres.tables import Column

# Ranges one after the other that turn out to have a value too large to be packed: then that is
# usual, and what is left is copied at one go.
_MOST_IN_VAIN = 2


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
) -> Iterator[Rows]:
    """All of a table. `TableRewritten`: it got a partition meanwhile, with rows of its own."""
    table = source.table
    with translated(f"read the rows of {table}"):
        rows = rows_of(connection, table)
        columns = _columns(connection, bound, source)
        forms = [form for each in columns if (form := form_of(each.column.base)) is not None]
        leaves = leaf_pages(connection, table) if len(forms) == len(columns) else {}
        if not leaves:
            yield from _copied(connection, rows, columns, sql.SQL("true"))
            return
        names = [each.column.name for each in columns]
        packing = Packing(connection, rows, list(zip(names, forms, strict=True)))
        yield from _by_pages(connection, rows, columns, packing, page_bounds(leaves.values()))
        if not leaf_pages(connection, table).keys() <= leaves.keys():
            raise TableRewritten(
                f"{table} got a partition while its rows were read", remedy="Run this again"
            )


def _columns(
    connection: psycopg.Connection[Any], bound: Bound, source: AggregateSource
) -> list[_Column]:
    given, found = bound.given[source.table], columns_of(connection, source, bound)
    return [_Column(i, found[i.name], given[i.name]) for i in bound.summed.inputs]


def _by_pages(
    connection: psycopg.Connection[Any],
    rows: sql.Composable,
    columns: Sequence[_Column],
    packing: Packing,
    bounds: Sequence[int],
) -> Iterator[Rows]:
    in_vain = 0
    for first, end in zip(bounds, [*bounds[1:], None], strict=True):
        packed = packing.packed(in_pages(first, end))
        if packed is not None:
            in_vain = 0
            if packed[0]:
                yield _unpacked(*packed, columns)
            continue
        in_vain += 1
        if in_vain == _MOST_IN_VAIN:
            yield from _copied(connection, rows, columns, in_pages(first, None))
            return
        yield from _copied(connection, rows, columns, in_pages(first, end))


def _copied(
    connection: psycopg.Connection[Any],
    rows: sql.Composable,
    columns: Sequence[_Column],
    condition: sql.Composable,
) -> Iterator[Rows]:
    names = [each.column.name for each in columns]
    for batch in copied_rows(connection, rows, names, condition):
        found = {
            each.input: column_as(texts_of(texts), each.given, each.input.kind)
            for each, texts in zip(columns, batch.columns, strict=True)
        }
        yield _rows(batch.num_rows, found)


def _unpacked(count: int, packed: Sequence[Packed], columns: Sequence[_Column]) -> Rows:
    found = {}
    for each, values in zip(columns, packed, strict=True):
        array, bad = packed_column(values, each.given, count)
        found[each.input] = array.cast(each.input.kind.arrow), bad
    return _rows(count, found)


def _rows(count: int, found: Mapping[Input, tuple[pa.Array, Mask]]) -> Rows:
    return Rows(
        count,
        {each: array for each, (array, _) in found.items()},
        {each: bad for each, (_, bad) in found.items()},
    )
