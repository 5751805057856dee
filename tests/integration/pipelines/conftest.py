"""Targets are written with plain SQL, which two versions show as well as three."""

from __future__ import annotations

import pytest

from penstock.postgres.embedded import EmbeddedPostgres


@pytest.fixture
def server(some_server: EmbeddedPostgres) -> EmbeddedPostgres:
    return some_server
