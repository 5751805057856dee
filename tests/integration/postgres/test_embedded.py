"""The embedded server: real programs, started and stopped for real."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import psycopg
import pytest

from penstock.errors import ToolMissing
from penstock.postgres import embedded
from penstock.postgres.embedded import EmbeddedPostgres


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


def test_settings_reach_the_server() -> None:
    with EmbeddedPostgres(settings={"work_mem": "7MB", "application_name": "it's"}) as server:
        assert query(server, "SHOW work_mem") == "7MB"


def test_a_version_that_cannot_be_had_is_named_with_what_can() -> None:
    with pytest.raises(ToolMissing, match="no embedded PostgreSQL 9") as caught:
        EmbeddedPostgres(9)
    assert "15, 16, 18" in caught.value.remedy


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
@pytest.mark.parametrize(("version", "readable"), [(15, True), (18, True), (18, False)])
def test_without_user_namespaces_root_runs_it_as_nobody(
    version: int, readable: bool, monkeypatch: pytest.MonkeyPatch
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
    finally:
        embedded._programs.cache_clear()
