"""The benchmarks of the Spark source with small numbers: they run, and check what they measure."""

from __future__ import annotations

from penstock.bench.decode import bench_decode
from penstock.bench.source import bench_source


def quietly(_line: str) -> None:
    """Progress is for people."""


def test_decoding_is_measured_for_all_and_for_four_columns() -> None:
    report = bench_decode(quietly, inserts=2_000, repeats=1)
    assert [(figure.name, figure.goal) for figure in report.figures] == [
        ("all nine columns", 0.7),
        ("four columns", 1.2),
        ("reading the log", None),
    ]
    assert all(figure.value > 0 for figure in report.figures)


def test_the_source_is_compared_planned_and_left_idle() -> None:
    report = bench_source(quietly, inserts=2_000, repeats=1, segments=(10, 50), idle_s=1)
    found = {figure.name: figure for figure in report.figures}
    assert found["rate ratio to pg_recvlogical"].goal == 4
    assert found["planning, 50 segments to 10"].value > 0
    assert found["idle stream"].goal == 5
    assert len(report.runs) == 1
