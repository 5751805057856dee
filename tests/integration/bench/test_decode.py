"""The benchmark of decoding with small numbers: it runs, and measures what it should."""

from __future__ import annotations

from penstock.bench.decode import bench_decode


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
