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
    assert telling.failed(FULL)
    for _ in range(3):
        assert not telling.connected()
        assert not telling.failed(FULL)
    assert not telling.connected()
    assert telling.durable()
    assert not telling.durable()
    assert telling.failed(FULL)


def test_a_server_that_is_down_is_told_once_and_its_return_at_once() -> None:
    telling = Telling()
    assert telling.connected()
    assert telling.failed(CUT)
    assert telling.failed(DOWN)
    assert not telling.failed(DOWN)
    assert telling.connected()
    assert not telling.durable()
    assert telling.failed(DOWN)


def test_what_comes_between_two_attempts_is_told_once_too() -> None:
    """The server may not have noticed yet that the connection before has ended."""
    telling = Telling()
    assert telling.connected()
    assert telling.failed(FULL)
    assert telling.failed(SlotInUse("penstock", 100))
    for pid in range(101, 104):
        assert not telling.connected()
        assert not telling.failed(FULL)
        assert not telling.failed(SlotInUse("penstock", pid))
    assert not telling.connected()
    assert telling.durable()
