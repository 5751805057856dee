"""Errors that come again, in a log for people. M7.3"""

from __future__ import annotations

from typing import Any

import pytest

from penstock.told import Told

FAILED: dict[str, Any] = {
    "event": "failed",
    "part": "aggregates",
    "problem": "partitions have another replica identity",
    "remedy": "Run:\n  ALTER TABLE a REPLICA IDENTITY FULL;",
}
AGAIN = {
    "event": "failed",
    "part": "aggregates",
    "still": "partitions have another replica identity (told above)",
}


def test_the_same_error_is_told_in_full_once() -> None:
    told = Told()
    assert told.shortened(FAILED, 0) == FAILED
    assert told.shortened(FAILED, 1) == AGAIN
    assert told.shortened(FAILED, 31) == AGAIN


def test_another_error_is_told_in_full_and_then_the_first_again() -> None:
    told = Told()
    other = {**FAILED, "remedy": "Run:\n  ALTER TABLE b REPLICA IDENTITY FULL;"}
    for event in (FAILED, other, FAILED):
        assert told.shortened(event, 0) == event
    # What others say is theirs.
    for who in ({"part": "capture"}, {"aggregate": "counts"}, {"event": "not seeded"}):
        assert told.shortened({**FAILED, **who}, 0) == {**FAILED, **who}
    assert told.shortened(FAILED, 0) == AGAIN


def test_it_is_told_in_full_now_and_then() -> None:
    told = Told()
    in_full = [now for now in range(0, 3600, 30) if "problem" in told.shortened(FAILED, now)]
    assert in_full == [0, 600, 1200, 1800, 2400, 3000]


def test_one_that_had_gone_is_told_in_full_when_it_is_back() -> None:
    told = Told()
    in_full = [now for now in (0, 30, 60, 300, 330) if "problem" in told.shortened(FAILED, now)]
    assert in_full == [0, 300]


@pytest.mark.parametrize(
    "event",
    [
        {"event": "state", "capture": "running"},
        {"event": "reconnecting", "reason": "the connection broke", "pause_s": 1},
        {"event": "failed", "problem": "no slot", "remedy": "Run setup"},
    ],
)
def test_what_is_short_or_no_error_is_told_as_it_is(event: dict[str, Any]) -> None:
    told = Told()
    assert [told.shortened(event, now) for now in range(3)] == [event] * 3


def test_what_is_still_wrong_fits_a_line() -> None:
    told = Told()
    long = {"event": "not seeded", "reason": "word " * 100}
    assert told.shortened(long, 0) == long
    still = told.shortened(long, 1)["still"]
    assert len(still) < 120
    assert still.endswith("word … (told above)")
