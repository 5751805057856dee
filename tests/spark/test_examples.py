"""The examples do what they say, on a log that was captured from a real server."""

from __future__ import annotations

import re
import runpy
import shutil
import sys
from pathlib import Path

import pyarrow.dataset
import pytest
from pyspark.sql import SparkSession

from support.applications import SPARK_HOME, application
from support.capturing import capture_config, capturing
from support.database import Database
from support.oracle import Mirror
from support.waiting import eventually
from support.workload import prepare

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def log(database18: Database, tmp_path: Path) -> Path:
    path = tmp_path / "log"
    prepare(database18)
    add_changes(database18, path)
    return path


def add_changes(database: Database, log: Path) -> None:
    """Three rows come, one of them changes its key, and one goes."""
    with capturing(capture_config(database.dsn(), log)):
        database.run(
            "INSERT INTO items (writer, seq, body) SELECT 1, n, 'one' FROM generate_series(1, 3) n",
            "UPDATE items SET id = id + 100, body = 'two' WHERE id = (SELECT max(id) FROM items)",
            "DELETE FROM items WHERE id = (SELECT min(id) FROM items)",
        )
        Mirror(log).await_marker(database)


def test_a_stream_is_printed_until_ctrl_c(log: Path, tmp_path: Path) -> None:
    command = [sys.executable, EXAMPLES / "print_stream.py", log, "items"]
    with application(command, tmp_path) as running:
        eventually(
            lambda: "|delete" in running.said() or not running.is_running(),
            "the last change is printed",
            within_s=120,
        )
        running.interrupt()
        said = running.succeeded(within_s=30)
    for change in ("insert", "update_preimage", "update_postimage", "delete"):
        assert re.search(rf"\|{change} *\|", said), said
    # A worker of Spark's own may have been about to answer somebody who has gone.
    worker = r'Traceback .*\n(?: +File ".*pyspark/daemon\.py".*\n(?:    .*\n)?)+BrokenPipeError.*\n'
    assert "Traceback" not in re.sub(worker, "", said), said


def test_a_changes_table_in_parquet_gets_each_change_once(
    spark: SparkSession,
    log: Path,
    database18: Database,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    target = tmp_path / "target"
    script = str(EXAMPLES / "changes_to_parquet.py")
    monkeypatch.setattr("sys.argv", [script, str(log), "items", str(target)])
    # It finds the session of these tests, which has to stay: to start Spark twice takes long.
    monkeypatch.setattr(SparkSession, "stop", lambda _session: None)

    def run() -> list[tuple[str, int]]:
        runpy.run_path(script, run_name="__main__")
        table = pyarrow.dataset.dataset(target / "changes", exclude_invalid_files=True).to_table()
        rows = table.sort_by([("_commit_version", "ascending"), ("_seq", "ascending")])
        return [(row["_change_type"], row["id"]) for row in rows.to_pylist()]

    first = [
        ("insert", 1),
        ("insert", 2),
        ("insert", 3),
        ("update_preimage", 3),
        ("update_postimage", 103),
        ("delete", 1),
    ]
    assert run() == first
    add_changes(database18, log)
    assert run() == [
        *first,
        ("insert", 4),
        ("insert", 5),
        ("insert", 6),
        ("update_preimage", 103),
        ("update_postimage", 203),
        ("delete", 2),
    ]


def test_spark_accepts_the_auto_cdc_pipeline(log: Path, tmp_path: Path) -> None:
    pipeline = tmp_path / "auto_cdc"
    shutil.copytree(EXAMPLES / "auto_cdc", pipeline)
    spec = pipeline / "spark-pipeline.yml"
    spec.write_text(spec.read_text().replace("file:///tmp/", f"file://{tmp_path}/"))
    environment = {
        "PENSTOCK_LOG": str(log),
        "PENSTOCK_TABLE": "items",
        "PENSTOCK_KEYS": "id",
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_HOME": str(SPARK_HOME),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    command = [SPARK_HOME / "bin" / "spark-pipelines", "dry-run", "--spec", spec]
    with application(command, tmp_path, environment) as running:
        assert "Run is COMPLETED" in running.succeeded(within_s=180)
