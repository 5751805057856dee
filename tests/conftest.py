"""Real servers for the tests: one of each version, started when first needed.

`server` runs a test once per version on a shared server; each test gets a database (and so its
own slots) that is dropped at the end. Tests that stop or crash a server ask for `own_server`.
`support.versions` says which versions there are, and which tests run on which of them.
"""

from __future__ import annotations

import functools
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
import structlog

from penstock.errors import ToolMissing
from penstock.postgres.embedded import EmbeddedPostgres
from penstock.postgres.installations import Version
from support.database import Database
from support.scratch import use_memory
from support.versions import EVERY, NEWEST, USUAL, version_id

# A decoding buffer this small makes Postgres stream transactions of a few hundred rows.
SETTINGS: dict[str, str | int] = {"logical_decoding_work_mem": "64kB"}


def pytest_configure() -> None:
    use_memory()


def pytest_report_header() -> list[str]:
    lines = [f"files of tests: {tempfile.gettempdir()}"]
    for version in EVERY:
        try:
            with closing(make_server(version)) as server:
                lines.append(f"{version_id(version)}: {server.full_version}")
        except ToolMissing as error:
            lines.append(f"{version_id(version)}: {error.problem}. {error.remedy}")
    return lines


@pytest.hookimpl(tryfirst=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test that is marked `every_version` on all servers, unless it names some itself."""
    if metafunc.definition.get_closest_marker("every_version") is None:
        return
    chosen = str([mark.args[0] for mark in metafunc.definition.iter_markers("parametrize")])
    for fixture in {"server", "own_server"} & {*metafunc.fixturenames}:
        if fixture in re.findall(r"\w+", chosen):
            continue
        versions = pytest.mark.parametrize(fixture, EVERY, ids=version_id, indirect=True)
        metafunc.definition.add_marker(versions)


@pytest.fixture(autouse=True)
def _logs_as_they_were() -> Iterator[None]:
    """A command that runs in the test's process has its log go where that test's output goes."""
    yield
    structlog.reset_defaults()


@pytest.fixture(scope="session")
def _servers() -> Iterator[Callable[[Version], EmbeddedPostgres]]:
    with ExitStack() as stack:

        @functools.cache
        def get(version: Version) -> EmbeddedPostgres:
            return stack.enter_context(make_server(version))

        yield get


@pytest.fixture(params=USUAL, ids=version_id)
def server(
    request: pytest.FixtureRequest, _servers: Callable[[Version], EmbeddedPostgres]
) -> EmbeddedPostgres:
    """The shared server of each usual version in turn."""
    return _servers(request.param)


@pytest.fixture
def server18(_servers: Callable[[Version], EmbeddedPostgres]) -> EmbeddedPostgres:
    """The shared PostgreSQL 18, for what does not depend on the version."""
    return _servers(18)


@pytest.fixture(scope="session")
def _initialised(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Version], Path]:
    """A server's folder of each version that was never started: `initdb` takes a second."""

    @functools.cache
    def get(version: Version) -> Path:
        directory = tmp_path_factory.mktemp(version_id(version))
        make_server(version, data_dir=directory)._initialise()
        return directory

    return get


@pytest.fixture(params=USUAL, ids=version_id)
def own_server(
    request: pytest.FixtureRequest, _initialised: Callable[[Version], Path]
) -> Iterator[EmbeddedPostgres]:
    """A server that the test may stop, crash or reconfigure."""
    own = make_server(request.param)
    if own._programs.owner is None:  # else another user must own it, as `initdb` sees to
        shutil.copytree(_initialised(request.param), own.data_dir.parent, dirs_exist_ok=True)
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


def make_server(version: Version, data_dir: Path | None = None) -> EmbeddedPostgres:
    """One of `EVERY`; 18 means the minor release that the tests are for, and fails without it."""
    exact = NEWEST[version] if isinstance(version, int) else version
    return EmbeddedPostgres(
        exact, settings=SETTINGS, output_plugins=["wal2json"], data_dir=data_dir
    )


def fresh_database(server: EmbeddedPostgres, request: pytest.FixtureRequest) -> Database:
    name = re.sub(r"\W+", "_", request.node.name.lower())[:50].strip("_")
    return Database(server, f"t_{name}")
