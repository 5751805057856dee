"""The benchmarks of capture with small numbers: they run, and they check what they measure."""

from __future__ import annotations

from penstock.bench.capture import bench_capture
from penstock.bench.flood import bench_flood
from penstock.bench.latency import bench_latency
from penstock.bench.memory import bench_memory
from penstock.bench.report import Figure, Report


def figures(report: Report) -> dict[str, Figure]:
    return {figure.name: figure for figure in report.figures}


def quietly(_line: str) -> None:
    """Progress is for people."""


def test_capture_is_compared_and_the_log_weighed_with_each_compression() -> None:
    found = figures(bench_capture(quietly, inserts=2_000, pairs=1))
    assert found["rate ratio to pg_recvlogical"].goal == 0.95
    assert found["penstock CPU"].value > 0
    sizes = [found[f"log, {name}"].value for name in ("none", "lz4", "zstd")]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] > 0


def test_memory_is_measured_for_both_forms_of_a_transaction() -> None:
    report = bench_memory(quietly, changes=20_000)
    assert [run["form"] for run in report.runs] == ["streamed", "not streamed"]
    assert all(figure.goal == 64 and not figure.at_least for figure in report.figures)
    assert all(run["idle_mib"] > 1 for run in report.runs)


def test_latency_sees_every_transaction() -> None:
    report = bench_latency(quietly, rate=100, seconds=1)
    found = figures(report)
    assert (found["p50"].goal, found["p99"].goal) == (10, 50)
    assert found["p50"].value <= found["p99"].value
    assert report.runs[0]["transactions"] >= 90
    # In memory it takes no time.
    assert 0 <= found["disk sync p50"].value <= found["disk sync p99"].value


def test_a_flood_is_followed_on_one_connection() -> None:
    found = figures(bench_flood(quietly, megabytes=20))
    assert found["connections"].value == 1
    assert found["WAL written"].value >= 20
    assert found["unconfirmed WAL under 1 MB after"].goal == 5
