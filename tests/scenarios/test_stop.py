"""Capture is asked to stop: it does so promptly, and has confirmed what it received."""

from __future__ import annotations

import socket
from pathlib import Path

from penstock.postgres.embedded import EmbeddedPostgres
from support.capturing import capture_config, capturing
from support.database import Database
from support.oracle import Mirror
from support.proxy import Proxy
from support.waiting import eventually
from support.workload import SLOT, Writers, insert_items, prepare

# A server that is busy with a large commit lets go of the slot in its own time.
PROMPT_S = 1.0


def test_an_idle_capture_stops_promptly_and_has_confirmed_all_that_it_received(
    database: Database, tmp_path: Path
) -> None:
    # M1.6
    prepare(database)
    with capturing(capture_config(database.dsn(), tmp_path)) as running:
        session = running.session()
        database.run("INSERT INTO unpublished (body) VALUES ('x')")
        written = database.wal_position()
        eventually(lambda: session.received_lsn >= written, "a keepalive with the position")
        assert running.stop() < PROMPT_S
        assert session.received_lsn == session.durable_lsn == session.confirmed_lsn
        assert database.confirmed(SLOT) == session.received_lsn
        assert Mirror(tmp_path).complete_lsn == session.received_lsn
        assert database.value("SELECT active FROM pg_replication_slots") is False


def test_a_capture_that_waits_for_the_server_to_speak_is_woken(
    database18: Database, tmp_path: Path
) -> None:
    prepare(database18)
    config = capture_config(database18.dsn(), tmp_path, keepalive_interval_s=60.0)
    with capturing(config) as running:
        session = running.session()
        eventually(
            lambda: session.received_lsn == session.confirmed_lsn > database18.wal_position() - 1,
            "all is said",
        )
        assert running.stop() < PROMPT_S


def test_a_capture_under_load_stops_promptly_and_loses_nothing(
    database: Database, tmp_path: Path
) -> None:
    prepare(database)
    mirror = Mirror(tmp_path)
    config = capture_config(database.dsn(), tmp_path)
    with Writers(database, 3) as writers:
        for _ in range(2):
            with capturing(config) as running:
                running.connected()
                writers.await_commits(10)
                assert running.stop() < PROMPT_S
                session = running.session()
                assert database.confirmed(SLOT) == session.received_lsn == session.durable_lsn
    with capturing(config):
        mirror.must_equal(database)


def test_a_capture_in_the_middle_of_a_large_commit_stops_promptly(
    database: Database, tmp_path: Path
) -> None:
    prepare(database)
    # Not streamed: the server sends it all at the commit, and does not look up meanwhile.
    dsn = database.dsn(options="-c logical_decoding_work_mem=1GB")
    mirror = Mirror(tmp_path)
    with database.connect() as connection:
        insert_items(connection, 50_000)
    with capturing(capture_config(dsn, tmp_path)) as running:
        session = running.session()
        eventually(lambda: session.half_received, "the commit has begun to arrive")
        assert running.stop() < PROMPT_S
        assert session.half_received, "it came too fast for this test"
        assert mirror.read().commits == []
    with capturing(capture_config(dsn, tmp_path)):
        mirror.await_marker(database)
    assert len(mirror.rows("items")) == 50_000


def test_a_capture_that_waits_for_its_server_stops_promptly(
    own_server: EmbeddedPostgres, tmp_path: Path
) -> None:
    with Database(own_server, "app") as database:
        prepare(database)
        with capturing(capture_config(database.dsn(), tmp_path)) as running:
            running.connected()
            own_server.stop()
            # Attempts have gone on until the pause is longer than what we ask for below.
            eventually(lambda: running.pauses()[-1:] > [PROMPT_S], "a long pause")
            assert running.stop() < PROMPT_S


def test_a_capture_whose_server_does_not_answer_any_more_stops(
    database18: Database, tmp_path: Path
) -> None:
    prepare(database18)
    with (
        Proxy(database18.server.port) as proxy,
        capturing(capture_config(proxy.through(database18.dsn()), tmp_path)) as running,
    ):
        running.connected()
        proxy.stall()
        assert running.stop() < 4.0, "the goodbye has a time limit"


def test_a_capture_that_waits_for_a_silent_host_stops_promptly(tmp_path: Path) -> None:
    # The host takes the connection and never answers: only the connect timeout would end it.
    with socket.create_server(("127.0.0.1", 0)) as silent:
        dsn = f"host=127.0.0.1 port={silent.getsockname()[1]} dbname=app sslmode=disable"
        with capturing(capture_config(dsn, tmp_path)) as running:
            caller, _ = silent.accept()
            assert running.stop() < PROMPT_S
            caller.close()
