"""The shape of a benchmark's result."""

from __future__ import annotations

import json

import pytest

from penstock.bench.report import Figure, Report
from penstock.bench.tracker import bench_tracker


@pytest.mark.parametrize(
    ("figure", "met"),
    [
        (Figure("speed", 0.96, "ratio", goal=0.95), True),
        (Figure("speed", 0.94, "ratio", goal=0.95), False),
        (Figure("memory", 60, "MiB", goal=64, at_least=False), True),
        (Figure("memory", 65, "MiB", goal=64, at_least=False), False),
        (Figure("cpu", 3, "s"), None),
    ],
)
def test_a_figure_knows_whether_it_meets_its_goal(figure: Figure, met: bool | None) -> None:
    assert figure.met is met
    assert Report("x", [figure], []).met is (met is not False)


def test_a_report_is_one_json_object_with_everything_that_a_reader_needs() -> None:  # M7.1
    report = bench_tracker(lambda _line: None, events=2_000)
    read = json.loads(json.dumps(report.as_dict()))
    assert set(read) == {"name", "figures", "machine", "versions", "runs"}
    assert read["name"] == "tracker"
    assert set(read["figures"][0]) == {"name", "value", "unit", "goal", "met"}
    assert read["figures"][0]["value"] > 0
    assert {"python", "penstock"} <= set(read["versions"])
    assert read["machine"]["cores"] >= 1
    assert len(read["runs"]) == 5
