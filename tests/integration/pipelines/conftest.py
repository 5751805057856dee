"""Targets are written with plain SQL: what the oldest and the newest do, those between do too."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock.postgres.embedded import SUPPORTED_VERSIONS, EmbeddedPostgres
from support.repeats import SOAK


@pytest.fixture(
    params=SUPPORTED_VERSIONS if SOAK else (SUPPORTED_VERSIONS[0], SUPPORTED_VERSIONS[-1]),
    ids=lambda version: f"pg{version}",
)
def server(
    request: pytest.FixtureRequest, _servers: Callable[[int], EmbeddedPostgres]
) -> EmbeddedPostgres:
    return _servers(request.param)
