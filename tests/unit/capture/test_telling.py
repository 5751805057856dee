"""A state is told when it begins, not with every attempt."""

from __future__ import annotations

from penstock.capture.telling import Telling
from penstock.errors import ConnectionLost, LogFull, SlotInUse

FULL = LogFull("/log", "No space left on device")
CUT = ConnectionLost("the server closed the connection", remedy="Wait")
DOWN = ConnectionLost("connection refused", remedy="Wait")


def test_a_full_disk_is_told_once_and_so_is_its_end() -> None:
    telling = Telling()
    assert telling.connected()
    assert not telling.durable()
    assert telling.failed(FULL, 0.0)
    for _ in range(3):
        assert not telling.connected()
        assert not telling.failed(FULL, 0.0)
    assert not telling.connected()
    assert telling.durable()
    assert not telling.durable()
    assert telling.failed(FULL, 0.0)


def test_a_server_that_is_down_is_told_once_and_its_return_at_once() -> None:
    telling = Telling()
    assert telling.connected()
    assert telling.failed(CUT, 0.0)
    assert telling.failed(DOWN, 0.0)
    assert not telling.failed(DOWN, 0.0)
    assert telling.connected()
    assert not telling.durable()
    assert telling.failed(DOWN, 0.0)


def test_what_comes_between_two_attempts_is_told_once_too() -> None:
    """The server may not have noticed yet that the connection before has ended."""
    telling = Telling()
    assert telling.connected()
    assert telling.failed(FULL, 0.0)
    assert telling.failed(SlotInUse("penstock", 100), 0.0)
    for pid in range(101, 104):
        assert not telling.connected()
        assert not telling.failed(FULL, 0.0)
        assert not telling.failed(SlotInUse("penstock", pid), 0.0)
    assert not telling.connected()
    assert telling.durable()


def test_a_state_that_lasts_is_told_again_with_its_age() -> None:
    # M7.3
    telling = Telling()
    assert telling.connected()
    told = [second for second in range(1300) if telling.failed(DOWN, float(second))]
    assert told == [0, 60, 300, 600, 1200]
    assert telling.down_s(1300.0) == 1300.0
    assert telling.connected()
    assert telling.down_s(1301.0) == 0.0
