"""Sums by dimensions, as tables of Arrow: dimensions as text, measures as numbers. Pure.

Text is what Postgres is given, and casts to the type of the target's column.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import Decimal, localcontext
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from penstock.decode.deltas import WIDE

Key: TypeAlias = tuple[str | None, ...]
Amounts: TypeAlias = tuple[Decimal | int, ...]
# More digits than a sum of anything has; by itself Python keeps 28.
_EXACT = 200
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


def rolled_up(
    sums: pa.Table, dimensions: Sequence[str], measures: Sequence[str]
) -> dict[Key, Amounts]:
    """By some of the dimensions; without what is zero."""
    for measure in measures:
        kind = sums.schema.field(measure).type
        if pa.types.is_decimal128(kind):
            wide = sums[measure].cast(pa.decimal256(WIDE, kind.scale))
            sums = sums.set_column(sums.column_names.index(measure), measure, wide)
    summed = sums.group_by(list(dimensions), use_threads=False).aggregate(
        [(measure, "sum") for measure in measures]
    )
    keys = zip(*(summed[name].to_pylist() for name in dimensions), strict=True)
    amounts = zip(
        *(pc.fill_null(summed[f"{name}_sum"], 0).to_pylist() for name in measures), strict=True
    )
    return {key: amount for key, amount in zip(keys, amounts, strict=True) if any(amount)}


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
