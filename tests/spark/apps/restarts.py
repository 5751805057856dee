"""A stream that writes each batch to a file of its own; a batch that comes again replaces itself.

usage: python restarts.py LOG DIRECTORY default|availableNow
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pyspark.sql import DataFrame

from penstock.spark.session import local_session


def main(log: str, where: str, trigger: str) -> None:
    directory = Path(where)
    spark = local_session("restarts")

    def keep(frame: DataFrame, batch_id: int) -> None:
        rows = frame.select("_commit_version", "_seq", "id").collect()
        text = json.dumps([list(row) for row in rows])
        file = directory / "batches" / f"{batch_id}.json"
        if file.exists():
            (directory / "repeated" / file.name).write_text(
                "same" if file.read_text() == text else "another"
            )
        part = file.with_suffix(".part")
        part.write_text(text)
        part.replace(file)

    stream = (
        spark.readStream.format("penstock")
        .options(path=log, table="notes", consumer="restarts", maxRowsPerTrigger="1000")
        .load()
        .writeStream.foreachBatch(keep)
        .option("checkpointLocation", str(directory / "checkpoint"))
    )
    if trigger == "availableNow":
        stream = stream.trigger(availableNow=True)
    query = stream.start()
    (directory / "started").touch()
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
