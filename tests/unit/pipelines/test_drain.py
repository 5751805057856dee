"""A job that is to end applies what is in the log first. M7.3"""

from __future__ import annotations

from penstock.lsn import Lsn
from penstock.pipelines.drain import Behind, Drain


def test_it_is_over_when_no_aggregate_is_behind() -> None:
    drain = Drain(0.0)
    assert not drain.is_over(None, 1.0)
    assert not drain.is_over({"counts": Behind(Lsn(5), unavailable=False)}, 2.0)
    assert drain.is_over({}, 3.0)


def test_it_goes_on_for_as_long_as_something_is_applied() -> None:
    drain = Drain(0.0)
    for minutes in range(100):
        behind = {"counts": Behind(Lsn(minutes), unavailable=False)}
        assert not drain.is_over(behind, minutes * 60.0)
    assert not drain.is_over(behind, 99 * 60.0 + 590)
    assert drain.is_over(behind, 99 * 60.0 + 600)


def test_targets_that_are_unavailable_are_waited_for_briefly() -> None:
    drain = Drain(0.0)
    gone = {"counts": Behind(Lsn(5), unavailable=True)}
    assert not drain.is_over(gone, 10.0)
    assert not drain.is_over({**gone, "sums": Behind(Lsn(5), unavailable=False)}, 50.0)
    assert not drain.is_over(gone, 60.0)
    assert drain.is_over(gone, 80.0)


def test_a_job_that_never_follows_is_not_waited_for_without_end() -> None:
    drain = Drain(0.0)
    assert not drain.is_over(None, 599.0)
    assert drain.is_over(None, 600.0)
