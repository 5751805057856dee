"""A promoted server takes over: followed if it left our timeline behind us, refused if before."""

from __future__ import annotations

import json
import shutil
from contextlib import ExitStack
from pathlib import Path

import psycopg
import pytest

from penstock.errors import OlderTimeline, SourceUnavailable, WrongTimeline
from penstock.postgres.connection import ReplicationConnection
from penstock.postgres.embedded import EmbeddedPostgres
from support.capturing import RunningCapture, capture_config, capturing
from support.database import Database
from support.images import put_back
from support.oracle import Mirror
from support.refusals import refusal
from support.waiting import eventually
from support.workload import insert_items, prepare


def promote(server: EmbeddedPostgres) -> None:
    """From a server that is stopped: it recovers all there is, and ends on a new timeline."""
    settings = server.data_dir / "postgresql.auto.conf"
    with settings.open("a") as file:
        file.write("restore_command = 'false'\n")
    (server.data_dir / "recovery.signal").touch()
    server.start()
    await_promotion(server)


def start_as_standby(server: EmbeddedPostgres) -> None:
    """From a server that is stopped: it stays in recovery until `pg_promote`."""
    (server.data_dir / "standby.signal").touch()
    server.start()


def await_promotion(server: EmbeddedPostgres) -> None:
    eventually(lambda: not in_recovery(server), "it is promoted")


def in_recovery(server: EmbeddedPostgres) -> bool:
    with psycopg.connect(server.dsn()) as connection:
        row = connection.execute("SELECT pg_is_in_recovery()").fetchone()
    return bool(row and row[0])


def timeline(log: Path) -> int:
    return int(json.loads((log / "log.json").read_bytes())["timeline"])


def test_a_server_promoted_after_our_position_is_followed(
    own_server: EmbeddedPostgres, tmp_path: Path
) -> None:
    # M7.3
    mirror = Mirror(tmp_path)
    with Database(own_server, "app") as database:
        prepare(database)
        config = capture_config(database.dsn(), tmp_path)
        with capturing(config) as running:
            with database.connect() as connection:
                insert_items(connection, 10)
            mirror.must_equal(database)
            log_id = json.loads((tmp_path / "log.json").read_bytes())["id"]
            assert timeline(tmp_path) == 1
            own_server.stop()
            promote(own_server)
            with database.connect() as connection:
                insert_items(connection, 10)
            mirror.must_equal(database)
            running.connected(2)
        assert timeline(tmp_path) == 2
        assert json.loads((tmp_path / "log.json").read_bytes())["id"] == log_id
        with capturing(config):
            mirror.must_equal(database)
    assert len(mirror.rows("items")) == 20


@pytest.mark.parametrize("running_before", [True, False], ids=["running", "started"])
def test_a_server_in_recovery_is_waited_for_and_followed_once_promoted(
    own_server: EmbeddedPostgres, tmp_path: Path, running_before: bool
) -> None:
    # M7.3: whether capture ran when it became a standby, or is started against one.
    mirror = Mirror(tmp_path)
    with Database(own_server, "app") as database, ExitStack() as stack:
        prepare(database)
        config = capture_config(database.dsn(), tmp_path)
        running = stack.enter_context(capturing(config))
        with database.connect() as connection:
            insert_items(connection, 10)
        mirror.must_equal(database)
        if not running_before:
            running.stop()
        own_server.stop()
        start_as_standby(own_server)
        if not running_before:
            running = stack.enter_context(capturing(config))
        connections = running.connections
        eventually(lambda: refusals(running) >= 2, "it is tried again while in recovery")
        assert in_recovery(own_server)
        with (
            ReplicationConnection(database.dsn()) as connection,
            pytest.raises(SourceUnavailable, match="in recovery"),
        ):
            # Its position may be behind ours, which says nothing about the log.
            connection.identify()
        assert running.running
        assert running.connections == connections, "nothing is read from a standby"
        assert timeline(tmp_path) == 1
        assert database.value("SELECT pg_promote(wait => false)")
        await_promotion(own_server)
        with database.connect() as connection:
            insert_items(connection, 10)
        mirror.must_equal(database)
        assert running.connections == connections + 1
        assert timeline(tmp_path) == 2
    assert len(mirror.rows("items")) == 20


def refusals(running: RunningCapture) -> int:
    return sum("the server is in recovery" in reason for reason in running.reasons())


def test_a_server_promoted_before_our_position_is_refused(
    own_server: EmbeddedPostgres, tmp_path: Path
) -> None:
    # M7.3: the log holds changes that it never had.
    log = tmp_path / "log"
    mirror = Mirror(log)
    with Database(own_server, "app") as database:
        prepare(database)
        with (
            put_back(own_server, tmp_path / "image"),
            capturing(capture_config(database.dsn(), log)),
            database.connect() as connection,
        ):
            insert_items(connection, 10)
            mirror.must_equal(database)
        promote(own_server)
        with database.connect() as connection:
            insert_items(connection, 1_000)  # so that its WAL ends behind our position
        assert database.wal_position() > mirror.complete_lsn
        error = refusal(database, log)
        assert isinstance(error, WrongTimeline)
        assert "left timeline 1 at" in str(error)
        assert "seed the targets again" in str(error)
        assert str(refusal(database, log)) == str(error)
    assert timeline(log) == 1
    assert Mirror(log).read().commits == mirror.commits


def test_a_server_that_a_failover_left_behind_is_refused_and_the_promoted_one_still_followed(
    own_server: EmbeddedPostgres, tmp_path: Path
) -> None:
    # M7.3: the log is right, and only the DSN leads to another server for a while.
    mirror = Mirror(tmp_path / "log")
    config = capture_config(own_server.dsn("app"), tmp_path / "log")
    with Database(own_server, "app") as database:
        prepare(database)
        with capturing(config):
            mirror.must_equal(database)
        own_server.stop()
        shutil.copytree(own_server.data_dir, tmp_path / "left_behind")
        promote(own_server)
        with capturing(config):
            mirror.must_equal(database)
        own_server.stop()
        shutil.move(own_server.data_dir, tmp_path / "promoted")
        shutil.copytree(tmp_path / "left_behind", own_server.data_dir)
        own_server.start()
        error = refusal(database, tmp_path / "log")
        assert isinstance(error, OlderTimeline)
        own_server.stop()
        shutil.rmtree(own_server.data_dir)
        shutil.move(tmp_path / "promoted", own_server.data_dir)
        own_server.start()
        with capturing(config):
            mirror.must_equal(database)
