"""A table that is counted, and capture beside it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.config import Config
from penstock.pipelines import staging
from support.capturing import capture_config, capturing
from support.database import Database
from support.targets import with_tables
from support.workload import PUBLICATION, SLOT


@pytest.fixture
def stopped(database: Database, tmp_path: Path) -> Config:
    """Everything is there, and capture does not run."""
    database.run(
        "CREATE TABLE notifications (id int PRIMARY KEY, service text, status text,"
        " price numeric(10,2))",
        "INSERT INTO notifications VALUES (1, 's', '1', 1.5), (2, 's', '1', 2), (3, NULL, '2', 0)",
        "ALTER TABLE notifications REPLICA IDENTITY FULL",
        f"CREATE PUBLICATION {PUBLICATION} FOR TABLE notifications",
    )
    with_tables(
        database,
        "CREATE TABLE stats (service text, status int, count bigint NOT NULL DEFAULT 0,"
        " cost numeric NOT NULL DEFAULT 0)",
    )
    database.create_slot(SLOT)
    return capture_config(database.dsn(), tmp_path, tables=["notifications"])


@pytest.fixture
def config(stopped: Config) -> Iterator[Config]:
    """While capture runs."""
    with capturing(stopped) as running:
        running.connected()
        yield stopped


@pytest.fixture(params=[False, True], ids=["small", "large"])
def either_way(
    request: pytest.FixtureRequest, database: Database, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """Few combinations are compared as parameters, many are staged."""
    if request.param:
        monkeypatch.setattr(staging, "MOST_IN_DRIVER", 1)
    yield
    assert database.value("SELECT count(*) FROM penstock.staged") == 0
