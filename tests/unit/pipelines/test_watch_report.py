"""A look at the sources that fails is reported, and not again and again. M7.3"""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from penstock.errors import ConnectionLost, PrivilegeMissing, SourceError, TargetMismatch
from penstock.pipelines.watch_report import WatchReport

LOST = PrivilegeMissing('role "capture" may not connect', remedy="GRANT CONNECT …")
DOWN = ConnectionLost("the server is down", remedy="Start it")


def looked(report: WatchReport, error: SourceError | None) -> None:
    with report.of_a_look():
        if error is not None:
            raise error


def test_a_privilege_that_is_lost_is_reported_at_once_and_then_at_a_slow_pace() -> None:
    now = [0.0]
    report = WatchReport(lambda: now[0])
    with capture_logs() as logs:
        for _ in range(40):  # twenty minutes
            looked(report, LOST)
            now[0] += 30
    assert [each.get("for") for each in logs] == [None, "1 min", "5 min", "10 min"]
    assert {each["reason"] for each in logs} == {LOST.problem}
    assert {each["remedy"] for each in logs} == {LOST.remedy}
    with capture_logs() as logs:
        looked(report, None)
        looked(report, None)
    assert [each["event"] for each in logs] == ["the source's tables are looked at again"]
    with capture_logs() as logs:
        looked(report, LOST)
    assert len(logs) == 1


def test_a_server_that_is_down_for_a_moment_is_for_capture_to_report() -> None:
    now = [0.0]
    report = WatchReport(lambda: now[0])
    with capture_logs() as logs:
        looked(report, DOWN)
        now[0] = 30
        looked(report, DOWN)
        looked(report, None)
        assert logs == []
        looked(report, DOWN)
        now[0] = 100
        looked(report, DOWN)
    assert [each["reason"] for each in logs] == [DOWN.problem]


def test_what_is_not_about_the_source_is_not_kept_back() -> None:
    with pytest.raises(TargetMismatch), WatchReport().of_a_look():
        raise TargetMismatch("a target is gone", remedy="…")
