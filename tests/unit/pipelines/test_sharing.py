"""By which columns rows come together."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.pipelines.sharing import is_worth_it, shared_columns

ROWS = 1200


def column(values: int) -> pa.Array:
    """As many other ones, NULL among them, each as often."""
    return pa.array([n % values or None for n in range(ROWS)])


def test_columns_with_few_values_are_shared() -> None:  # M5.5
    few, some, own = column(2), column(50), column(ROWS)
    assert shared_columns({0: own, 3: some, 5: few}) == frozenset({3, 5})
    assert shared_columns({1: own}) == frozenset()
    assert shared_columns({}) is None


def test_columns_that_are_few_alone_and_many_together() -> None:  # M5.5: the fewer come first
    assert shared_columns({0: column(71), 1: column(7), 2: column(5)}) == frozenset({1, 2})
    # What goes with another one makes no more of them.
    assert shared_columns({0: column(75), 1: column(25), 2: column(5)}) == frozenset({0, 1, 2})


def test_a_handful_of_rows_tells_nothing() -> None:  # M5.5
    assert shared_columns({0: pa.array(["a"] * 999)}) is None
    assert shared_columns({0: pa.array(["a"] * 1000)}) == frozenset({0})


@settings(deadline=None)
@given(widths=st.lists(st.integers(1, ROWS), min_size=1, max_size=5))
def test_together_they_have_few_values(widths: list[int]) -> None:  # M5.5
    columns = {place: column(width) for place, width in enumerate(widths)}
    shared = shared_columns(columns)
    assert shared is not None
    values = {tuple(n % widths[place] for place in sorted(shared)) for n in range(ROWS)}
    assert is_worth_it(ROWS, len(values))
    alone = min(widths)
    assert bool(shared) == is_worth_it(ROWS, alone)
