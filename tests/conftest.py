"""Real servers for the tests: one of each version, started when first needed.

`server` runs a test once per version on a shared server; each test gets a database (and so its
own slots) that is dropped at the end. Tests that stop or crash a server ask for `own_server`.
"""

from __future__ import annotations

import functools
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import structlog

from penstock.postgres.embedded import SUPPORTED_VERSIONS, EmbeddedPostgres
from support.database import Database
from support.scratch import use_memory

# A decoding buffer this small makes Postgres stream transactions of a few hundred rows.
SETTINGS: dict[str, str | int] = {"logical_decoding_work_mem": "64kB"}


def pytest_configure() -> None:
    use_memory()


def pytest_report_header() -> list[str]:
    lines = [f"files of tests: {tempfile.gettempdir()}"]
    for version in SUPPORTED_VERSIONS:
        programs = EmbeddedPostgres(version)
        lines.append(f"PostgreSQL {version}: {programs.full_version}")
        programs.close()
    return lines


@pytest.fixture(autouse=True)
def _logs_as_they_were() -> Iterator[None]:
    """A command that runs in the test's process has its log go where that test's output goes."""
    yield
    structlog.reset_defaults()


@pytest.fixture(scope="session")
def _servers() -> Iterator[Callable[[int], EmbeddedPostgres]]:
    started: dict[int, EmbeddedPostgres] = {}
    with ExitStack() as stack:

        def get(version: int) -> EmbeddedPostgres:
            if version not in started:
                started[version] = stack.enter_context(EmbeddedPostgres(version, settings=SETTINGS))
            return started[version]

        yield get


@pytest.fixture(params=SUPPORTED_VERSIONS, ids=lambda version: f"pg{version}")
def server(
    request: pytest.FixtureRequest, _servers: Callable[[int], EmbeddedPostgres]
) -> EmbeddedPostgres:
    """The shared server of each supported version in turn."""
    return _servers(request.param)


@pytest.fixture
def server18(_servers: Callable[[int], EmbeddedPostgres]) -> EmbeddedPostgres:
    """The shared PostgreSQL 18, for what does not depend on the version."""
    return _servers(18)


@pytest.fixture(scope="session")
def _initialised(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Path]:
    """A data directory of each version that was never started: `initdb` takes a second."""

    @functools.cache
    def get(version: int) -> Path:
        directory = tmp_path_factory.mktemp(f"pg{version}")
        EmbeddedPostgres(version, data_dir=directory)._initialise()
        return directory / "data"

    return get


@pytest.fixture(params=SUPPORTED_VERSIONS, ids=lambda version: f"pg{version}")
def own_server(
    request: pytest.FixtureRequest, _initialised: Callable[[int], Path]
) -> Iterator[EmbeddedPostgres]:
    """A server that the test may stop, crash or reconfigure."""
    own = EmbeddedPostgres(request.param, settings=SETTINGS)
    if own._programs.owner is None:  # else another user must own it, as `initdb` sees to
        shutil.copytree(_initialised(request.param), own.data_dir)
    with own:
        yield own


@pytest.fixture
def database(server: EmbeddedPostgres, request: pytest.FixtureRequest) -> Iterator[Database]:
    """A database of the test's own on the shared server of each version."""
    with fresh_database(server, request) as fresh:
        yield fresh


@pytest.fixture
def database18(server18: EmbeddedPostgres, request: pytest.FixtureRequest) -> Iterator[Database]:
    with fresh_database(server18, request) as fresh:
        yield fresh


def fresh_database(server: EmbeddedPostgres, request: pytest.FixtureRequest) -> Database:
    name = re.sub(r"\W+", "_", request.node.name.lower())[:50].strip("_")
    return Database(server, f"t_{name}")
