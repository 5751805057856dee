"""The benchmarks of aggregates with small numbers: they run, and check what they measure."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
from pyspark.sql import SparkSession

from penstock.bench import freshness, pipeline, seed
from penstock.bench.report import Report


def quietly(_line: str) -> None:
    """Progress is for people."""


@pytest.fixture(autouse=True)
def session(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """That of all tests: each would start its own, which takes longer than all the rest."""

    def shared(*_: object, **__: object) -> nullcontext[SparkSession]:
        return nullcontext(spark)

    monkeypatch.setattr(freshness, "job_session", shared)
    monkeypatch.setattr(pipeline, "job_session", shared)
    monkeypatch.setattr(seed, "job_session", shared)


def goals(report: Report) -> dict[str, float | None]:
    return {figure.name: figure.goal for figure in report.figures}


def test_a_backlog_is_counted_beside_both_peers() -> None:
    report = pipeline.bench_pipeline(quietly, changes=2_000, repeats=1, warm_up_s=1)
    assert goals(report) == {
        "rate ratio to pg_recvlogical": 0.8,
        "rate ratio to polling": 2.0,
        "slot to counts": None,
    }
    (run,) = report.runs
    assert run["changes"] == 2_000
    assert min(run["penstock_s"], run["pg_recvlogical_s"], run["polling_s"]) > 0


def test_every_probe_of_freshness_is_seen() -> None:
    report = freshness.bench_freshness(quietly, rate=200, warm_up_s=2, seconds=2)
    found = {figure.name: figure for figure in report.figures}
    assert (found["p50"].goal, found["p99"].goal) == (200, 600)
    assert found["rate reached"].goal == 200
    assert 0 < found["p50"].value <= found["p99"].value <= found["longest"].value
    # One that was never seen would be as late as half a minute.
    assert found["longest"].value < 30_000
    assert report.runs[0]["probes"] > 1


def test_seeding_is_compared_for_columns_and_for_expressions() -> None:
    report = seed.bench_seed(quietly, rows=5_000, repeats=1)
    assert goals(report) == {
        "plain columns to GROUP BY": 1.5,
        "expressions to COPY": 1.5,
        "seven dimensions to COPY": 1.5,
        "expressions of every second to COPY": None,
        "rows": None,
    }
    assert min(report.runs[0].values()) > 0
