"""The command on odd terminals: other encodings, closed pipes, full disks, signals; its version."""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from penstock import cli, cli_shows
from penstock.bench.report import Report

PENSTOCK = str(Path(sys.executable).parent / "penstock")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "penstock.toml"
    file.write_text(
        '[source]\ndsn = "host=/no/such/folder dbname=\u00e4"\ntables = ["t\u00e4"]\n',
        encoding="utf-8",
    )
    return file


def test_the_version_is_told() -> None:
    done = run("--version")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"penstock {importlib.metadata.version('penstock')}\n"


def test_marks_that_the_encoding_lacks_are_replaced(file: Path) -> None:
    done = run("doctor", "--config", str(file), PYTHONIOENCODING="ascii")
    assert done.returncode == 2
    assert "? error" in done.stdout
    as_json = run("doctor", "--json", "--config", str(file), PYTHONIOENCODING="ascii")
    assert "\u00e4" in json.dumps(json.loads(as_json.stdout), ensure_ascii=False)


@pytest.mark.parametrize("flags", [(), ("--json",)])
def test_a_closed_pipe_is_neither_a_traceback_nor_a_warning(
    file: Path, flags: tuple[str, ...]
) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = run("doctor", *flags, "--config", str(file), stdout=writing)
        helped = run("--help", stdout=writing)
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (141, "")
    assert (helped.returncode, helped.stderr) == (141, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("flags", [(), ("--json",)])
def test_an_output_without_room_is_an_error(file: Path, flags: tuple[str, ...]) -> None:
    with Path("/dev/full").open("w") as full:
        done = run("doctor", *flags, "--config", str(file), stdout=full.fileno())
    assert done.returncode == 2
    assert done.stderr == "error: the output cannot be written: No space left on device\n"


def run(
    *arguments: str, stdout: int = subprocess.PIPE, **environ: str
) -> subprocess.CompletedProcess[str]:
    """The command as it is installed."""
    return subprocess.run(
        [PENSTOCK, *arguments],
        check=False,
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environ},
        timeout=60,
    )


def test_benchmarks_print_one_json_object(monkeypatch: pytest.MonkeyPatch) -> None:
    def bench(name: str) -> Callable[[Callable[[str], None]], Report]:
        return lambda say: Report(name, [], [])

    monkeypatch.setattr(cli_shows, "BENCHES", {name: bench(name) for name in ("one", "two")})
    runner = CliRunner()
    single = json.loads(runner.invoke(cli.app, ["bench", "one", "--json"]).stdout)
    assert single["name"] == "one"
    for names in ((), ("one", "two")):
        several = json.loads(runner.invoke(cli.app, ["bench", *names, "--json"]).stdout)
        assert [report["name"] for report in several["reports"]] == ["one", "two"]
