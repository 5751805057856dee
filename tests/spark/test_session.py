"""A session that is thrown away."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

from penstock.interrupts import Interrupts
from penstock.spark.class_archive import archive_file
from penstock.spark.session import SparkFailed, _environment, throwaway_session


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


def test_the_workers_of_a_cluster_can_reach_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    # M5.7
    assert "SPARK_LOCAL_IP" not in _environment("spark://host:7077")
    assert _environment("spark://host:7077")["PYSPARK_PYTHON"] == sys.executable
    monkeypatch.setenv("PYSPARK_PYTHON", "/there/python3")
    assert _environment("spark://host:7077")["PYSPARK_PYTHON"] == "/there/python3"
    # On this machine it is ours, whatever was meant for another program.
    assert _environment("local[2]")["PYSPARK_PYTHON"] == sys.executable
    assert _environment("local[2]")["SPARK_LOCAL_IP"] == "127.0.0.1"


@pytest.mark.parametrize(
    ("master", "said"),
    [("nonsense", "Master must either be yarn"), ("local[x]", "Could not parse Master URL")],
)
def test_a_master_that_is_none_is_named_without_java_s_stack(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, master: str, said: str
) -> None:  # M5.7, M7.3
    # Other tests may have a session in this process, which pyspark would take instead.
    monkeypatch.setattr(SparkSession, "_instantiatedSession", None)
    for name in ("_active_spark_context", "_gateway", "_jvm"):
        monkeypatch.setattr(SparkContext, name, None)
    with (
        pytest.raises(SparkFailed, match=said) as caught,
        Interrupts() as interrupts,
        throwaway_session("penstock tests", tmp_path / "spark", interrupts, master=master),
    ):
        pass
    assert f"Check that {master} is" in caught.value.remedy
    assert "\tat " not in caught.value.problem


def test_spark_takes_its_classes_from_the_archive_of_make_install(spark: SparkSession) -> None:
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    java = jvm.java.lang.ProcessHandle.current().pid()
    assert archive_file().exists()
    # Java would go on without it, and say nothing.
    assert str(archive_file()) in Path(f"/proc/{java}/maps").read_text()
