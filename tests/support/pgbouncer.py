"""A real PgBouncer before a database."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
from psycopg import conninfo

from penstock.postgres.embedded import free_port
from support.database import Database
from support.waiting import eventually

# Of a program that refuses to run as root.
_NOBODY = 65534


@contextmanager
def pgbouncer(database: Database, mode: str, **settings: str) -> Iterator[str]:
    """A DSN that leads through a pool of that mode."""
    program = shutil.which("pgbouncer") or "/usr/sbin/pgbouncer"
    given = conninfo.conninfo_to_dict(database.dsn())
    places = ("host", "port", "dbname", "user")
    server = " ".join(f"{name}={given[name]}" for name in places)
    server += f" password={database.server.password}"
    port = free_port()
    # Not in the test's own folder, which another user could not enter.
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        file = Path(folder) / "pgbouncer.ini"
        options = {
            "listen_addr": "127.0.0.1",
            "listen_port": str(port),
            "unix_socket_dir": "",
            "auth_type": "any",
            "pool_mode": mode,
            **settings,
        }
        lines = [f"{name} = {value}" for name, value in options.items()]
        file.write_text(
            f"[databases]\n{database.name} = {server}\n[pgbouncer]\n" + "\n".join(lines)
        )
        as_other: list[str] = []
        if os.geteuid() == 0:  # which it refuses
            for each in (folder, file):
                os.chown(each, _NOBODY, _NOBODY)
            as_other = ["-u", "nobody"]
        command = [program, "-q", *as_other, str(file)]
        output = Path(folder) / "output"
        with output.open("wb") as said:
            process = subprocess.Popen(command, stdout=said, stderr=said)
        dsn = conninfo.make_conninfo(
            "", host="127.0.0.1", port=port, dbname=database.name, user=str(given["user"])
        )
        try:
            eventually(lambda: _answers(dsn, process, output), "PgBouncer answers")
            yield dsn
        finally:
            process.terminate()
            process.wait(10)


def _answers(dsn: str, process: subprocess.Popen[bytes], output: Path) -> bool:
    assert process.poll() is None, output.read_text()
    try:
        psycopg.connect(dsn).close()
    except psycopg.OperationalError:
        return False
    return True
