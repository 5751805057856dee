"""What is held is given back once, however the block ends."""

from __future__ import annotations

import pytest

from penstock.closing import Closing


class Door(Closing):
    def __init__(self) -> None:
        self.closed = 0

    def close(self) -> None:
        self.closed += 1


def test_with_hands_out_the_thing_itself_and_closes_it_at_the_end() -> None:
    door = Door()
    with door as same:
        assert same is door
        assert door.closed == 0
    assert door.closed == 1


def test_an_error_closes_it_too_and_goes_on() -> None:
    door = Door()
    with pytest.raises(ZeroDivisionError), door:
        _ = 1 // 0
    assert door.closed == 1
