"""How people start Spark and its queries: a notebook, `spark-submit`, each trigger.

From a virtual environment that nobody activated, as all applications of these tests are.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from support.applications import APPS, SPARK_HOME, application
from support.notes import NotesLog
from support.waiting import eventually

# Cells, as a notebook runs them: one after the other in a process that has no file.
NOTEBOOK = """
from pyspark.sql import SparkSession
spark = SparkSession.builder.getOrCreate()
changes = spark.read.format("penstock").options(path={log!r}, table="notes").load()
assert [row["id"] for row in changes.collect()] == [0, 1, 2, 3, 4], changes.collect()
stream = spark.readStream.format("penstock").options(path={log!r}, tables="*").load()
query = stream.writeStream.format("memory").queryName("seen").start()
query.processAllAvailable()
assert spark.table("seen").count() == 5
query.stop()
spark.stop()
"""


@pytest.fixture
def log(tmp_path: Path) -> Path:
    with NotesLog(tmp_path / "log") as log:
        for count in (2, 2, 1):
            log.insert(count)
    return log.path


@pytest.mark.parametrize(
    "trigger", [{}, {"processingTime": "100 milliseconds"}, {"availableNow": True}], ids=str
)
def test_every_trigger_delivers(
    spark: SparkSession, log: Path, tmp_path: Path, trigger: dict[str, Any]
) -> None:  # M5.1
    numbers: list[int] = []

    def collect(frame: DataFrame, _batch_id: int) -> None:
        numbers.extend(row["id"] for row in frame.collect())

    writing = (
        spark.readStream.format("penstock")
        .options(path=str(log), table="notes", maxRowsPerTrigger="2")
        .load()
        .writeStream.foreachBatch(collect)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
    )
    query = (writing.trigger(**trigger) if trigger else writing).start()
    if "availableNow" in trigger:
        query.awaitTermination()
    else:
        # Three batches: it goes on by itself after the first.
        eventually(lambda: len(numbers) >= 5, "all batches", within_s=60)
        query.stop()
    assert numbers == [0, 1, 2, 3, 4]


def test_a_session_that_spark_itself_makes_reads_with_no_register_call(
    log: Path, tmp_path: Path
) -> None:  # M5.1
    command = [sys.executable, "-c", NOTEBOOK.format(log=str(log))]
    environment = {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    with application(command, tmp_path, environment) as running:
        running.succeeded(within_s=120)


def test_what_spark_submit_says_comes_before_our_defaults(tmp_path: Path) -> None:
    # Another name of the same Python, as a user may have given.
    python = f"{Path(sys.executable).parent}/./{Path(sys.executable).name}"
    command = [SPARK_HOME / "bin" / "spark-submit", "--master", "local[1]"]
    command += ["--conf", "spark.sql.shuffle.partitions=3", APPS / "session.py", tmp_path / "found"]
    environment = {"PYSPARK_PYTHON": python, "SPARK_HOME": str(SPARK_HOME)}
    with application(command, tmp_path, environment) as running:
        running.succeeded(within_s=120)
    found = json.loads((tmp_path / "found").read_text())
    assert found == {"master": "local[1]", "partitions": "3", "ui": "false", "python": python}
