"""When the log is flushed."""

from __future__ import annotations

import pytest

from penstock.capture.flushing import FlushPolicy


def due(
    policy: FlushPolicy,
    now: float,
    pending: int = 0,
    *,
    drained: bool = False,
    stepped: bool = False,
    unnoted: bool = False,
    urgent: bool = False,
) -> bool:
    return policy.due(
        now,
        pending_bytes=pending,
        drained=drained,
        stepped=stepped,
        unnoted=unnoted,
        urgent=urgent,
    )


def wake_at(policy: FlushPolicy, now: float, pending: int = 0, *, unnoted: bool = False) -> float:
    return policy.wake_at(now, pending_bytes=pending, unnoted=unnoted)


def test_a_lone_transaction_waits_for_nobody() -> None:
    assert due(FlushPolicy(), 0.0, 100, drained=True)


def test_under_load_it_comes_together_until_it_is_enough_or_late() -> None:
    policy = FlushPolicy()
    assert not due(policy, 0.0, 100)
    assert not due(policy, 0.049, 1000)
    assert due(policy, 0.05, 2000)
    policy.flushed(0.05, commits=True)
    assert not due(policy, 0.06, 10_000)
    assert due(policy, 0.06, 4 * 2**20)


def test_where_there_is_more_than_a_little_more_is_waited_for() -> None:
    policy = FlushPolicy()
    much = 100_000
    assert not due(policy, 0.0, much)
    assert wake_at(policy, 0.001, much) == 0.01
    assert not due(policy, 0.009, much, drained=True)
    assert due(policy, 0.01, much, drained=True)
    policy.flushed(0.01, commits=True)
    assert due(policy, 0.02, much, drained=True, urgent=True)
    # A little is flushed as soon as nothing comes any more.
    assert wake_at(policy, 0.03, 100) == 0.03


def test_commits_that_follow_each_other_wait_for_more_of_them() -> None:
    policy = FlushPolicy()
    assert due(policy, 0.0, 100, drained=True), "the first waits for nobody"
    policy.flushed(0.001, commits=True)
    assert not due(policy, 0.002, 100, drained=True)
    # Nothing is read until they have come together, and then they are flushed as they are.
    assert policy.pause_s(0.003, pending_bytes=100) == pytest.approx(0.004)
    assert due(policy, 0.007, 900)
    policy.flushed(0.008, commits=True)
    assert not due(policy, 0.027, 100, drained=True)
    assert due(policy, 0.028, 100, urgent=True)
    policy.flushed(0.028, commits=True)
    # A lone one again: for long enough there was none before it.
    assert due(policy, 0.049, 100, drained=True)
    assert policy.pause_s(0.049, pending_bytes=100) == 0


def test_a_position_alone_is_nothing_that_a_commit_could_follow() -> None:
    policy = FlushPolicy()
    policy.flushed(0.0, commits=False)
    assert due(policy, 0.001, 100, drained=True)


def test_there_is_no_pause_where_more_than_a_few_come() -> None:
    policy = FlushPolicy()
    policy.flushed(0.0, commits=True)
    assert not due(policy, 0.001, 10_000)
    assert policy.pause_s(0.001, pending_bytes=10_000) == 0
    assert due(policy, 0.002, 10_000, drained=True)


def test_what_came_together_before_it_was_read_waits_for_nothing() -> None:
    policy = FlushPolicy()
    assert not due(policy, 0.0, 2**20)
    assert due(policy, 0.0, 2**20, stepped=True)


def test_a_position_alone_is_noted_once_a_second() -> None:  # M3.8
    policy = FlushPolicy()
    assert due(policy, 10.0, unnoted=True)
    policy.flushed(10.0, commits=True)
    assert not due(policy, 10.9, unnoted=True)
    assert wake_at(policy, 10.9, unnoted=True) == 11.0
    assert due(policy, 11.0, unnoted=True)
    assert not due(policy, 99.0)
    assert wake_at(policy, 99.0) == float("inf")


@pytest.mark.parametrize("pending", [0, 100])
def test_a_server_that_shuts_down_does_not_wait(pending: int) -> None:  # M1.6
    policy = FlushPolicy()
    policy.flushed(0.0, commits=True)
    assert due(policy, 0.001, pending, unnoted=True, urgent=True)
