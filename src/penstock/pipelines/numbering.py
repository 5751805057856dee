"""Columns as numbers: one for each combination of values. Pure.

What is computed of values need not be computed again for each row that has them, and numbers are
grouped in a fraction of the time that texts take.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Numbers: TypeAlias = npt.NDArray[np.int64]
# So many numbers for each row are more than are worth a look.
_SPARSE = 4
# Of a combination of nothing.
_NOTHING = "_nothing"


class Numbered(NamedTuple):
    """A number for each row, and what the numbers mean: the row of a table for each."""

    numbers: Numbers
    meanings: pa.Table


def numbered(columns: Mapping[str, pa.Array]) -> Numbered:
    """Of one column or more.

    >>> numbers, meanings = numbered({"a": pa.array(["x", None, "x"]), "b": pa.array([1, 1, 2])})
    >>> numbers.tolist(), meanings.to_pylist()
    ([0, 2, 1], [{'a': 'x', 'b': 1}, {'a': 'x', 'b': 2}, {'a': None, 'b': 1}])
    """
    return reduce(combined, (_of_one(name, values) for name, values in columns.items()))


def combinations(rows: pa.Table) -> Numbered:
    """Which one each row has, and what they are; without a column all have the same."""
    columns = {name: rows[name].combine_chunks() for name in rows.column_names}
    if not columns:
        return all_one(len(rows))
    if any(pa.types.is_nested(array.type) for array in columns.values()):
        # Arrow cannot tell which are equal.
        return Numbered(np.arange(len(rows)), pa.table(columns))
    return numbered(columns)


def all_one(rows: int) -> Numbered:
    return Numbered(np.zeros(rows, np.int64), pa.table({_NOTHING: [0]}))


def combined(left: Numbered, right: Numbered) -> Numbered:
    """Of the same rows."""
    width = max(len(right.meanings), 1)
    # Below the square of the rows, which are few enough for that.
    numbers, pairs = dense(left.numbers * width + right.numbers, len(left.meanings) * width)
    before, place = np.divmod(pairs, width)
    meanings = left.meanings.take(pa.array(before))
    meant = right.meanings.take(pa.array(place))
    for name in meant.column_names:
        meanings = meanings.append_column(name, meant[name])
    return Numbered(numbers, meanings)


def dense(values: Numbers, end: int) -> tuple[Numbers, Numbers]:
    """The place of each value among those that occur, and these."""
    if end > len(values) * _SPARSE:
        encoded = pa.array(values).dictionary_encode()
        return np.asarray(encoded.indices, np.int64), np.asarray(encoded.dictionary)
    # To mark those that occur takes a fraction of the time that it takes to look each one up.
    occurs = np.zeros(end, bool)
    occurs[values] = True
    return (np.cumsum(occurs) - 1)[values], np.flatnonzero(occurs)


def _of_one(name: str, values: pa.Array) -> Numbered:
    encoded = values.dictionary_encode(null_encoding="encode")
    meanings = pa.table({name: encoded.dictionary})
    return Numbered(np.asarray(encoded.indices, np.int64), meanings)
