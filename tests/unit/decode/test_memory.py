"""Freed memory is kept where glibc is, and nothing happens elsewhere."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest

from penstock.decode.memory import keep_freed_memory

# Page faults of arrays that come and go, a megabyte each, above others that stay.
_FAULTS = """
import resource, sys
import numpy as np
from penstock.decode.memory import keep_freed_memory
if sys.argv[1] == "kept":
    keep_freed_memory()
def work():
    for _ in range(50):
        a, b = np.ones(130_000), np.ones(130_000)
work()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
work()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="not glibc")
def test_arrays_that_come_and_go_cost_no_page_faults() -> None:
    def faults(how: str) -> int:
        command = [sys.executable, "-c", _FAULTS, how]
        return int(subprocess.run(command, check=True, capture_output=True).stdout)

    assert faults("kept") < 500
    assert faults("kept") < faults("as it comes") // 10


def test_without_glibc_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda _: object())
    keep_freed_memory()
