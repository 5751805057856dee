"""Combinations of values as numbers, and back."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from penstock.pipelines.numbering import numbered

COLUMNS = {"word": pa.string(), "number": pa.int64(), "flag": pa.bool_(), "blob": pa.binary()}
row = st.tuples(
    st.none() | st.sampled_from(["", "a", "b"]),
    st.none() | st.sampled_from([0, -1, 2**62]),
    st.none() | st.booleans(),
    st.none() | st.sampled_from([b"", b"\x00"]),
)


@given(rows=st.lists(row), width=st.integers(1, len(COLUMNS)))
def test_each_combination_has_one_number_that_means_it(
    rows: list[tuple[object, ...]], width: int
) -> None:  # M5.2: NULL is a value
    columns = {
        name: pa.array([row[place] for row in rows], kind)
        for place, (name, kind) in enumerate(list(COLUMNS.items())[:width])
    }
    numbers, meanings = numbered(columns)
    assert meanings.take(pa.array(numbers)).to_pylist() == pa.table(columns).to_pylist()
    assert len(meanings) == len({row[:width] for row in rows})
    assert meanings.schema == pa.table(columns).schema
