"""The benchmarks of capture with small numbers: they run, and they check what they measure."""

from __future__ import annotations

from penstock.bench.capture import bench_capture
from penstock.bench.flood import bench_flood
from penstock.bench.latency import bench_latency
from penstock.bench.memory import bench_memory
from penstock.bench.polling import bench_polling
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


def test_latency_sees_every_transaction_and_what_capture_takes_for_them() -> None:
    report = bench_latency(quietly, rates=(100, 500), seconds=1)
    found = figures(report)
    at = "at 500 commits/s"
    assert (found[f"p50 {at}"].goal, found[f"p99 {at}"].goal) == (8, 30)
    assert found[f"p50 {at}"].value <= found[f"p99 {at}"].value
    assert found[f"CPU {at}"].goal == 10
    assert 0 < found[f"CPU {at}"].value < 200
    assert report.runs[0]["transactions"] >= 90
    # In memory it takes no time.
    assert 0 <= found["disk sync p50"].value <= found["disk sync p99"].value


def test_a_flood_is_followed_on_one_connection() -> None:
    found = figures(bench_flood(quietly, megabytes=20))
    assert found["connections"].value == 1
    assert found["WAL written"].value >= 20
    assert found["unconfirmed WAL under 1 MB after"].goal == 5


def test_polling_is_compared_with_streaming_and_with_the_hand_made_design() -> None:
    report = bench_polling(quietly, changes=2_000, repeats=1, idle_runs=5)
    found = figures(report)
    assert found["polling pgoutput, rate ratio to polling by hand"].goal == 1.5
    assert found["idle second, server CPU"].goal == 5
    assert 0 < found["idle second, server CPU"].value < 100
    ways = {run["way"] for run in report.runs}
    assert len(ways) == 5
    assert all(run["rate"] > 0 for run in report.runs)
    assert all(found[f"{way}, server CPU"].value > 0 for way in ways - {"by hand"})
