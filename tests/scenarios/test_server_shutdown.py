"""The server shuts down: it waits for our last confirmation, and we do not keep it waiting."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock.errors import ConnectionLost, ServerShutdown
from penstock.lsn import Lsn
from penstock.postgres.connection import ReplicationConnection
from penstock.postgres.embedded import EmbeddedPostgres
from penstock.postgres.session import ReplicationSession, SessionSettings
from support.capturing import capture_config, capturing
from support.database import Database
from support.oracle import Mirror
from support.replication import replicating
from support.workload import PUBLICATION, SLOT, Writers, insert_items, prepare

GRACE_S = 1.0
SETTINGS = SessionSettings(shutdown_grace_s=GRACE_S, keepalive_interval_s=0.2)


@contextmanager
def stopping(server: EmbeddedPostgres) -> Iterator[list[float]]:
    """Stop the server beside the block; afterwards the list holds how long it took."""
    took: list[float] = []

    def stop() -> None:
        started = time.monotonic()
        server.stop("fast")
        took.append(time.monotonic() - started)

    thread = threading.Thread(target=stop)
    thread.start()
    yield took
    thread.join()


def follow(
    connection: ReplicationConnection, start: Lsn, *, durable: bool
) -> tuple[ConnectionLost, int]:
    """Capture's loop without a log; returns how it ended and the number of messages."""
    now = time.monotonic()
    session = ReplicationSession(start, SETTINGS, now=now)
    messages = 0
    while True:
        decision = session.decide(now)
        if decision.give_up is not None:
            return decision.give_up, messages
        try:
            if decision.send is not None:
                connection.send(decision.send)
            run = connection.read(decision.wake_at - now)
        except ConnectionLost as error:
            return error, messages
        now = time.monotonic()
        session.receive(run, now)
        messages += len(run)
        if durable:
            session.made_durable(session.received_lsn)


def test_a_client_that_cannot_confirm_does_not_hold_up_the_shutdown(
    own_server: EmbeddedPostgres,
) -> None:
    # M1.6
    with Database(own_server, "app") as database:
        prepare(database)
        with database.connect() as connection:
            insert_items(connection, 10)
        start = database.confirmed(SLOT)
        replication = ReplicationConnection(database.dsn())
        replication.start(SLOT, PUBLICATION, start)
        with stopping(own_server) as took:
            end, messages = follow(replication, start, durable=False)
            replication.close()  # without a goodbye
        assert isinstance(end, ServerShutdown)
        assert "could not be made durable" in str(end)
        assert GRACE_S * 0.9 < took[0] < GRACE_S + 3
        assert messages < 100, "a server that gets every answer asks 20,000 times a second"


def test_a_client_that_can_confirm_gets_a_clean_end_at_once(own_server: EmbeddedPostgres) -> None:
    # M1.6
    with Database(own_server, "app") as database:
        prepare(database)
        with database.connect() as connection:
            insert_items(connection, 10)
        start = database.confirmed(SLOT)
        with replicating(database.dsn()) as replication, stopping(own_server) as took:
            end, _ = follow(replication, start, durable=True)
        assert type(end) is ServerShutdown
        assert str(end).startswith("the server is shutting down")
        assert took[0] < GRACE_S


@pytest.mark.parametrize("writing", [False, True], ids=["idle", "under load"])
def test_capture_confirms_and_nothing_is_doubled_after_the_restart(
    own_server: EmbeddedPostgres, tmp_path: Path, writing: bool
) -> None:
    # M1.6, M1.8
    mirror = Mirror(tmp_path)
    with Database(own_server, "app") as database:
        prepare(database)
        with capturing(capture_config(database.dsn(), tmp_path)) as running:
            mirror.must_equal(database)
            with Writers(database, 2 if writing else 0) as writers:
                writers.await_commits(10)
                with stopping(own_server) as took:
                    pass
                assert took[0] < 3.0
                own_server.start()
                running.connected(2)
                writers.await_commits(5)
            mirror.must_equal(database)
            assert "the server is shutting down" in [entry.get("reason") for entry in running.said]
