"""One Spark session for all Spark tests: starting one takes seconds."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from penstock.spark.session import local_session
from support.applications import JAVA


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
        session = local_session("penstock tests")
    yield session
    session.stop()
