"""What an aggregate reads of all rows of a table, as columns: packed by the server, or copied.

Copied are columns of which one value may be as large as all others (documents, arrays), and pages
that turn out to hold long texts: then all of it is never in memory at once.

Columns in which many rows are equal come once for a group of rows; which ones, the first rows tell.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import psycopg
import pyarrow as pa
from psycopg import sql

from penstock.declarations import AggregateSource
from penstock.decode.columns import Mask, column_as, texts_of
from penstock.decode.deltas import Input
from penstock.decode.minutes import minutes
from penstock.decode.packed import packed_column
from penstock.decode.types import ValueType
from penstock.errors import TableRewritten
from penstock.pipelines.binding import Bound
from penstock.pipelines.copied_rows import copied_rows
from penstock.pipelines.rows_read import Rows
from penstock.pipelines.sharing import is_still_worth_it, shared_columns
from penstock.pipelines.source_rows import columns_of, printed, printed_alike, rows_of
from penstock.postgres.failures import translated
from penstock.postgres.forms import Form, form_of
from penstock.postgres.packing import PackedRows, Packing
from penstock.postgres.pages import in_pages, leaf_pages, page_bounds
from penstock.postgres.reading_ahead import ahead
from penstock.postgres.tables import Column

# Ranges one after the other that turn out to have a value too large to be packed: then that is
# usual, and what is left is copied at one go.
_MOST_IN_VAIN = 2
# Where nothing is shared, so many ranges are read before others are looked at.
_LOOK_EVERY = 64
_Copied: TypeAlias = Generator[pa.RecordBatch, None, None]


@dataclass(frozen=True, slots=True)
class _Column:
    """An input, the table's columns for it, and its type there."""

    input: Input
    # Of a row the first counts that is not NULL.
    columns: tuple[Column, ...]
    given: ValueType
    # Equal values have one packed form.
    alike: bool

    @property
    def packed(self) -> tuple[str, Form] | None:
        """How the server packs it; None: it is copied. Aliases are rare, and not worth packing."""
        form = form_of(self.columns[0].base)
        return None if form is None or len(self.columns) > 1 else (self.columns[0].name, form)

    @property
    def copied(self) -> sql.Composable:
        one = len(self.columns) == 1
        return sql.Identifier(self.columns[0].name) if one else printed(self.columns)


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
        packable = [packed for each in columns if (packed := each.packed) is not None]
        leaves = leaf_pages(connection, table) if len(packable) == len(columns) else {}

        def copying(condition: sql.Composable) -> _Copied:
            return copied_rows(connection, rows, [each.copied for each in columns], condition)

        if leaves:
            packing = Packing(connection, rows, packable)
            found = _by_pages(packing, page_bounds(leaves.values()), columns, copying)
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
    alike = printed_alike(connection, source.table)
    return [
        _Column(
            each,
            found[each.name],
            given[each.name],
            all(column.name in alike for column in found[each.name]),
        )
        for each in bound.summed.inputs
    ]


def _by_pages(
    packing: Packing,
    bounds: Sequence[int],
    columns: Sequence[_Column],
    copying: Callable[[sql.Composable], _Copied],
) -> Generator[PackedRows | pa.RecordBatch, None, None]:
    in_vain = 0
    shared: frozenset[int] | None = None
    for number, (first, end) in enumerate(zip(bounds, [*bounds[1:], None], strict=True)):
        if not shared and number % _LOOK_EVERY == 0:
            shared = None
        packed = packing.packed(in_pages(first, end), shared or frozenset())
        if packed is not None:
            in_vain = 0
            shared = _shared_by_next(packed, shared, columns)
            if packed.count:
                yield packed
            continue
        in_vain += 1
        if in_vain == _MOST_IN_VAIN:
            yield from copying(in_pages(first, None))
            return
        yield from copying(in_pages(first, end))


def _shared_by_next(
    rows: PackedRows, shared: frozenset[int] | None, columns: Sequence[_Column]
) -> frozenset[int] | None:
    """None: it is not known, and rows come by themselves."""
    if shared is None:
        unpacked = enumerate(zip(columns, _unpacked(rows, columns), strict=True))
        return shared_columns({place: array for place, (c, (array, _)) in unpacked if c.alike})
    keeps = not shared or is_still_worth_it(rows.count, len(rows.sizes))
    return shared if keeps else None


def _rows(portion: PackedRows | pa.RecordBatch, columns: Sequence[_Column]) -> Rows:
    inputs = [each.input for each in columns]
    if isinstance(portion, PackedRows):
        count, shared = portion.count, [inputs[place] for place in portion.shared]
        group = np.repeat(np.arange(len(portion.sizes)), portion.sizes)
        found = _unpacked(portion, columns)
    else:
        count, shared, group = portion.num_rows, [], np.zeros(portion.num_rows, np.int64)
        found = _parsed(portion, columns)
    own, of_groups, bad = {}, {}, {}
    for each, (values, wrong) in zip(inputs, found, strict=True):
        array = minutes(values) if each.by_minute else values
        if each in shared:
            of_groups[each] = array
        else:
            own[each] = array
        if wrong.any():
            bad[each] = wrong[group] if each in shared else wrong
    return Rows(count, own, of_groups, group, bad)


def _unpacked(rows: PackedRows, columns: Sequence[_Column]) -> Iterator[tuple[pa.Array, Mask]]:
    count = rows.count
    for place, (each, values) in enumerate(zip(columns, rows.columns, strict=True)):
        size = len(rows.sizes) if place in rows.shared else count
        array, bad = packed_column(values, each.given, size)
        yield array.cast(each.input.kind.arrow), bad


def _parsed(texts: pa.RecordBatch, columns: Sequence[_Column]) -> Iterator[tuple[pa.Array, Mask]]:
    for each, values in zip(columns, texts.columns, strict=True):
        yield column_as(texts_of(values), each.given, each.input.kind)
