"""Tables that aggregates count."""

from __future__ import annotations

import pytest

from support.aggregates import NOTES
from support.database import Database


@pytest.fixture
def notes(database: Database) -> Database:
    database.run(NOTES)
    return database


@pytest.fixture
def notes18(database18: Database) -> Database:
    database18.run(NOTES)
    return database18
