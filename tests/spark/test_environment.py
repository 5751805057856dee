"""From where people start Spark: a virtual environment that is not activated, a notebook."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from support.applications import APPS, SPARK_HOME, application
from support.notes import NotesLog

TESTS = Path(__file__).parents[1]

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


def test_every_trigger_delivers_from_an_environment_that_nobody_activated(
    log: Path, tmp_path: Path
) -> None:  # M5.1
    command = [sys.executable, APPS / "triggers.py", log, tmp_path]
    with application(command, tmp_path, {"PYTHONPATH": str(TESTS)}) as running:
        running.succeeded(within_s=120)
    delivered = json.loads((tmp_path / "delivered.json").read_text())
    everything = [0, 1, 2, 3, 4]
    assert delivered == {
        "default": everything,
        "processingTime": everything,
        "availableNow": everything,
    }


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
