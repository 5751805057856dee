"""Spark applications in processes of their own: started, killed, and never left behind.

An application is a whole family of processes: Python, its JVM, and the Python workers of that. It
gets a session (in the sense of Unix) of its own, by which all of them are found.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from pyspark.find_spark_home import _find_spark_home

from penstock.spark.class_archive import use_archive
from penstock.spark.session import session_members
from support.waiting import eventually

SPARK_HOME = Path(_find_spark_home())
# The programs in the folder beside the tests.
APPS = Path(__file__).parents[1] / "spark" / "apps"
# Nobody has activated a virtual environment, and no variable helps Spark find a Python.
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

# A test waits for JVMs to start more than for anything else: no time to optimise what runs once.
JAVA = f"-XX:+UseSerialGC -XX:TieredStopAtLevel=1 {use_archive()}"


class Application:
    """One family of processes, and what it said."""

    def __init__(
        self, command: Iterable[object], said: Path, environment: Mapping[str, str], cwd: Path
    ) -> None:
        self._said = said
        with said.open("wb") as output:
            self._process = subprocess.Popen(
                [str(word) for word in command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
                cwd=cwd,
                start_new_session=True,
            )

    def said(self) -> str:
        return self._said.read_text(errors="replace")

    def is_running(self) -> bool:
        return self._process.poll() is None

    def interrupt(self) -> None:
        """Ctrl-C, as a terminal sends it: to the whole group."""
        os.killpg(self._process.pid, signal.SIGINT)

    def succeeded(self, *, within_s: float) -> str:
        """Wait for its end, which must be a good one; returns what it said."""
        try:
            code = self._process.wait(within_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"not within {within_s:g} s: {self.said()[-4000:]}") from None
        assert code == 0, self.said()[-4000:]
        return self.said()

    def kill(self) -> None:
        """SIGKILL to all of it; nothing of it runs any more."""
        eventually(self._all_killed, "all processes are gone")
        self._process.wait(10)

    def _all_killed(self) -> bool:
        # Again and again, for one may have been about to start another.
        members = session_members(self._process.pid)
        for pid in members:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.poll()
        return not members


@contextmanager
def application(
    command: Iterable[object], directory: Path, environment: Mapping[str, str] | None = None
) -> Iterator[Application]:
    """Run a command in `directory`; at the end all of its processes and Spark's files are gone.

    `environment` is all that it has besides a plain PATH and a place for temporary files.
    """
    # Spark's sockets are there, and their names may not be long.
    scratch = Path(tempfile.mkdtemp(prefix="penstock-app-"))
    names = ("JAVA_HOME", "HOME", "LANG")
    running = Application(
        command,
        directory / f"{scratch.name}.said",
        {
            **{name: os.environ[name] for name in names if name in os.environ},
            "PATH": _PATH,
            "TMPDIR": str(scratch),
            "SPARK_LOCAL_DIRS": str(scratch),
            "JAVA_TOOL_OPTIONS": f"-Djava.io.tmpdir={scratch} {JAVA}",
            **(environment or {}),
        },
        directory,
    )
    try:
        yield running
    finally:
        running.kill()
        shutil.rmtree(scratch, ignore_errors=True)
