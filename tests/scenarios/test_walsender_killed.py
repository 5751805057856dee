"""An administrator, or the server itself, terminates our walsender."""

from __future__ import annotations

from pathlib import Path

from support.capturing import capture_config, capturing
from support.database import Database
from support.oracle import Mirror
from support.repeats import repeats
from support.waiting import eventually
from support.workload import SLOT, Writers, prepare

_KILL = (
    "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots"
    " WHERE slot_name = %s AND active_pid IS NOT NULL"
)


def test_capture_connects_again_and_nothing_is_doubled(database: Database, tmp_path: Path) -> None:
    prepare(database)
    mirror = Mirror(tmp_path)
    with capturing(capture_config(database.dsn(), tmp_path)) as running:
        with Writers(database) as writers:
            for n in range(1, repeats(4, soak=40) + 1):
                running.connected(n)
                writers.await_commits(5)
                assert eventually(lambda: database.rows(_KILL, SLOT), "there is one to kill")
            running.connected(n + 1)
        mirror.must_equal(database)
