"""The demo from end to end, as a newcomer starts it."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from pathlib import Path

PENSTOCK = Path(sys.executable).parent / "penstock"


def processes_with(mark: str) -> list[str]:
    """The command lines of all processes that inherited `mark` in their environment."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (process / "environ").read_bytes():
                found.append((process / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:
            continue
    return found


def test_the_demo_ends_with_no_differences_and_leaves_nothing_running(tmp_path: Path) -> None:
    mark = f"PENSTOCK_TEST_MARK={uuid.uuid4()}"
    name, _, value = mark.partition("=")
    done = subprocess.run(
        [PENSTOCK, "demo", "--seconds", "3"],
        check=False,
        capture_output=True,
        text=True,
        timeout=180,
        # From an unactivated virtual environment, in a folder that is not the project's.
        env={**os.environ, name: value, "TMPDIR": str(tmp_path)},
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert "GROUP BY" in done.stdout
    assert done.stdout.rstrip().endswith("0 differences")
    assert "Traceback" not in done.stderr
    assert processes_with(mark) == []
    left = [path.name for path in tmp_path.iterdir() if path.name.startswith("penstock")]
    assert left == []


def test_without_java_the_demo_says_what_to_install(tmp_path: Path) -> None:  # M7.3
    done = subprocess.run(
        [PENSTOCK, "demo"],
        check=False,
        capture_output=True,
        text=True,
        env={"PATH": str(tmp_path), "HOME": str(tmp_path)},
    )
    assert done.returncode == 2
    assert "Java is not installed" in done.stderr
    assert "openjdk-17-jre-headless" in done.stderr
    assert "Traceback" not in done.stderr
