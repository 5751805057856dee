"""A Spark session on this machine, quiet and ready for the `penstock` source.

`local_session` is Spark as it comes. `throwaway_session` is for a program that starts Spark, shows
something and ends: whatever happens, no process and no file of Spark's is left.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from importlib import resources
from pathlib import Path

from pyspark import SparkConf, SparkContext
from pyspark.find_spark_home import _find_spark_home
from pyspark.logger import PySparkLogger
from pyspark.serializers import UTF8Deserializer, read_int
from pyspark.sql import SparkSession

from penstock.changelog.identity import FILE as LOG_FILE
from penstock.changelog.storage import LocalStorage
from penstock.errors import ComputationFailed, PenstockError, PipelineError
from penstock.interrupts import Interrupts
from penstock.spark.class_archive import use_archive
from penstock.spark.errors import OF_SPARK, failed

_HERE = "local[*]"
# One process. Not `local-cluster`, which is a cluster.
_LOCAL = re.compile(r"local(\[(\d+|\*)(\s*,\s*\d+)?\])?")
# A line of Java's that tells nothing about what to do.
_NOISE = re.compile(r"\s+at \S+\(|\s*\.\.\. \d+ more|WARNING: Using incubator modules")
_LAST_WORD = re.compile(r"^Terminating due to (java\.lang\.OutOfMemoryError: .*)", re.MULTILINE)
_START_S = 60.0
# A killed process is gone as soon as the kernel has taken back its memory.
_END_S = 5.0
_GONE_S = 1.0
# The name of a socket may have 107 characters, of which Spark's own part is about 45.
_MAX_SOCKET_DIR = 60
_POLL_S = 0.05
# The end of Spark's log after a failure, in the folder of the change log. The next one replaces it.
KEPT = "spark-errors.log"
_KEPT_BYTES = 256 * 1024
# Set for a program whose JVM is there already.
_GATEWAY = "PYSPARK_GATEWAY_PORT"
# Where people put options of their own for Java.
_JAVA_VARIABLES = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS")
# A million changes take half a second less of a core with it (`bench source`).
_FOR_MUCH = "-XX:+UseParallelGC"
# Where small batches follow each other, Java's own threads take the time that they save: with these
# a change is seen a quarter sooner (`bench freshness`).
_FOR_LITTLE = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"


class SparkFailed(PipelineError):
    """Spark did not start, or stopped on its own; the text is the end of what it said.

    `master` is where it should have run, if not here.
    """

    def __init__(self, what: str, said: str, master: str = _HERE) -> None:
        said = "\n".join(line for line in said.splitlines() if not _NOISE.match(line)).strip()
        remedy = "Check that Java 17 or newer runs here and that 2 GB of memory are free"
        if master != _HERE:
            remedy = (
                f"Check that {master} is the address of a cluster that can be reached from here, "
                f"such as spark://host:7077; {_HERE} is this machine. {remedy}"
            )
        super().__init__(f"{what}:\n{said}" if said else what, remedy=remedy)


class SparkEnded(PipelineError):
    """Spark's process is gone in the midst of its work; `exit_code` as Python tells it, `said` is
    all that the process said. Of that only Java's own last word is shown: Spark's quote values.
    """

    in_spark_log = True

    def __init__(self, exit_code: int, said: str) -> None:
        how = f"with exit code {exit_code}"
        if exit_code < 0:
            how = f"killed by {_signal_name(-exit_code)}"
        last = "".join(f": {word}" for word in _LAST_WORD.findall(said))
        super().__init__(
            f"Spark's process ended while it was at work, {how}{last}",
            remedy=(
                "Start it again: nothing is half done. If nobody has ended that process, memory "
                "was short: of the machine, whose kernel then says so (dmesg), or of the 1 GB that "
                "Spark takes; SPARK_DRIVER_MEMORY=2g in the environment gives it more"
            ),
            exit_code=exit_code,
        )


def local_session(name: str) -> SparkSession:
    """`local[*]`, without the web UI; what the environment or `spark-submit` says comes first."""
    for variable, value in _environment().items():
        os.environ.setdefault(variable, value)
    if _GATEWAY in os.environ:
        # spark-submit has started the JVM, which knows what was set.
        SparkContext._ensure_initialized()  # noqa: SLF001 - before that there is no way to ask
    given = SparkConf()
    master = given.get("spark.master", _HERE) or _HERE
    settings = {"spark.master": master, **_settings(master)}
    return _build(name, {key: text for key, text in settings.items() if not given.contains(key)})


@contextmanager
def throwaway_session(
    name: str,
    directory: Path,
    interrupts: Interrupts,
    *,
    master: str = _HERE,
    small_batches: bool = False,
    log: Path | None = None,
) -> Iterator[SparkSession]:
    """Spark in a JVM that is killed at the end; what Spark says is shown only if it fails.

    Everything that Spark writes goes into `directory`, which the caller removes afterwards. An
    interrupt is heeded while Spark starts.

    `log`: the folder of a change log, where the end of Spark's log is kept if it fails at work.
    That quotes values of rows, as the change log does.
    """
    directory.mkdir()
    said = directory / "spark.log"
    settings = _settings(master, directory, java=_FOR_LITTLE if small_batches else _FOR_MUCH)
    settings["spark.master"] = master
    environment = _environment(master)
    with ExitStack() as stack:
        # py4j would tell at length that the JVM it talks to is gone, which is what we want; the
        # others repeat each error of an expression, with Java's stack.
        for logger in (
            *map(logging.getLogger, ("", "py4j")),
            # As pyspark makes them: it would not get along with plain ones of these names.
            *map(PySparkLogger.getLogger, ("SQLQueryContextLogger", "DataFrameQueryContextLogger")),
        ):
            stack.enter_context(_silent(logger))
        stack.callback(_forget, unless=SparkContext._gateway)  # noqa: SLF001 - see there
        jvm = _start_jvm(settings, environment, directory, said)
        stack.callback(_end, jvm)
        try:
            with interrupts.heeded():
                connection = _connection(jvm, directory, said, master)
            with _in_environment(connection | environment):
                # In the main thread, Spark would take Ctrl-C for itself.
                session = interrupts.aside(lambda: _build(name, settings))
        except (*OF_SPARK, ConnectionError) as error:
            raise SparkFailed("Spark failed", f"{error}\n{_tail(said)}", master) from error
        # It would show a traceback when the JVM, which it listens to, is killed.
        session.sparkContext._accumulatorServer.handle_error = lambda *_: None  # type: ignore[method-assign]  # noqa: SLF001
        try:
            yield session
        except Exception as error:
            failure = _explained(error, jvm, said)
            if isinstance(failure, ComputationFailed | SparkEnded) and failure.in_spark_log:
                failure.remedy += _kept(said, log)
            if failure is error:
                raise
            raise failure from error


def _explained(error: Exception, jvm: subprocess.Popen[bytes], said: Path) -> Exception:
    # First, for what is raised then depends on what Spark was just asked.
    if _may_be_spark_s(error) and (exit_code := _exit_code(jvm)) is not None:
        return SparkEnded(exit_code, said.read_text(errors="replace"))
    if isinstance(error, OF_SPARK):
        return failed(error, ())
    return error


def _kept(said: Path, log: Path | None) -> str:
    """Keep the end of what Spark said beside the change log; returns a sentence that names it."""
    if log is None or not (log / LOG_FILE).exists():
        return ""
    with said.open("rb") as file:
        file.seek(max(0, said.stat().st_size - _KEPT_BYTES))
        end = file.read(_KEPT_BYTES)
    try:
        LocalStorage(log).replace(KEPT, end)
    except (OSError, PenstockError):
        return ""  # the disk may be full, which is why it failed
    return f". The end of Spark's log, which may quote rows, is kept in {log / KEPT}"


def _signal_name(number: int) -> str:
    # Most real-time signals have none.
    known = {each.value: each.name for each in signal.Signals}
    return known.get(number, f"signal {number}")


def _may_be_spark_s(error: Exception) -> bool:
    return isinstance(error, ComputationFailed) or not isinstance(error, PenstockError)


def _exit_code(jvm: subprocess.Popen[bytes]) -> int | None:
    """None: it runs. Its connections may be gone a moment before it is."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        return jvm.wait(_GONE_S)
    return None


def _settings(
    master: str, directory: Path | None = None, *, java: str = _FOR_MUCH
) -> dict[str, str]:
    if any("GC" in os.environ.get(name, "") for name in _JAVA_VARIABLES):
        java = ""  # beside another choice of the user's Java would not start
    log4j2 = resources.files(__package__).joinpath("log4j2.properties")
    # Without memory some of Spark's threads end, and the others wait for them for ever.
    java += " -XX:+ExitOnOutOfMemoryError"
    java += f" {use_archive()} -Dlog4j2.configurationFile=file:{log4j2}"
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "1",
        # Saves 30 to 60 ms in each batch.
        "spark.python.unix.domain.socket.enabled": "true",
    }
    if _LOCAL.fullmatch(master):
        # Without it any local user could give the driver work to do, and read blocks with rows.
        # Spark makes a secret for itself, which is in no setting. A cluster's is its operator's.
        settings["spark.authenticate"] = "true"
    if directory is not None:
        settings["spark.local.dir"] = str(directory)
        settings["spark.sql.warehouse.dir"] = str(directory / "warehouse")
        java += f' "-Djava.io.tmpdir={directory}"'
        if len(os.fsencode(directory)) > _MAX_SOCKET_DIR:
            settings["spark.python.unix.domain.socket.enabled"] = "false"
    return settings | {"spark.driver.extraJavaOptions": java}


def _environment(master: str = _HERE) -> dict[str, str]:
    # Spark finds sources and starts workers with this Python, not the first one on the PATH.
    if master.startswith("local"):
        return {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    # The other machines of a cluster must reach this one, and may have their Python elsewhere.
    return {"PYSPARK_PYTHON": os.environ.get("PYSPARK_PYTHON", sys.executable)}


def _build(name: str, settings: Mapping[str, str]) -> SparkSession:
    builder = SparkSession.builder.appName(name)
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def _start_jvm(
    settings: Mapping[str, str], environment: Mapping[str, str], directory: Path, said: Path
) -> subprocess.Popen[bytes]:
    """What `pyspark.java_gateway.launch_gateway` starts; that one can be interrupted and lose it.

    A session of its own keeps a terminal's Ctrl-C away, and names all the processes to end. The
    JVM holds the other end of its input and ends by itself, should we be killed.
    """
    options = [word for item in settings.items() for word in ("--conf", "=".join(item))]
    with said.open("wb") as output:
        return subprocess.Popen(
            [Path(_find_spark_home()) / "bin" / "spark-submit", *options, "pyspark-shell"],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={
                **os.environ,
                **environment,
                "SPARK_CONNECT_MODE": "0",
                # What lies in the folder that we were started from is no module of Spark's workers.
                "PYTHONSAFEPATH": "1",
                "TMPDIR": str(directory),
                "_PYSPARK_DRIVER_CONN_INFO_PATH": str(directory / "gateway"),
            },
            start_new_session=True,
        )


def _connection(
    jvm: subprocess.Popen[bytes], directory: Path, said: Path, master: str
) -> dict[str, str]:
    """Wait until the JVM says where it listens; in the words of pyspark's environment."""
    file = directory / "gateway"
    deadline = time.monotonic() + _START_S
    # The JVM writes elsewhere and renames, so the file is whole as soon as it is there.
    while not file.exists():
        if jvm.poll() is not None:
            raise SparkFailed("Spark did not start", _tail(said), master)
        if time.monotonic() > deadline:
            raise SparkFailed(f"Spark did not start within {_START_S:g} s", _tail(said), master)
        time.sleep(_POLL_S)
    with file.open("rb") as info:
        port, secret = read_int(info), UTF8Deserializer().loads(info)  # type: ignore[no-untyped-call]  # pyspark's
    return {_GATEWAY: str(port), "PYSPARK_GATEWAY_SECRET": str(secret)}


@contextmanager
def _in_environment(variables: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _end(jvm: subprocess.Popen[bytes]) -> None:
    """Kill everything in the JVM's session: itself, the shell before it, Python workers."""
    deadline = time.monotonic() + _END_S
    jvm.kill()
    jvm.wait()
    if jvm.stdin:
        jvm.stdin.close()
    # Again, for one may have been about to start another.
    while (left := session_members(jvm.pid)) and time.monotonic() < deadline:
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_POLL_S)


def session_members(session: int) -> list[int]:
    """Where there is no /proc, nobody: Python workers end by themselves when the JVM is gone."""
    members = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            # pid (name) state ppid pgrp session …: the name may hold spaces and brackets.
            state, _, _, its_session = stat.read_text().rpartition(")")[2].split()[:4]
            if int(its_session) == session and state != "Z":
                members.append(int(stat.parent.name))
    return members


def _forget(*, unless: object) -> None:
    """Let pyspark not talk to the JVM that is gone, and start another one when asked again.

    `unless` is the gateway from before: if it is still there, ours was never used.
    """
    # pyspark has no public way to say that its JVM is gone.
    if SparkContext._gateway is unless:  # noqa: SLF001
        return
    SparkContext._active_spark_context = None  # noqa: SLF001
    SparkContext._gateway = SparkContext._jvm = None  # noqa: SLF001
    SparkSession._instantiatedSession = None  # noqa: SLF001


@contextmanager
def _silent(logger: logging.Logger) -> Iterator[None]:
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(level)


def _tail(file: Path) -> str:
    return "\n".join(file.read_text(errors="replace").splitlines()[-20:])
