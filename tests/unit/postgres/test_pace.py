"""When a reader takes what comes, and when it lets it come together."""

from __future__ import annotations

from penstock.postgres.pace import STEP_S, Pace

# More than a step brings otherwise.
BACKLOG = 2**17 + 2**10


def is_much(pace: Pace, size: int, steps: float) -> bool:
    """After a read that brought so many bytes, so many steps after the beginning."""
    pace.received(size, steps * STEP_S)
    return pace.is_much


def test_it_begins_as_messages_come() -> None:
    assert not Pace(now=0.0).is_much
    assert not is_much(Pace(now=0.0), 10 * BACKLOG, 0.5), "a burst that is over may be all"


def test_much_in_a_step_is_a_backlog_until_a_step_brings_less() -> None:
    pace = Pace(now=0.0)
    assert not is_much(pace, BACKLOG // 2, 0.5)
    assert is_much(pace, BACKLOG // 2, 1.001)
    assert is_much(pace, 2 * BACKLOG, 2.5)
    assert not is_much(pace, BACKLOG // 2, 3.51)


def test_what_comes_after_a_rest_is_little_if_the_rest_was_long() -> None:
    pace = Pace(now=0.0)
    assert not is_much(pace, BACKLOG, 2.0)
    assert is_much(pace, 2 * BACKLOG, 3.5)
    assert not is_much(pace, BACKLOG, 500.0)
