"""Counts a log twice, as a batch and as a stream, and says where the tasks ran.

usage: spark-submit --master URL cluster.py LOG CHECKPOINT RESULT BYTES-PER-TRIGGER
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession


def main(log: str, checkpoint: str, result: str, trigger: str) -> None:
    spark = SparkSession.builder.getOrCreate()
    given = {"path": log, "table": "notes", "columns": "id"}
    batch = tasks(spark.read.format("penstock").options(**given).load())
    streamed: list[list[Any]] = []

    def collect(frame: DataFrame, _batch_id: int) -> None:
        streamed.append(tasks(frame))

    query = (
        spark.readStream.format("penstock")
        .options(**given, maxBytesPerTrigger=trigger)
        .load()
        .writeStream.foreachBatch(collect)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    Path(result).write_text(json.dumps({"batch": batch, "stream": streamed}))
    spark.stop()


def tasks(frame: DataFrame) -> list[Any]:
    """For each task: the directory of the executor that ran it, how many rows, their sum."""

    def totals(rows: Iterable[Row]) -> Iterator[tuple[str, int, int]]:
        numbers = [row["id"] for row in rows]
        yield str(Path.cwd()), len(numbers), sum(numbers)

    return frame.select("id").rdd.mapPartitions(totals).collect()


if __name__ == "__main__":
    main(*sys.argv[1:])
