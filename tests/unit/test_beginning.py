"""The clock that times the first change starts with the process, however it was started."""

from __future__ import annotations

import runpy
import sys
import time
from importlib import import_module

import pytest


def test_it_is_looked_at_before_the_libraries_are_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("__main__", "beginning", "cli_services"):
        monkeypatch.delitem(sys.modules, f"penstock.{name}", raising=False)
    runpy.run_module("penstock", run_name="as with -m, but for the command itself")
    begun = time.monotonic()
    services = import_module("penstock.cli_services")
    assert begun >= services.BEGUN
