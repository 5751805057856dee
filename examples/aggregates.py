"""Follow a log for the aggregates of a configuration file, on whatever Spark it is given.

    spark-submit --master spark://host:7077 examples/aggregates.py penstock.toml

The same as `penstock aggregate`, where Spark's own tools start programs. It may be stopped at any
moment: how far it came is in the targets.
"""

import sys
from pathlib import Path

from penstock.config import load
from penstock.errors import PenstockError
from penstock.logs import configure_logs
from penstock.pipelines.job import Job
from penstock.spark.session import local_session


def main(path: str) -> None:
    configure_logs()
    try:
        Job(load(Path(path)), local_session("penstock aggregate")).run()
    except PenstockError as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main(*sys.argv[1:])
