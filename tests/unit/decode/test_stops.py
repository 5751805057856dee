"""Stops of aggregates: kept as JSON, shown as sentences."""

from __future__ import annotations

import pytest

from penstock.decode.stops import Stop, StopCode


@pytest.mark.parametrize("code", StopCode)
def test_every_stop_is_kept_and_shown_with_its_remedy(code: StopCode) -> None:  # M5.8
    stop = Stop(code, "public.t", "status", "0/3E8", was="integer", now="bigint")
    assert Stop.from_json(stop.to_json()) == stop
    error = stop.error("counts")
    assert error.problem.startswith("aggregate counts has stopped: ")
    assert "penstock reset counts" in error.remedy
    assert "{" not in str(error)


def test_a_stop_that_no_commit_told_comes_first() -> None:
    found = [Stop(StopCode.TRUNCATED, "t", lsn="1/0"), Stop(StopCode.NOT_SENT, "t")]
    assert min(found, key=lambda stop: stop.order).code is StopCode.NOT_SENT
