"""A walsender that says nothing any more, on a connection that is open."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from penstock.config import PollConfig
from support.capturing import RunningCapture, capture_config, capturing
from support.database import Database
from support.oracle import Mirror
from support.waiting import eventually
from support.workload import SLOT, insert_items, prepare


def events(running: RunningCapture) -> list[str]:
    return [entry["event"] for entry in running.said]


def test_a_silent_server_is_logged_within_seconds_and_waited_for(
    database: Database, tmp_path: Path
) -> None:
    # M1.4, M1.7
    prepare(database)
    mirror = Mirror(tmp_path)
    config = capture_config(database.dsn(), tmp_path, wal_sender_timeout_s=4.0)
    with capturing(config) as running:
        mirror.must_equal(database)
        pid = database.value(
            "SELECT active_pid FROM pg_replication_slots WHERE slot_name = %s", SLOT
        )
        assert "server silent" not in events(running)
        os.kill(pid, signal.SIGSTOP)
        try:
            eventually(lambda: "server silent" in events(running), "the silence is logged")
            assert running.connections == 1, "it may only be busy"
        finally:
            os.kill(pid, signal.SIGCONT)
        with database.connect() as connection:
            insert_items(connection, 10)
        mirror.must_equal(database)
        said = events(running)
        assert said.count("server silent") == 1
        assert "server answers again" in said or running.connections > 1
    (silent,) = (entry for entry in running.said if entry["event"] == "server silent")
    assert silent["log_level"] == "warning"
    assert silent["silent_for"].endswith(" s")
    assert "walsender" in silent["remedy"]


def test_a_server_that_is_polled_rarely_is_not_silent(database: Database, tmp_path: Path) -> None:
    prepare(database)
    mirror = Mirror(tmp_path)
    config = capture_config(database.dsn(), tmp_path, wal_sender_timeout_s=1.0, mode="poll")
    config = config.model_copy(update={"poll": PollConfig(interval_s=2.0)})
    with capturing(config) as running:
        mirror.must_equal(database)
        mirror.must_equal(database)
    assert "server silent" not in events(running)
