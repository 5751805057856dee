"""Which pages are read together."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import example, given
from hypothesis import strategies as st

from penstock.postgres.pages import _PAGES_AT_ONCE, page_bounds


@given(sizes=st.lists(st.integers(0, 20_000), min_size=1, max_size=700))
@example([11_112] + [0] * 999)
@example([0])
def test_ranges_have_few_pages_and_are_no_more_than_that_takes(sizes: list[int]) -> None:  # M5.5
    bounds = page_bounds(sizes)
    assert bounds[0] == 0
    assert bounds == sorted(set(bounds))
    assert bounds[-1] < max(*sizes, 1)
    pages = [
        sum(max(min(size, end) - first, 0) for size in sizes)
        for first, end in pairwise([*bounds, max(sizes)])
    ]
    most = max(_PAGES_AT_ONCE, len(sizes))
    assert all(each <= most for each in pages)
    # Partitions of another size do not make them many: at most one is cut short by the end of each.
    assert len(bounds) <= sum(sizes) / (_PAGES_AT_ONCE / 2) + len(set(sizes)) + 1
