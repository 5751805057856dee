"""The job's look at its sources, every half minute, by a role that loses its privileges. M7.3"""

from __future__ import annotations

from pathlib import Path
from unittest.mock import Mock

import pytest
from structlog.testing import capture_logs

from penstock.pipelines import job
from penstock.pipelines.job import Job
from support.aggregates import config_with, declared
from support.database import Database
from support.jobs import captured
from support.waiting import eventually


def test_a_privilege_lost_while_the_job_runs_is_reported_and_ends_nothing(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job, "_SOURCES_EVERY_S", 0.05)
    role = f"{database.name}_role"
    database.run(
        "CREATE TABLE notes (id int PRIMARY KEY, status text NOT NULL)",
        "ALTER TABLE notes REPLICA IDENTITY FULL",
        "CREATE PUBLICATION penstock FOR TABLE notes",
        f"CREATE ROLE {role} LOGIN REPLICATION",
    )
    database.create_slot("penstock")
    config = config_with(
        database,
        declared(sources=["notes"], dimensions=["status"]),
        dsn=database.dsn(user=role),
        keepalive_interval_s=0.1,
    )
    config = config.model_copy(
        update={"log": config.log.model_copy(update={"path": tmp_path / "log"})}
    )
    try:
        with captured(config):
            pass
        watcher = Job(config, Mock())
        with capture_logs() as logs, watcher._beside(watcher._watch_sources, "watching"):
            database.run(f"REVOKE CONNECT ON DATABASE {database.name} FROM PUBLIC")
            eventually(lambda: bool(logs), "it is reported")
            database.run(f"GRANT CONNECT ON DATABASE {database.name} TO {role}")
            eventually(lambda: len(logs) == 2, "it is over")
            assert watcher._failure is None
        first, second = logs
        assert first["log_level"] == "error"
        assert "permission denied for database" in first["reason"]
        assert "GRANT CONNECT" in first["remedy"]
        assert "unnoticed" in first["meanwhile"]
        assert second["event"] == "the source's tables are looked at again"
    finally:
        database.run(f"DROP OWNED BY {role}", f"DROP ROLE {role}")
