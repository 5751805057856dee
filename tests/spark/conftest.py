"""One Spark session for all Spark tests, as starting one takes seconds; and what they read."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from penstock.spark.session import local_session
from support.applications import JAVA
from support.database import Database
from support.notify import SCHEMA
from support.proxy import Proxy

PRELOADED = Path(__file__).parent / "preloaded"


@pytest.hookimpl(tryfirst=True)  # xdist looks at marks in the same hook
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Where tests run in several processes, those with the session are in one of them, which
    begins with them: they take almost half of the time.
    """
    items.sort(key=lambda item: not _has_session(item))
    for item in filter(_has_session, items):
        item.add_marker(pytest.mark.xdist_group("spark"))


def _has_session(item: pytest.Item) -> bool:
    return "spark" in getattr(item, "fixturenames", ())


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAVA_TOOL_OPTIONS", JAVA)
        patch.setenv("PYTHONPATH", str(PRELOADED), prepend=os.pathsep)
        session = local_session("penstock tests")
    yield session
    session.stop()


@pytest.fixture
def prepared(database18: Database) -> Database:
    """The tables of notifications, their targets, and a slot."""
    database18.run(*SCHEMA)
    database18.create_slot("penstock")
    return database18


@pytest.fixture
def proxy(prepared: Database) -> Iterator[Proxy]:
    with Proxy(prepared.server.port) as proxy:
        yield proxy
