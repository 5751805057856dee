"""What the tests of aggregates in a database need."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.database import Database
from support.seeding import STATS as SEEDED_STATS
from support.targets import CHECKED, Follower, with_tables
from support.truth import NOTIFICATIONS
from support.writers import STATS, Job


@pytest.fixture(params=[False, True], ids=["small", "large"])
def follower(database: Database, request: pytest.FixtureRequest) -> Iterator[Follower]:
    with_tables(database, CHECKED)
    with Follower(database, staged=request.param) as follower:
        yield follower
        assert database.value("SELECT count(*) FROM penstock.staged") == 0


@pytest.fixture
def job(database: Database, tmp_path: Path) -> Iterator[Job]:
    with_tables(database, STATS)
    job = Job(database, tmp_path)
    yield job
    job.stopping.set()


@pytest.fixture
def source(database: Database) -> Database:
    """With what `support.seeding` seeds, and its target."""
    database.run(
        *NOTIFICATIONS,
        "INSERT INTO notifications VALUES (1, 's', 'a', 1), (2, 's', 'a', 2), (3, NULL, 'b', 3)",
    )
    with_tables(database, SEEDED_STATS)
    return database
