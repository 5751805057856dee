"""A state that lasts is logged again at a slow pace. M7.3"""

from __future__ import annotations

from penstock.lasting_state import LastingState


def reported(state: LastingState, *, until_s: int) -> list[int]:
    return [second for second in range(until_s) if state.is_due(float(second))]


def test_it_is_due_after_minutes_and_then_every_ten() -> None:
    state = LastingState()
    assert state.begin(0.0)
    assert reported(state, until_s=2500) == [60, 300, 600, 1200, 1800, 2400]


def test_ages_that_nobody_asked_at_are_not_made_up_for() -> None:
    state = LastingState()
    state.begin(100.0)
    assert state.is_due(100.0 + 4000.0)
    assert not state.is_due(100.0 + 4100.0)
    assert state.due_at() == 100.0 + 4200.0


def test_it_begins_once_and_starts_over_when_it_has_ended() -> None:
    state = LastingState()
    assert state.due_at() is None
    assert not state.is_due(1e6)
    assert state.begin(10.0)
    assert not state.begin(50.0)
    assert state.age_s(70.0) == 60.0
    assert state.is_due(70.0)
    state.end()
    assert state.age_s(80.0) == 0.0
    assert state.begin(80.0)
    assert state.due_at() == 140.0
