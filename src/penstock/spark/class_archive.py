"""Spark's classes as Java keeps them in memory, in a file: a session starts in half the time.

Java maps the file instead of reading, checking and linking ten thousand classes. `make install`
makes it; elsewhere `python -m penstock.spark.class_archive` does. It lies with Spark's own files,
whose paths and times it holds: a Java that finds other ones, or is another Java, leaves it alone.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark import SparkContext
from pyspark.find_spark_home import _find_spark_home
from pyspark.sql import DataFrame, SparkSession

# Java writes 150 MB at its end, on whatever disk this is.
_END_S = 300.0
_SILENT = "-Xlog:cds=off -Xlog:cds+dynamic=off"


def archive_file() -> Path:
    return Path(_find_spark_home()) / "penstock-classes.jsa"


def use_archive() -> str:
    """Java's options, if there is an archive."""
    file = archive_file()
    # Java would say on its output that an archive is of no use to it.
    return f'"-XX:SharedArchiveFile={file}" {_SILENT}' if file.exists() else ""


def make_archive() -> None:
    """Do a little of all that a pipeline does; Java keeps the classes that it needed for that."""
    file = archive_file()
    unfinished = file.with_suffix(f".{os.getpid()}")
    os.environ |= {
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_SUBMIT_OPTS": f'"-XX:ArchiveClassesAtExit={unfinished}" {_SILENT}',
    }
    try:
        with tempfile.TemporaryDirectory(prefix="penstock-") as directory:
            session = _session(directory)
            _work(session, directory)
            session.stop()
            jvm = SparkContext._gateway.proc  # type: ignore[union-attr]  # noqa: SLF001 - pyspark does not wait for it
            jvm.stdin.close()
            jvm.wait(_END_S)
        unfinished.replace(file)
    finally:
        unfinished.unlink(missing_ok=True)


def _session(directory: str) -> SparkSession:
    return (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.authenticate", "true")
        .config("spark.local.dir", directory)
        .config("spark.sql.warehouse.dir", f"{directory}/warehouse")
        .config("spark.python.unix.domain.socket.enabled", "true")
        .getOrCreate()
    )


def _work(session: SparkSession, directory: str) -> None:
    session.sparkContext.setLogLevel("OFF")
    stream = session.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).load()
    query = (
        stream.mapInArrow(_same, stream.schema)
        .writeStream.foreachBatch(_group)
        .option("checkpointLocation", f"{directory}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def _same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


def _group(batch: DataFrame, _number: int) -> None:
    batch.persist()
    batch.selectExpr("value % 3 AS key", "value").groupBy("key").sum("value").toArrow()
    batch.limit(5).collect()
    batch.unpersist()


if __name__ == "__main__":
    make_archive()
