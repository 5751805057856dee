"""What keeps the job from running is told before Spark is started."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import psycopg
import pytest

from penstock.config import Config
from penstock.errors import (
    ConnectionLost,
    InputUnfit,
    PenstockError,
    SourceUnavailable,
    TargetMismatch,
    TargetUnavailable,
)
from penstock.pipelines import running, sources, writing
from penstock.pipelines.running import run_aggregates
from support.capturing import capture_config
from support.database import Database
from support.logs import begin_log
from support.targets import declared, with_tables


def no_target(database: Database) -> dict[str, Any]:
    database.run("DROP TABLE stats")
    return {}


def no_source(database: Database) -> dict[str, Any]:
    database.run("DROP TABLE notifications")
    return {}


def not_set_up(database: Database) -> dict[str, Any]:
    database.run("DROP SCHEMA penstock CASCADE")
    return {}


def away(_: Database) -> dict[str, Any]:
    return {"target_dsn": "host=127.0.0.1 port=1"}


class Started(Exception):
    """Spark would be started now."""


def started(*_: object, **__: object) -> NoReturn:
    raise Started


@pytest.mark.parametrize(
    ("trouble", "error"),
    [
        (no_target, TargetMismatch),
        (not_set_up, TargetMismatch),
        (no_source, InputUnfit),
        (away, SourceUnavailable),
    ],
)
def test_spark_is_not_started_in_vain(
    database18: Database,
    config: Config,
    monkeypatch: pytest.MonkeyPatch,
    trouble: Callable[[Database], dict[str, Any]],
    error: type[PenstockError],
) -> None:  # M7.3
    monkeypatch.setattr(running, "job_session", started)
    declarations = (declared(**trouble(database18)),)
    with pytest.raises(error):
        run_aggregates(config.model_copy(update={"aggregate": declarations}))


def test_one_of_two_targets_is_enough_to_begin(
    database18: Database, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:  # M5.3
    monkeypatch.setattr(running, "job_session", started)
    both = declared(), declared(name="others", **away(database18))
    with pytest.raises(Started):
        run_aggregates(config.model_copy(update={"aggregate": both}))


def test_a_target_that_somebody_has_locked_is_one_of_our_errors(
    database18: Database, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:  # M5.3, M7.3
    monkeypatch.setattr(running, "job_session", started)
    monkeypatch.setattr(writing, "_WAIT_S", 0.2)
    with database18.connect(autocommit=False) as other:
        other.execute("LOCK TABLE penstock.progress")
        with pytest.raises(TargetUnavailable, match=r"counts .*: LockNotAvailable") as raised:
            run_aggregates(config.model_copy(update={"aggregate": (declared(),)}))
    assert raised.value.remedy.startswith("Others write there, such as a reset")


def test_a_source_that_is_lost_at_the_start_is_one_of_our_errors(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:  # M7.3
    monkeypatch.setattr(running, "job_session", started)

    def lost(connection: psycopg.Connection, _: object) -> None:
        connection.execute("SELECT pg_terminate_backend(pg_backend_pid())")

    monkeypatch.setattr(sources, "read_tables", lost)
    with pytest.raises(ConnectionLost, match="read the source's catalog"):
        run_aggregates(config.model_copy(update={"aggregate": (declared(),)}))


@pytest.fixture
def config(database18: Database, tmp_path: Path) -> Config:
    database18.run("CREATE TABLE notifications (id int, service text, status text)")
    with_tables(
        database18,
        "CREATE TABLE stats (service text, status text, count int NOT NULL DEFAULT 0,"
        " UNIQUE NULLS NOT DISTINCT (service, status))",
    )
    begin_log(database18, tmp_path, database18.wal_position())
    return capture_config(database18.dsn(), tmp_path, tables=["notifications"])
