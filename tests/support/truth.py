"""What the source's own rows add up to, at a snapshot, by the server itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NoReturn

from penstock.changelog.reader import LogReader
from penstock.config import Config
from penstock.declarations import AggregateConfig
from penstock.lsn import Lsn
from penstock.pipelines.binding import Bound, bind, types_of
from penstock.pipelines.sums import rolled_up
from penstock.pipelines.truth import true_sums
from penstock.postgres.snapshots import Snapshot, snapshot
from penstock.postgres.tables import read_tables
from support.capturing import capture_config
from support.database import Database
from support.targets import declared
from support.waiting import eventually
from support.workload import PUBLICATION, SLOT

NOTIFICATIONS = (
    "CREATE TABLE notifications (id int PRIMARY KEY, service text, status text)",
    "ALTER TABLE notifications ADD price numeric(10,2)",
    "ALTER TABLE notifications REPLICA IDENTITY FULL",
)


def no_spark() -> NoReturn:
    raise AssertionError("Spark is not needed for plain columns")


COUNTS = declared(measures={"count": "count", "cost": "sum(price)"})


def truth_of(
    source: Snapshot, config: AggregateConfig = COUNTS
) -> tuple[Bound, dict[Any, tuple[Any, ...]]]:
    types = types_of(read_tables(source.connection, [each.table for each in config.sources]))
    bound = bind(config, types, source.lsn)
    sums = true_sums(source.connection, bound, no_spark).sums
    return bound, rolled_up(sums, list(config.dimensions), list(config.measures))


def truth(database: Database, config: AggregateConfig = COUNTS) -> dict[Any, tuple[Any, ...]]:
    with snapshot(database.dsn()) as source:
        return truth_of(source, config)[1]


def published(database: Database, path: Path) -> Config:
    database.run(f"CREATE PUBLICATION {PUBLICATION} FOR TABLE notifications")
    database.create_slot(SLOT)
    return capture_config(database.dsn(), path, tables=["notifications"])


def complete(path: Path, lsn: Lsn) -> LogReader:
    """The log, once it is."""
    log = LogReader(path)
    eventually(lambda: log.end().lsn >= lsn, f"the log up to {lsn}")
    return log
