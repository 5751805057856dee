"""Says what the session is that examples start.

usage: spark-submit --master URL session.py RESULT
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from penstock.spark.session import local_session


def main(result: str) -> None:
    spark = local_session("session")
    found = {
        "master": spark.sparkContext.master,
        "partitions": spark.conf.get("spark.sql.shuffle.partitions"),
        "ui": spark.sparkContext.getConf().get("spark.ui.enabled"),
        "python": os.environ["PYSPARK_PYTHON"],
    }
    Path(result).write_text(json.dumps(found))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
