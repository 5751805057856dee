"""The benchmark of the Spark source with small numbers: it runs, and checks what it measures."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
from pyspark.sql import SparkSession

from penstock.bench import source


def quietly(_line: str) -> None:
    """Progress is for people."""


def test_the_source_is_compared_planned_and_left_idle(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    # That of all tests: to start another takes longer than all the rest.
    monkeypatch.setattr(source, "throwaway_session", lambda *_, **__: nullcontext(spark))
    report = source.bench_source(quietly, inserts=2_000, repeats=1, segments=(10, 50), idle_s=1)
    found = {figure.name: figure for figure in report.figures}
    assert found["rate ratio to pg_recvlogical"].goal == 4
    assert found["planning, 50 segments to 10"].value > 0
    assert found["idle stream"].goal == 5
    assert len(report.runs) == 1
