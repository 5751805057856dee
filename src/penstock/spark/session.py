"""A Spark session on this machine, quiet and ready for the `penstock` source."""

from __future__ import annotations

import os
import sys
from importlib import resources

from pyspark.sql import SparkSession


def local_session(name: str) -> SparkSession:
    """`local[*]`, without the web UI."""
    # Spark finds sources and starts workers with this Python, not the first one on the PATH.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    logging = resources.files(__package__).joinpath("log4j2.properties")
    return (
        SparkSession.builder.master("local[*]")
        .appName(name)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "1")
        # Saves 30 to 60 ms in each batch.
        .config("spark.python.unix.domain.socket.enabled", "true")
        .config("spark.driver.extraJavaOptions", f"-Dlog4j2.configurationFile=file:{logging}")
        .getOrCreate()
    )
