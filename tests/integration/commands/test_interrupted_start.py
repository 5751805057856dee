"""Ctrl-C while the command is still importing its libraries."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda s: s.name)
def test_a_signal_while_python_still_imports_ends_it_in_one_word(number: signal.Signals) -> None:
    # M7.3
    command = [sys.executable, "-X", "importtime", "-m", "penstock", "doctor"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        # Each module is named when its import has ended; many are still to come.
        for line in process.stderr:
            if line.endswith(" numpy.version\n"):
                break
        process.send_signal(number)
        rest = process.stderr.read()
    said = [line for line in rest.splitlines() if not line.startswith("import time:")]
    assert said == ["interrupted"]
    assert process.returncode == 128 + number
