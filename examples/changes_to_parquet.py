"""Add what is new in the log to a table of changes in Parquet, and end: now and then, or once.

    python examples/changes_to_parquet.py LOG TABLE TARGET

LOG is the directory that `penstock capture` writes, TABLE such as `orders` or `sales.orders`,
TARGET a directory: the Parquet files go to TARGET/changes, the position to TARGET/checkpoint.
"""

import sys

from penstock.spark.session import local_session


def main(log: str, table: str, target: str) -> None:
    spark = local_session("changes to Parquet")
    changes = (
        spark.readStream.format("penstock")
        .options(path=log, table=table)
        # The log keeps what this reader has not taken yet. The name must be its own.
        .option("consumer", "changes-to-parquet")
        # A batch holds whole transactions, as many as fit.
        .option("maxBytesPerTrigger", "64m")
        .load()
    )
    # Spark's file sink takes each batch once, and the checkpoint says which came last: every change
    # is there exactly once, also if this program is killed and started again.
    query = (
        changes.writeStream.format("parquet")
        .option("path", f"{target}/changes")
        .option("checkpointLocation", f"{target}/checkpoint")
        # Up to the log's present end. Leave the trigger out, and it goes on as changes come.
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    # The order of the changes is that of (_commit_version, _seq); the files have none.
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
