"""What any user of the machine can see of a running command: no password is in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.lsn import Lsn
from support.capturing import capture_config
from support.database import Database
from support.marks import command_lines, processes_with
from support.oracle import Mirror
from support.processes import capture_process
from support.waiting import eventually
from support.workload import SLOT, insert_items, prepare


@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="reads /proc, which is Linux's")
@pytest.mark.parametrize("source", ["file", "environment"])
def test_a_password_is_in_no_process_list_while_capture_runs(
    database18: Database, tmp_path: Path, source: str
) -> None:
    # M7.3
    password = database18.server.password
    prepare(database18)
    with_password = database18.dsn(password=password)
    config = capture_config(
        with_password if source == "file" else "host=127.0.0.1 port=1", tmp_path / "log"
    )
    environ = {"PENSTOCK_SOURCE_DSN": with_password} if source == "environment" else {}
    mirror = Mirror(tmp_path / "log")

    def seen() -> list[str]:
        """All command lines, if that of capture is among them."""
        lines = command_lines()
        ours = str(tmp_path / "capture.toml")
        return lines if any(ours in line for line in lines) else []

    with capture_process(config, tmp_path, environ=environ) as process:
        # From the first moment on: a program may hide its arguments only after it has started.
        # Nor has it any in the instant in which it is started.
        started = eventually(seen, "capture is seen")
        with database18.connect() as connection:
            insert_items(connection, 10)
        mirror.must_equal(database18)
        written: Lsn = database18.wal_position()
        eventually(lambda: database18.confirmed(SLOT) >= written, "it reads and confirms")
        running = seen()
        holders = processes_with(password)
        process.stop()
    for lines in (started, running):
        assert lines, "capture is seen"
        assert not any(password in line for line in lines)
    assert bool(holders) == (source == "environment"), "it had the password from where we think"
    assert password not in process.said()
