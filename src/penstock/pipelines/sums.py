"""Sums by dimensions, as tables of Arrow: dimensions as text, measures as numbers. Pure.

Text is what Postgres is given, and casts to the type of the target's column.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from decimal import Decimal, localcontext
from functools import reduce
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from penstock.decode.deltas import WIDE

Key: TypeAlias = tuple[str | None, ...]
Amounts: TypeAlias = tuple[Decimal | int, ...]
# More digits than a sum of anything has; by itself Python keeps 28.
_EXACT = 200
# Bytes of sums that may wait before they are put together: little memory, and long beside a call.
_WORTH_IT = 64 * 2**20
# With more text in one column, Arrow does not group but ends the process.
_MOST_IN_COLUMN = 2**31 - 1
# How Arrow begins, and goes on: a date or a moment of the year 0, or before it.
_BEFORE_CHRIST = re.compile("^(0000|-[0-9]+)(-.*)$")


def as_text(array: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Values as Postgres reads them."""
    if pa.types.is_binary(array.type):
        texts = [None if value is None else f"\\x{value.hex()}" for value in array.to_pylist()]
        return pa.array(texts, pa.string())
    texts = array.cast(pa.string())
    return _with_bc(texts) if pa.types.is_temporal(array.type) else texts


def _with_bc(texts: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """The year before 1 is 0 to Arrow, and 1 BC to Postgres."""
    if not pc.any(pc.match_substring_regex(texts, _BEFORE_CHRIST.pattern)).as_py():
        return texts
    return pa.array([text and _BEFORE_CHRIST.sub(_bc, text) for text in texts.to_pylist()])


def _bc(found: re.Match[str]) -> str:
    return f"{1 - int(found[1]):04}{found[2]} BC"


def together(
    tables: Iterable[pa.Table], dimensions: Sequence[str], measures: Sequence[str]
) -> pa.Table:
    """All of it, each combination of dimensions once; without what is zero.

    However many tables come, there is never much more here than thrice what is left of them, and
    a row is grouped twice or so.
    """
    waiting: list[pa.Table] = []
    size, most = 0, _WORTH_IT
    for table in tables:
        waiting.append(table)
        size += table.nbytes
        if size > most:
            waiting = [_together(waiting, dimensions, measures)]
            size = waiting[0].nbytes
            most = 2 * size + _WORTH_IT
    return _together(waiting, dimensions, measures)


def _together(
    tables: Sequence[pa.Table], dimensions: Sequence[str], measures: Sequence[str]
) -> pa.Table:
    sums = pa.concat_tables(tables, promote_options="permissive")
    if any(sums[name].nbytes > _MOST_IN_COLUMN for name in dimensions):
        return sums  # as it is: whoever gets so much adds it up anyhow
    return grouped(sums, dimensions, measures)


def grouped(sums: pa.Table, dimensions: Sequence[str], measures: Sequence[str]) -> pa.Table:
    """By some of the dimensions; without what is zero. Decimals are as wide as Arrow has them."""
    wide = {name: _wide(sums[name]) for name in measures}
    rows = pa.table({name: sums[name] for name in dimensions} | wide)
    summed = rows.group_by(list(dimensions), use_threads=False).aggregate(
        [(name, "sum") for name in measures]
    )
    amounts = {name: pc.fill_null(summed[f"{name}_sum"], 0) for name in measures}
    some = reduce(pc.or_, (pc.not_equal(column, 0) for column in amounts.values()))
    return pa.table({name: summed[name] for name in dimensions} | amounts).filter(some)


def _wide(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Of 38 digits, Arrow lets what is beyond them go in silence."""
    if not pa.types.is_decimal128(column.type):
        return column
    return column.cast(pa.decimal256(WIDE, column.type.scale))


def rolled_up(
    sums: pa.Table, dimensions: Sequence[str], measures: Sequence[str]
) -> dict[Key, Amounts]:
    """As `grouped`, of few enough for Python's objects."""
    found = grouped(sums, dimensions, measures)
    keys = zip(*(found[name].to_pylist() for name in dimensions), strict=True)
    amounts = zip(*(found[name].to_pylist() for name in measures), strict=True)
    return dict(zip(keys, amounts, strict=True))


def arrays(amounts: dict[Key, Amounts], width: int) -> list[list[Any]]:
    """As parameters: one for each dimension and each measure, `width` together."""
    if not amounts:
        return [[] for _ in range(width)]
    columns = (*zip(*amounts, strict=True), *zip(*amounts.values(), strict=True))
    return [list(column) for column in columns]


def by_nulls(keys: Sequence[Key]) -> dict[tuple[bool, ...], list[Key]]:
    """Keys by which of their parts are NULL."""
    found: dict[tuple[bool, ...], list[Key]] = {}
    for key in keys:
        found.setdefault(tuple(part is None for part in key), []).append(key)
    return found


def added(left: Amounts, right: Amounts) -> Amounts:
    with localcontext(prec=_EXACT):
        return tuple(a + b for a, b in zip(left, right, strict=True))
