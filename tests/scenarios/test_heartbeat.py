"""Heartbeats prove the whole path on a real server, and nothing depends on them."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.changelog.reader import LogReader
from penstock.config import Config
from support.capturing import capture_config, capturing
from support.database import Database
from support.waiting import eventually
from support.workload import SLOT, prepare

pytestmark = pytest.mark.every_version

INTERVAL_S = 0.2


def with_heartbeats(database: Database, log: Path) -> Config:
    config = capture_config(database.dsn(), log)
    heartbeat = config.heartbeat.model_copy(update={"interval_min": INTERVAL_S / 60})
    return config.model_copy(update={"heartbeat": heartbeat})


def test_a_heartbeat_goes_all_the_way_and_is_measured(database: Database, tmp_path: Path) -> None:
    # M1.5
    prepare(database)
    with capturing(with_heartbeats(database, tmp_path)) as running:
        running.connected()
        latency_s = eventually(lambda: running.capture.heartbeat.latency_s, "a heartbeat")
        assert latency_s is not None
        assert 0 < latency_s < 10
        assert running.connections == 1
        # It is no change of any table, and moves the slot like all WAL.
        reader = LogReader(tmp_path)
        assert list(reader.commits(reader.start(), reader.end())) == []
        now = database.wal_position()
        eventually(lambda: database.confirmed(SLOT) >= now, "the slot follows")


def test_heartbeats_that_cannot_be_sent_stop_nothing(database: Database, tmp_path: Path) -> None:
    # M1.5
    prepare(database)
    database.run("CREATE ROLE mute LOGIN REPLICATION")
    try:
        revoked = [
            name
            for (name,) in database.rows(
                "SELECT oid::regprocedure::text FROM pg_proc WHERE proname = "
                "'pg_logical_emit_message'"
            )
        ]
        assert revoked
        database.run(*(f"REVOKE EXECUTE ON FUNCTION {name} FROM PUBLIC" for name in revoked))
        config = with_heartbeats(database, tmp_path)
        source = config.source.model_copy(
            update={"dsn": capture_config(database.dsn("mute"), tmp_path).source.dsn}
        )
        with capturing(config.model_copy(update={"source": source})) as running:
            running.connected()
            eventually(
                lambda: any(entry["event"] == "heartbeat not sent" for entry in running.said),
                "a warning",
            )
            now = database.wal_position()
            eventually(lambda: database.confirmed(SLOT) >= now, "the slot follows")
            assert running.connections == 1
    finally:
        database.run("DROP OWNED BY mute", "DROP ROLE mute")
