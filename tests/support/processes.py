"""Penstock in processes of its own: started, killed, stopped, and never left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from penstock.config import Config
from support.marks import lines_by_pid
from support.waiting import eventually

_PENSTOCK = Path(sys.executable).parent / "penstock"
_TESTS = Path(__file__).parents[1]


class PenstockProcess:
    """A service that can be killed and started again, as often as the test likes."""

    def __init__(
        self,
        command: str,
        config: Config,
        directory: Path,
        *,
        environ: Mapping[str, str] | None = None,
        impatient: bool = False,
        flags: Sequence[str] = (),
    ) -> None:
        """`command`: `capture`, `aggregate` or `run`; `flags` are given to it.

        `directory`: for its configuration and what it says.

        `impatient`: it gives up at once what it would try again for a minute.
        """
        self._command = command
        self._flags = flags
        self._environ = {**_environment(), **(environ or {})}
        self._program: list[str | Path] = [_PENSTOCK]
        if impatient:
            self._program = [sys.executable, "-m", "support.impatient"]
            before = self._environ.get("PYTHONPATH")
            self._environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(_TESTS), before)))
        self._said = directory / f"{command}.err"
        self._file = directory / f"{command}.toml"
        self._process: subprocess.Popen[bytes] | None = None
        self.kills = 0
        self._file.write_text(_toml(config))

    def start(self) -> None:
        self.reap()
        with self._said.open("ab") as said:
            self._process = subprocess.Popen(
                [*self._program, self._command, "--config", self._file, *self._flags],
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                env=self._environ,
            )

    def kill(self) -> None:
        """SIGKILL: nothing of it runs any more, and nothing was tidied up."""
        process = self._running()
        assert process.poll() is None, f"{self._command} had ended by itself: {self.said()}"
        process.kill()
        process.wait(10)
        self.kills += 1

    def stop(self, *, within_s: float = 15.0) -> None:
        """SIGTERM: a clean end."""
        process = self._running()
        process.send_signal(signal.SIGTERM)
        assert process.wait(within_s) == 0, self.said()

    def hang_up(self, *, within_s: float = 15.0) -> int:
        """SIGHUP; returns the exit code."""
        process = self._running()
        process.send_signal(signal.SIGHUP)
        return process.wait(within_s)

    def failure(self, *, within_s: float = 15.0) -> str:
        """What it said when it ended with an error by itself."""
        process = self._running()
        ended = f"{self._command} ends"
        eventually(lambda: process.poll() is not None, ended, within_s=within_s)
        assert process.returncode == 2, self.said()
        return self.said()

    @property
    def has_ended(self) -> bool:
        return self._running().poll() is not None

    def said(self) -> str:
        """The end of it, for a person."""
        return self.all_said()[-2000:]

    def all_said(self) -> str:
        return self._said.read_text(errors="replace")

    def reap(self) -> None:
        """Whatever the test did: no process is left."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait(10)

    def _running(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, "start it first"
        return self._process


class ProcessFamily(PenstockProcess):
    """A service that starts processes of its own, found by the folder that all of them write to."""

    def __init__(
        self,
        command: str,
        config: Config,
        directory: Path,
        scratch: Path,
        *,
        impatient: bool = False,
        flags: Sequence[str] = (),
    ) -> None:
        environ = {"TMPDIR": str(scratch)}
        super().__init__(
            command, config, directory, environ=environ, impatient=impatient, flags=flags
        )
        self._scratch = scratch

    def family(self) -> dict[int, str]:
        """The command lines of all of them, by their numbers."""
        return lines_by_pid(str(self._scratch))

    def all_gone(self) -> None:
        """Nobody ends those that were left: they notice that they are alone."""
        eventually(lambda: not self.family(), "no process is left", within_s=30)


@contextmanager
def capture_process(
    config: Config,
    directory: Path,
    *,
    environ: Mapping[str, str] | None = None,
    impatient: bool = False,
) -> Iterator[PenstockProcess]:
    process = PenstockProcess("capture", config, directory, environ=environ, impatient=impatient)
    with started(process):
        yield process


@contextmanager
def started(process: PenstockProcess) -> Iterator[None]:
    process.start()
    try:
        yield
    finally:
        process.reap()


def _toml(config: Config) -> str:
    """The few settings that tests use, as a file."""
    source, log = config.source, config.log
    lines = [
        "[source]",
        f"dsn = {json.dumps(source.conninfo)}",
        f"slot = {json.dumps(source.slot)}",
        f"publication = {json.dumps(source.publication)}",
        f"tables = {json.dumps([table.name.sql for table in source.tables])}",
        f"wal_sender_timeout_s = {source.wal_sender_timeout_s}",
        f"keepalive_interval_s = {source.keepalive_interval_s}",
        f"mode = {json.dumps(source.mode)}",
        f"plugin = {json.dumps(source.plugin)}",
        "[poll]",
        *(f"{name} = {value}" for name, value in config.poll.model_dump().items()),
        "[heartbeat]",
        f"interval_min = {config.heartbeat.interval_min}",
        f"timeout_min = {config.heartbeat.timeout_min}",
        "[log]",
        f"path = {json.dumps(str(log.path))}",
        f"segment_mib = {log.segment_mib}",
        f'compression = "{log.compression}"',
        f"min_age_h = {log.min_age_h}",
    ]
    for aggregate in config.aggregate:
        given = aggregate.model_dump(mode="json", exclude_none=True, exclude={"target_dsn"})
        if aggregate.target_dsn is not None:
            given["target_dsn"] = aggregate.target_dsn.get_secret_value()
        lines.append("[[aggregate]]")
        lines += (f"{name} = {_value(value)}" for name, value in given.items())
    return "\n".join(lines) + "\n"


def _value(value: object) -> str:
    """As TOML, which is not JSON in one thing only."""
    match value:
        case dict():
            return f"{{{', '.join(f'{json.dumps(k)} = {_value(v)}' for k, v in value.items())}}}"
        case list():
            return f"[{', '.join(map(_value, value))}]"
    return json.dumps(value)


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
