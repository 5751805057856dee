"""Refused things are found by few tries, and by no more than are allowed."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

from hypothesis import given
from hypothesis import strategies as st

from penstock.pipelines.sifting import Sifted, sift


class Target:
    """Takes whole numbers, all that it is given or none."""

    def __init__(self, refused: set[int]) -> None:
        self.refused = refused
        self.taken: list[int] = []
        self.tries = 0

    def refusal(self, some: Sequence[int]) -> str | None:
        self.tries += 1
        if self.refused.intersection(some):
            return "no"
        self.taken.extend(some)
        return None


@given(st.integers(1, 200), st.sets(st.integers(0, 199)), st.none() | st.integers(0, 250))
def test_each_is_taken_refused_or_untried_once(
    many: int, refused: set[int], most: int | None
) -> None:  # M5.4
    target = Target(refused)
    found = sift(range(many), target.refusal, count() if most is None else iter(range(most)))
    ours = [number for number, _ in found.refused]
    assert sorted([*target.taken, *ours, *found.untried]) == list(range(many))
    assert refused.issuperset(ours)
    assert refused.isdisjoint(target.taken)
    assert target.tries <= (2 * many + 50 if most is None else most)
    if most is None:
        assert not found.untried


def test_a_few_among_many_take_few_tries() -> None:  # M5.4
    target = Target({7, 60_000})
    assert sift(range(100_000), target.refusal, count()).refused == [(7, "no"), (60_000, "no")]
    assert target.tries < 120


def test_where_all_are_refused_each_is_tried_once() -> None:  # M5.4
    target = Target(set(range(1_000)))
    assert len(sift(range(1_000), target.refusal, count()).refused) == 1_000
    assert target.tries < 1_050


def test_what_stands_behind_many_refused_ones_is_come_to() -> None:  # M5.4
    target = Target(set(range(5_000)))
    found = sift(range(10_000), target.refusal, iter(range(100)))
    assert set(target.taken) >= set(range(5_300, 10_000))
    assert len(found.refused) > 50


def test_several_share_their_tries() -> None:  # M5.4
    tries = iter(range(2))
    target = Target({0, 1})
    assert sift([0, 1], target.refusal, tries) == Sifted([(0, "no"), (1, "no")], [])
    assert sift([2, 3], target.refusal, tries) == Sifted([], [2, 3])
