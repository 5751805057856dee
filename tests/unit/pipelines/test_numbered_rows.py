"""Rows as pairs of numbers: they mean what the rows have, however these were read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.decode.deltas import ROWS, Input, sum_name
from penstock.decode.types import Kind, ValueType
from penstock.pipelines.numbered_rows import (
    HANDED_ON,
    SEEN,
    Division,
    NumberedRows,
    alike,
    numbered_rows,
    summed_up,
    together,
)
from penstock.pipelines.rows_read import Rows
from support.repeats import repeats

WORD, NUMBER, FLAG, AMOUNT = COLUMNS = (
    Input("word", ValueType(Kind.TEXT)),
    Input("number", ValueType(Kind.BIGINT)),
    Input("flag", ValueType(Kind.BOOLEAN)),
    Input("amount", ValueType(Kind.INTEGER)),
)
Row: TypeAlias = tuple[Any, ...]
row = st.tuples(
    st.none() | st.sampled_from(["", "a"]),
    st.none() | st.sampled_from([0, -1, 2**62]),
    st.none() | st.booleans(),
    st.none() | st.integers(-5, 5),
)
inputs = st.frozensets(st.sampled_from(COLUMNS[:3]))


def read(rows: Sequence[Row], shared: frozenset[Input]) -> tuple[Rows, list[Row]]:
    """As they come from the server, and in the order in which they do."""
    places = {each: place for place, each in enumerate(COLUMNS)}
    groups: dict[Row, list[Row]] = {}
    for each in rows:
        key = tuple(each[places[one]] for one in COLUMNS if one in shared)
        groups.setdefault(key, []).append(each)
    ordered = [each for group in groups.values() for each in group]

    def column(one: Input, of: Sequence[Row]) -> pa.Array:
        return pa.array([each[places[one]] for each in of], one.kind.arrow)

    firsts = [group[0] for group in groups.values()]
    sizes = [len(group) for group in groups.values()]
    found = Rows(
        len(ordered),
        {one: column(one, ordered) for one in COLUMNS if one not in shared},
        {one: column(one, firsts) for one in shared},
        np.repeat(np.arange(len(sizes)), sizes),
        {},
    )
    return found, ordered


def told(parts: Division, numbered: NumberedRows) -> Counter[tuple[Row, Row, str]]:
    """How many rows, and their sums, by what they mean."""

    def meaning(table: pa.Table, columns: Sequence[Input], place: int) -> Row:
        return tuple(table[each.key][place].as_py() for each in columns)

    found: Counter[tuple[Row, Row, str]] = Counter()
    for each in numbered.rows.to_pylist():
        seen = meaning(numbered.seen, parts.seen, each[SEEN])
        handed = meaning(numbered.handed_on, list(parts.handed_on.values()), each[HANDED_ON])
        found[seen, handed, "rows"] += each[ROWS]
        for one in parts.sums:
            found[seen, handed, "sum"] += each[sum_name(one)] or 0
    return Counter({key: value for key, value in found.items() if value})


@settings(max_examples=repeats(60, soak=300), deadline=None)
@given(
    portions=st.lists(st.tuples(st.lists(row), inputs), min_size=1, max_size=3),
    seen=inputs,
    handed=inputs,
    sums=st.sampled_from([(), (AMOUNT,), (NUMBER,)]),
    adds_up=st.booleans(),
    chance=st.randoms(use_true_random=False),
)
def test_numbers_mean_what_the_rows_have(
    portions: list[tuple[list[Row], frozenset[Input]]],
    seen: frozenset[Input],
    handed: frozenset[Input],
    sums: tuple[Input, ...],
    adds_up: bool,
    chance: Any,
) -> None:  # M5.2, M5.5
    parts = Division(tuple(seen), {each.name: each for each in handed}, sums)
    expected: Counter[tuple[Row, Row, str]] = Counter()
    found = []
    for rows, shared in portions:
        given_rows, ordered = read(rows, shared)
        good = np.array([chance.random() < 0.8 for _ in ordered], bool)
        for each, counts in zip(ordered, good, strict=True):
            values = dict(zip(COLUMNS, each, strict=True))
            key = tuple(values[one] for one in seen), tuple(values[one] for one in handed)
            expected[*key, "rows"] += int(counts)
            for one in sums:
                expected[*key, "sum"] += int(counts) * (values[one] or 0)
        numbered = numbered_rows(parts, given_rows, good)
        # Spark sees nothing that only rows have which do not count.
        assert set(numbered.rows[SEEN].to_pylist()) == set(
            range(len(numbered.seen) if good.any() or seen else 0)
        )
        if adds_up:
            numbered = summed_up(parts, numbered)
            pairs = [(each[SEEN], each[HANDED_ON]) for each in numbered.rows.to_pylist()]
            assert len(pairs) == len(set(pairs))
        found.append(numbered)
    whole = together(found)
    assert told(parts, whole) == Counter({key: n for key, n in expected.items() if n})


def test_rows_of_which_nothing_is_read_are_alike() -> None:  # M5.2
    nothing = Division((), {}, ())
    assert told(nothing, alike(7)) == {((), (), "rows"): 7}
