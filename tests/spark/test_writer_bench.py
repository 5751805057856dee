"""The benchmark of writers with little time: all ways run, and the triggers count right."""

from __future__ import annotations

from penstock.bench.writer import bench_writer


def quietly(_line: str) -> None:
    """Progress is for people."""


def test_writers_are_measured_beside_each_way_to_count() -> None:
    report = bench_writer(quietly, seconds=1, rounds=1)
    ways = ("nothing", "capture", "penstock run", "row trigger", "statement trigger")
    assert [run["with"] for run in report.runs] == list(ways)
    found = {figure.name: figure.value for figure in report.figures}
    for way in ways:
        assert found[f"{way}, commits"] > 0
        assert found[f"{way}, commit p99"] > 0
