"""Columns as numbers: one for each combination of values. Pure.

What is computed of values need not be computed again for each row that has them, and numbers are
grouped in a fraction of the time that texts take.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa


def numbered(columns: Mapping[str, pa.Array]) -> tuple[pa.Array, pa.Table]:
    """A number for each row, and what the numbers mean: the row of a table for each.

    >>> numbers, meanings = numbered({"a": pa.array(["x", None, "x"]), "b": pa.array([1, 1, 2])})
    >>> numbers.to_pylist(), meanings.to_pylist()
    ([0, 1, 2], [{'a': 'x', 'b': 1}, {'a': None, 'b': 1}, {'a': 'x', 'b': 2}])
    """
    (name, values), *others = columns.items()
    encoded = values.dictionary_encode(null_encoding="encode")
    numbers, meanings = encoded.indices, pa.table({name: encoded.dictionary})
    for name, values in others:
        encoded = values.dictionary_encode(null_encoding="encode")
        meant = encoded.dictionary
        # Below the square of the rows, which are few enough for that.
        pairs = np.asarray(numbers, np.int64) * len(meant) + np.asarray(encoded.indices)
        seen = pa.array(pairs).dictionary_encode()
        before, place = np.divmod(np.asarray(seen.dictionary), max(len(meant), 1))
        numbers = seen.indices
        meanings = meanings.take(pa.array(before)).append_column(name, meant.take(pa.array(place)))
    return numbers, meanings
