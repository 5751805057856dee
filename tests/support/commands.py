"""`penstock` as a person calls it: in a process of its own, with its own output and exit code.

To import everything takes a command a second. Here a process that has done so is forked for each;
that the installed command itself works, tests/integration/commands/test_terminal.py shows.
"""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

_WITHIN_S = 60
_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(
    [f"penstock.{name}" for name in ("cli_aggregates", "cli_init", "cli_log", "cli_ops")]
)


def penstock(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """It must never show a traceback."""
    with tempfile.TemporaryDirectory() as folder:
        out, err = Path(folder) / "out", Path(folder) / "err"
        process = _FORKS.Process(
            target=_run, args=(arguments, {**os.environ, **environ}, Path.cwd(), out, err)
        )
        process.start()
        process.join(_WITHIN_S)
        if process.exitcode is None:
            process.kill()
            process.join()
            raise subprocess.TimeoutExpired(arguments, _WITHIN_S)
        said = out.read_text(), err.read_text()
    assert "Traceback" not in "".join(said)
    return subprocess.CompletedProcess(arguments, process.exitcode, *said)


def _run(
    arguments: tuple[str, ...], environ: Mapping[str, str], cwd: Path, out: Path, err: Path
) -> None:
    for number, file, mode in ((0, Path(os.devnull), "r"), (1, out, "w"), (2, err, "w")):
        with file.open(mode) as opened:
            os.dup2(opened.fileno(), number)
    os.environ.clear()
    os.environ.update(environ)
    os.chdir(cwd)
    sys.argv = ["penstock", *arguments]
    from penstock.__main__ import main

    main()
