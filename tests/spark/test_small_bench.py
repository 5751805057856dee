"""The benchmark of small transactions with few of them: it runs, and has a frame for each."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
from pyspark.sql import SparkSession

from penstock.bench import small


def quietly(_line: str) -> None:
    """Progress is for people."""


def test_small_transactions_are_compared_with_larger_ones(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    # That of all tests: to start another takes longer than all the rest.
    monkeypatch.setattr(small, "throwaway_session", lambda *_, **__: nullcontext(spark))
    monkeypatch.setattr(small, "_WARM_UP", 0)
    report = small.bench_small(quietly, changes=1_000, repeats=1)
    found = {figure.name: figure for figure in report.figures}
    for what in ("read, decode, group by four", "penstock log check"):
        assert found[f"{what}, transactions of 1 to those of 100"].goal == 2
        assert found[f"{what}, transactions of 1"].value > 0
    assert found["frames, transactions of 1"].value >= 1_000
    assert found["frames, transactions of 100"].value < 100
