"""New partitions that get the replica identity of their root from the job. M4.2"""

from __future__ import annotations

from pathlib import Path
from threading import Event
from typing import Any
from unittest.mock import Mock

import pytest
from structlog.testing import capture_logs

from penstock.config import Config
from penstock.errors import PartitionDiffers
from penstock.ops.setup import setup
from penstock.pipelines.job import Job, require_ready
from penstock.pipelines.locks import try_lock
from penstock.pipelines.seeding import seed
from penstock.pipelines.sources import read_sources
from penstock.pipelines.target_session import connect_target
from penstock.pipelines.writing import Writer
from support.aggregates import config_with, declared
from support.database import Database
from support.logs import begin_log
from support.truth import no_spark

FULL = (
    "CREATE TABLE notes (id int, k int, status text, PRIMARY KEY (id, k)) PARTITION BY LIST (k)",
    "CREATE TABLE a PARTITION OF notes FOR VALUES IN (1)",
    "ALTER TABLE notes REPLICA IDENTITY FULL",
    "ALTER TABLE a REPLICA IDENTITY FULL",
)
BY_INDEX = (
    *FULL[:2],
    "ALTER TABLE notes ALTER status SET NOT NULL",
    "CREATE UNIQUE INDEX by_status ON notes (id, k, status)",
    "ALTER TABLE notes REPLICA IDENTITY USING INDEX by_status",
    "ALTER TABLE a REPLICA IDENTITY USING INDEX a_id_k_status_idx",
)
NEW = "CREATE TABLE b PARTITION OF notes FOR VALUES IN (2)"
IDENTITY = "SELECT relreplident::text FROM pg_class WHERE relname = 'b'"


def ready(database: Database, tmp_path: Path, **source: Any) -> Config:
    counts = declared(dimensions=["status"])
    config = config_with(database, counts, **source)
    log = config.log.model_copy(update={"path": tmp_path / "log"})
    config = config.model_copy(update={"log": log})
    setup(config)
    return config


@pytest.mark.parametrize(("tables", "letter"), [(FULL, "f"), (BY_INDEX, "i")])
def test_an_empty_partition_gets_its_identity_and_nothing_stops(
    database: Database, tmp_path: Path, tables: tuple[str, ...], letter: str
) -> None:
    database.run(*tables)
    config = ready(database, tmp_path, fix_new_partitions=True)
    database.run(NEW)
    with capture_logs() as logs:
        assert read_sources(config).unfit == {}
        assert read_sources(config).unfit == {}
    assert database.value(IDENTITY) == letter
    (log,) = logs
    assert (log["partition"], log["was_empty"]) == ("public.b", True)
    assert log["sql"].startswith("ALTER TABLE public.b REPLICA IDENTITY")


def test_it_is_off_unless_asked_for(database18: Database, tmp_path: Path) -> None:
    database18.run(*FULL)
    config = ready(database18, tmp_path)
    database18.run(NEW)
    assert isinstance(read_sources(config).unfit["counts"].error, PartitionDiffers)
    assert database18.value(IDENTITY) == "d"


def test_a_partition_with_rows_gets_it_when_the_stop_of_its_aggregate_is_written(
    database: Database, tmp_path: Path
) -> None:
    database.run(*FULL)
    config = ready(database, tmp_path, fix_new_partitions=True)
    begin_log(database, config.log.path, database.wal_position())
    (aggregate,) = config.aggregate
    seed(config, aggregate, no_spark)
    database.run(NEW, "INSERT INTO notes VALUES (1, 2, 'new')")
    # Nothing but the partition shows that changes were lost, however often it is looked at.
    require_ready(config)
    for _ in range(2):
        assert isinstance(read_sources(config).unfit["counts"].error, PartitionDiffers)
        assert database.value(IDENTITY) == "d"
    job = Job(config, Mock())
    dsn = aggregate.conninfo(config.source.conninfo)
    with Writer(aggregate, dsn, read_sources(config).tables, job._log, Event()) as writer:
        job._writers = [writer]
        job._look_at_sources()
        assert writer.stop is not None
    assert database.value("SELECT stop ->> 'code' FROM penstock.stops") == "partition_differs"
    assert database.value(IDENTITY) == "f"
    assert read_sources(config).unfit == {}


def test_a_partition_with_rows_gets_it_before_its_aggregate_is_seeded_and_not_meanwhile(
    database18: Database, tmp_path: Path
) -> None:
    database18.run(*FULL)
    config = ready(database18, tmp_path, fix_new_partitions=True)
    begin_log(database18, config.log.path, database18.wal_position())
    (aggregate,) = config.aggregate
    database18.run(NEW, "INSERT INTO notes VALUES (1, 2, 'new')")
    job = Job(config, Mock())
    dsn = aggregate.conninfo(config.source.conninfo)
    with Writer(aggregate, dsn, read_sources(config).tables, job._log, Event()) as writer:
        job._writers = [writer]
        with connect_target(dsn) as seeding:
            assert try_lock(seeding, "seeding", "counts")
            job._look_at_sources()
            assert database18.value(IDENTITY) == "d"
        job._look_at_sources()
    assert database18.value(IDENTITY) == "f"
    assert database18.value("SELECT count(*) FROM penstock.stops") == 0


def test_a_partition_that_no_aggregate_needs_is_left_alone(
    database18: Database, tmp_path: Path
) -> None:
    database18.run(*FULL)
    counts = declared(sources=[{"table": "notes", "immutable": ["k"]}], dimensions=["k"])
    config = config_with(database18, counts, fix_new_partitions=True)
    database18.run(
        "ALTER TABLE notes REPLICA IDENTITY DEFAULT", "ALTER TABLE a REPLICA IDENTITY DEFAULT"
    )
    setup(config)
    database18.run(NEW)
    assert read_sources(config).unfit == {}
    assert database18.value(IDENTITY) == "d"


def test_a_role_that_may_not_is_reported_with_the_sql(database: Database, tmp_path: Path) -> None:
    database.run(*FULL)
    ready(database, tmp_path)
    role = f"{database.name}_r"
    database.run(f"CREATE ROLE {role} LOGIN", NEW)
    try:
        other = config_with(
            database,
            declared(dimensions=["status"]),
            fix_new_partitions=True,
            setup_dsn=database.dsn(user=role),
        )
        with capture_logs() as logs:
            for _ in range(3):
                found = read_sources(other).unfit["counts"]
        assert isinstance(found.error, PartitionDiffers)
        (log,) = logs
        assert "must own it" in log["remedy"]
        assert log["remedy"].endswith("ALTER TABLE public.b REPLICA IDENTITY FULL")
        assert "setup_dsn in [source]" in log["remedy"]
    finally:
        database.run(f"DROP ROLE {role}")


def test_a_partition_that_is_in_use_is_not_waited_for_long(
    database: Database, tmp_path: Path
) -> None:
    database.run(*FULL)
    config = ready(database, tmp_path, fix_new_partitions=True)
    database.run(NEW.replace(" b ", " busy "))
    with database.connect(autocommit=False) as writer, capture_logs() as logs:
        writer.execute("SELECT FROM notes")
        assert "counts" in read_sources(config).unfit
        writer.rollback()
    (log,) = logs
    assert log["event"] == "the replica identity of a partition could not be set"
    assert log["partition"] == "public.busy"


def test_only_the_aggregates_that_need_it_stop(database: Database, tmp_path: Path) -> None:
    database.run(*BY_INDEX)
    by_status = declared(dimensions=["status"])
    by_key = declared(name="by_key", dimensions=["k"], targets=["by_key"])
    config = config_with(database, by_status, by_key)
    setup(config)
    database.run(NEW)
    assert set(read_sources(config).unfit) == {"counts"}
