"""The network cuts the connection in the middle of a message, wherever that is."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from penstock.errors import ConnectionLost, SourceUnavailable
from penstock.lsn import ZERO
from penstock.postgres.connection import ReplicationConnection
from support.capturing import capture_config, capturing
from support.database import Database
from support.oracle import Mirror
from support.proxy import Proxy
from support.repeats import repeats
from support.replication import await_free, payloads, read_until, replicating
from support.workload import PUBLICATION, SLOT, Writers, insert_items, prepare


def test_whatever_arrived_before_the_cut_is_whole_and_in_order(database: Database) -> None:
    # At every position of a short stream, and of the talk before it.
    prepare(database)
    with database.connect() as connection:
        for n in range(3):
            insert_items(connection, 2, writer=n)
    with Proxy(database.server.port) as proxy:
        dsn = proxy.through(database.dsn())
        with replicating(dsn) as connection:
            talk = proxy.received_bytes
            whole = payloads(read_until(connection, lambda got: count_commits(got) == 3))
            stream = proxy.received_bytes - talk
        assert stream > 500
        positions = range(0, talk + stream, max(1, (talk + stream) // repeats(80, soak=10_000)))
        prefixes = set()
        for n in positions:
            await_free(database)
            cuts = proxy.cuts
            proxy.cut_after(n)
            prefix = read_until_cut(dsn)
            assert prefix == whole[: len(prefix)]
            prefixes.add(len(prefix))
            assert proxy.cuts == cuts + 1
        assert len(prefixes) > 5, "cuts fell into different messages"


def count_commits(received: list[bytes]) -> int:
    return sum(payload[:1] == b"C" for payload in payloads(received))


def read_until_cut(dsn: str) -> list[bytes]:
    """What arrives before the cut; nothing but the named errors may come of it."""
    received: list[bytes] = []
    with pytest.raises((ConnectionLost, SourceUnavailable)):  # noqa: PT012, SIM117
        with ReplicationConnection(dsn) as connection:
            connection.identify()
            connection.start(SLOT, PUBLICATION, ZERO)
            while True:
                received += map(bytes, connection.read(5.0))
    return payloads(received)


def test_capture_survives_cuts_under_load(database: Database, tmp_path: Path) -> None:
    # M3.4: in the talk before replication starts, inside messages, inside large transactions.
    prepare(database)
    chance = random.Random(7)
    mirror = Mirror(tmp_path)
    with (
        Proxy(database.server.port) as proxy,
        capturing(capture_config(proxy.through(database.dsn()), tmp_path)) as running,
    ):
        with Writers(database) as writers:
            for n in range(repeats(12, soak=400)):
                running.connected(running.connections + (n > 0))
                before = proxy.cuts
                proxy.cut_after(chance.choice((0, 50, 500, 5_000, 50_000)) + chance.randrange(500))
                writers.await_commits(2)
                while proxy.cuts == before:
                    writers.await_commits(1)
        mirror.must_equal(database)
        for e in running.said: print(e)
        print(proxy.cuts)
        assert proxy.cuts >= 1200


def test_a_server_that_refuses_for_a_while_is_tried_again(
    database18: Database, tmp_path: Path
) -> None:
    # M7.3
    prepare(database18)
    mirror = Mirror(tmp_path)
    with (
        Proxy(database18.server.port) as proxy,
        capturing(capture_config(proxy.through(database18.dsn()), tmp_path)) as running,
    ):
        mirror.must_equal(database18)
        proxy.refuse()
        proxy.cut()
        with database18.connect() as connection:
            insert_items(connection, 10)
        while len(running.pauses()) < 3:
            assert running.running
        proxy.refuse(False)
        mirror.must_equal(database18)
        assert running.connections == 2


def test_a_connection_on_which_nothing_arrives_is_opened_again(
    database18: Database, tmp_path: Path
) -> None:
    # M1.5: stale.
    prepare(database18)
    mirror = Mirror(tmp_path)
    with Proxy(database18.server.port) as proxy:
        config = capture_config(
            proxy.through(database18.dsn()),
            tmp_path,
            stale_timeout_s=1.0,
            wal_sender_timeout_s=1.5,
        )
        with capturing(config) as running:
            mirror.must_equal(database18)
            proxy.stall()
            with database18.connect() as connection:
                insert_items(connection, 10)
            while not running.pauses():
                assert running.running
            assert "nothing was received" in running.said[-1]["reason"]
            proxy.cut()
            proxy.flow()
            mirror.must_equal(database18)
