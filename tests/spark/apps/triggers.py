"""Reads a log with each trigger in turn, in one session of Penstock's own.

usage: python triggers.py LOG DIRECTORY
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame

from penstock.spark.session import local_session
from support.waiting import eventually

TRIGGERS: dict[str, dict[str, Any]] = {
    "default": {},
    "processingTime": {"processingTime": "100 milliseconds"},
    "availableNow": {"availableNow": True},
}


def main(log: str, where: str) -> None:
    spark = local_session("triggers")
    delivered: dict[str, list[int]] = {}
    for name, trigger in TRIGGERS.items():
        numbers = delivered[name] = []

        def collect(frame: DataFrame, _batch_id: int, numbers: list[int] = numbers) -> None:
            numbers += [row["id"] for row in frame.collect()]

        writing = (
            spark.readStream.format("penstock")
            .options(path=log, table="notes", maxRowsPerTrigger="2")
            .load()
            .writeStream.foreachBatch(collect)
            .option("checkpointLocation", f"{where}/{name}")
        )
        query = (writing.trigger(**trigger) if trigger else writing).start()
        if name == "availableNow":
            query.awaitTermination()
        else:
            # Three batches: it goes on by itself after the first.
            eventually(lambda got=numbers: len(got) >= 5, "all batches", within_s=60)  # type: ignore[misc]
            query.stop()
    Path(where, "delivered.json").write_text(json.dumps(delivered))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
