"""What several scenarios need."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def scratch() -> Iterator[Path]:
    """For what a killed process leaves. Spark's sockets are there, whose names are limited."""
    directory = Path(tempfile.mkdtemp(prefix="penstock-t-"))
    yield directory
    shutil.rmtree(directory, ignore_errors=True)
