"""Print the changes of one table as they are committed, until Ctrl-C.

    python examples/print_stream.py LOG TABLE

LOG is the directory that `penstock capture` writes, TABLE such as `orders` or `sales.orders`.
"""

import sys
import time

from penstock.spark.session import local_session


def main(log: str, table: str) -> None:
    # Any session will do: the source needs no register() call once Penstock is installed. This one
    # is quiet, and tells Spark to use this Python although nobody activated its environment.
    spark = local_session("print a stream")

    # The table's own columns with their types, and behind them what happened to the row:
    # _change_type, _commit_version (the commit's LSN), _commit_timestamp, _seq, _xid, …
    changes = spark.readStream.format("penstock").options(path=log, table=table).load()

    query = (
        changes.drop("_xid", "_unchanged", "_absent")
        .writeStream.format("console")
        .option("truncate", "false")
        # Without a checkpoint location, each start begins at the earliest change in the log.
        .start()
    )
    try:
        # Ctrl-C in the midst of a call to the JVM would be a page of traces; while we sleep, it is
        # not.
        while query.isActive:
            time.sleep(0.5)
        # It has failed, and this raises why.
        query.awaitTermination()
    except KeyboardInterrupt:
        query.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
