"""The network cuts the connection in the middle of a message, wherever that is."""

from __future__ import annotations

import random
from pathlib import Path

from penstock.errors import ConnectionLost, SourceUnavailable
from penstock.lsn import ZERO
from penstock.postgres.connection import ReplicationConnection
from support.capturing import capture_config, capturing
from support.database import Database
from support.oracle import Mirror
from support.proxy import Proxy
from support.repeats import repeats
from support.replication import await_free, payloads, read_until, replicating
from support.waiting import eventually
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
            whole = payloads(read_until(connection, lambda got: count_commits(got) == 3))
            length = proxy.received_bytes
        assert length > 1000
        positions = range(0, length, max(1, length // repeats(80, soak=1_000)))
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
    try:
        with ReplicationConnection(dsn) as connection:
            connection.identify()
            connection.start(SLOT, PUBLICATION, ZERO)
            while True:
                received += map(bytes, connection.read(5.0))
    except (ConnectionLost, SourceUnavailable):
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
        with Writers(database):
            for _ in range(repeats(8, soak=60)):
                mirror.await_marker(database)
                if chance.random() < 0.3:
                    proxy.cut()  # so that the next one falls into the talk before replication
                before = proxy.cuts
                proxy.cut_after(chance.choice((0, 500, 5_000, 50_000)) + chance.randrange(1000))
                eventually(lambda: proxy.cuts > before, "the cut")  # noqa: B023
        mirror.must_equal(database)
        assert running.connections > 8


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
        eventually(lambda: len(running.pauses()) >= 3, "attempts")
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
            eventually(running.pauses, "it has given up the connection")
            assert "nothing was received" in running.said[-1]["reason"]
            proxy.cut()
            proxy.flow()
            mirror.must_equal(database18)
