"""A session that is thrown away."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.interrupts import Interrupts
from penstock.spark.session import SparkFailed, throwaway_session


def test_when_spark_does_not_start_it_is_told_what_spark_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", "/nonexistent")
    with (
        pytest.raises(SparkFailed, match="/nonexistent/bin/java: No such file") as caught,
        Interrupts() as interrupts,
        throwaway_session("penstock tests", tmp_path / "spark", interrupts),
    ):
        pass
    assert "Java" in caught.value.remedy
