"""Signals are noted at once and raised only where they are heeded."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator

import pytest

from penstock.interrupts import Interrupts

Story = Callable[[list[str]], None]


@pytest.fixture(autouse=True)
def _pythons_own_handler() -> Iterator[None]:
    """Whatever another test's libraries have put there: Spark installs a handler, for one."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def heeded_later(steps: list[str]) -> None:
    with Interrupts() as interrupts:
        interrupt()
        steps.append("noted")
        with interrupts.heeded():
            steps.append("not reached")


def never_heeded(steps: list[str]) -> None:
    with Interrupts():
        interrupt()
        steps.append("noted")


def again_while_tidying_up(steps: list[str]) -> None:
    with Interrupts() as interrupts:
        try:
            with interrupts.heeded():
                interrupt()
                steps.append("not reached")
        finally:
            interrupt()
            steps.append("tidied")


def heeded_by_the_inner_one_only(steps: list[str]) -> None:
    with Interrupts() as outer:
        with Interrupts() as inner, inner.heeded():
            interrupt()
            steps.append("inner goes on")
        steps.append("outer goes on")
        with outer.heeded():
            steps.append("not reached")


def aside(steps: list[str]) -> None:
    end = threading.Event()
    with Interrupts() as interrupts:
        threading.Timer(0.05, interrupt).start()
        try:
            interrupts.aside(lambda: end.wait(10))
        finally:
            steps.append("left alone")
            end.set()


@pytest.mark.parametrize(
    ("story", "steps"),
    [
        (heeded_later, ["noted"]),
        (never_heeded, ["noted"]),
        (again_while_tidying_up, ["tidied"]),
        (heeded_by_the_inner_one_only, ["inner goes on", "outer goes on"]),
        (aside, ["left alone"]),
    ],
)
def test_a_signal_is_raised_where_it_is_heeded_or_else_at_the_end(
    story: Story, steps: list[str]
) -> None:
    done: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        story(done)
    assert done == steps
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_what_is_done_aside_returns_and_raises() -> None:
    with Interrupts() as interrupts:
        assert interrupts.aside(lambda: 42) == 42
        with pytest.raises(ZeroDivisionError):
            interrupts.aside(lambda: 1 // 0)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_the_handler_from_before_decides_and_comes_back(number: signal.Signals) -> None:
    seen: list[int] = []
    before = signal.signal(number, lambda got, _: seen.append(got))
    try:
        mine = signal.getsignal(number)
        with Interrupts():
            os.kill(os.getpid(), number)
            assert seen == []
        assert seen == [number]
        assert signal.getsignal(number) is mine
    finally:
        signal.signal(number, before)


@pytest.mark.parametrize("moment", ["entered", "left"])
def test_a_signal_while_it_is_entered_or_left_makes_later_ones_count_too(
    monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """Between two signals' handlers: whichever are ours then must not keep what comes later."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    really = signal.signal

    def set_and_interrupt(number: int, handler: Callable[[int, object], object]) -> object:
        result = really(number, handler)
        if number == signal.SIGINT:
            os.kill(os.getpid(), signal.SIGTERM if moment == "entered" else signal.SIGINT)
        return result

    def hold() -> None:
        with Interrupts():
            if moment == "left":
                monkeypatch.setattr(signal, "signal", set_and_interrupt)

    if moment == "entered":
        monkeypatch.setattr(signal, "signal", set_and_interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            hold()
        monkeypatch.undo()
        for number in (signal.SIGINT, signal.SIGTERM):
            with pytest.raises(KeyboardInterrupt):
                os.kill(os.getpid(), number)
    finally:
        really(signal.SIGTERM, before)


def test_an_ignored_signal_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Interrupts() as interrupts, interrupts.heeded():
            os.kill(os.getpid(), signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_an_inner_block_that_heeds_leaves_the_outer_one_as_it_was() -> None:
    def interrupted() -> None:
        with Interrupts() as interrupts, interrupts.heeded():
            with interrupts.heeded():
                pass
            interrupts.aside(lambda: None)
            os.kill(os.getpid(), signal.SIGINT)
            pytest.fail("not heeded")

    with pytest.raises(KeyboardInterrupt):
        interrupted()
