"""The demo from end to end, as a newcomer starts it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from support.marks import processes_with
from support.repeats import SOAK
from support.waiting import eventually

PENSTOCK = Path(sys.executable).parent / "penstock"


def test_the_demo_ends_with_no_differences_and_leaves_nothing_running(tmp_path: Path) -> None:
    # Not with our own prefix: such variables are kept from the demo's parts.
    mark = f"TEST_MARK={uuid.uuid4()}"
    name, _, value = mark.partition("=")
    done = subprocess.run(
        [PENSTOCK, "demo", "--seconds", "3"],
        check=False,
        capture_output=True,
        text=True,
        timeout=180,
        # From an unactivated virtual environment, in a folder that is not the project's.
        env={
            **os.environ,
            name: value,
            "TMPDIR": str(tmp_path),
            # It is about a database of its own, whatever else the user has.
            "PENSTOCK_SOURCE_DSN": "host=127.0.0.1 port=1",
            "PENSTOCK_LOG_PATH": "/proc/none",
        },
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"^   +\d+ s +[\d,]+ changes  .*/s  fresh p50 ", done.stdout, re.MULTILINE)
    last = done.stdout.rstrip().splitlines()[-1]
    told = re.fullmatch(
        r"([\d,]+) changes applied, freshness p50 \d+ ms, p99 \d+ ms, 0 differences", last
    )
    assert told is not None, last
    assert int(told[1].replace(",", "")) > 300
    assert "Traceback" not in done.stderr
    assert processes_with(mark) == []
    assert done.stderr == ""
    assert list(tmp_path.iterdir()) == []


def postgres_starts(said: Path, _directory: Path, _mark: str) -> bool:
    return "1. Starting PostgreSQL" in said.read_text()


def set_up(said: Path, _directory: Path, _mark: str) -> bool:
    return "2. penstock setup" in said.read_text()


def java_starts(_said: Path, _directory: Path, mark: str) -> bool:
    # Not the shell and the launcher before it.
    spark = [line for line in processes_with(mark) if " -cp " in line and "SparkSubmit" in line]
    return any("launcher.Main" not in line for line in spark)


def seeded(said: Path, _directory: Path, _mark: str) -> bool:
    return "the rows that were there are counted" in said.read_text()


def load_runs(said: Path, _directory: Path, _mark: str) -> bool:
    return " s " in said.read_text().partition("4. Load")[2].partition("\n")[2]


def verifying(said: Path, _directory: Path, _mark: str) -> bool:
    return "5. penstock verify" in said.read_text()


@pytest.mark.parametrize(
    ("moment", "number"),
    [
        (postgres_starts, signal.SIGTERM),
        (java_starts, signal.SIGINT),
        # These take long to come.
        *(
            [
                (set_up, signal.SIGTERM),
                (seeded, signal.SIGTERM),
                (load_runs, signal.SIGINT),
                (verifying, signal.SIGINT),
            ]
            if SOAK
            else []
        ),
    ],
)
def test_an_interrupted_demo_ends_at_once_and_leaves_nothing(
    moment: Callable[[Path, Path, str], bool], number: signal.Signals, tmp_path: Path
) -> None:
    # Not with our own prefix: such variables are kept from the demo's parts.
    mark = f"TEST_MARK={uuid.uuid4()}"
    name, _, value = mark.partition("=")
    directory, said, complained = tmp_path / "tmp", tmp_path / "out", tmp_path / "err"
    directory.mkdir()
    with said.open("wb") as out, complained.open("wb") as err:
        process = subprocess.Popen(
            [PENSTOCK, "demo", "--seconds", "3"],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            env={**os.environ, name: value, "TMPDIR": str(directory)},
            cwd=tmp_path,
            start_new_session=True,
        )
    try:
        eventually(lambda: moment(said, directory, mark), moment.__name__, within_s=120)
        sent = time.monotonic()
        if number == signal.SIGINT:  # as a terminal does: to everybody in the group
            os.killpg(process.pid, number)
        else:
            process.send_signal(number)
        assert process.wait(30) == 128 + number, complained.read_text()
        took_s = time.monotonic() - sent
    finally:
        process.kill()
        process.wait()
    assert took_s < 20
    assert complained.read_text() in ("", "interrupted\n")
    assert processes_with(mark) == []
    assert list(directory.iterdir()) == []


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
