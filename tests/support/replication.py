"""A replication connection in the hands of a test: no log, no retries, nothing confirmed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from penstock.lsn import ZERO, Lsn
from penstock.postgres.connection import ReplicationConnection
from penstock.postgres.envelope import PAYLOAD_POS, XLOG_DATA
from penstock.postgres.messages import Message
from penstock.postgres.pgoutput import Decoder
from support.database import Database
from support.waiting import eventually
from support.workload import PUBLICATION, SLOT


@contextmanager
def replicating(
    dsn: str, *, slot: str = SLOT, start_lsn: Lsn = ZERO, wal_sender_timeout_s: float = 20.0
) -> Iterator[ReplicationConnection]:
    """Started and ended cleanly."""
    with ReplicationConnection(dsn, wal_sender_timeout_s=wal_sender_timeout_s) as connection:
        connection.start(slot, PUBLICATION, start_lsn, messages=True)
        yield connection
        connection.end()


def read_until(
    connection: ReplicationConnection,
    done: Callable[[list[bytes]], bool],
    *,
    within_s: float = 15.0,
) -> list[bytes]:
    """Everything received up to the run with which `done` is true."""
    received: list[bytes] = []
    deadline = time.monotonic() + within_s
    while not done(received):
        assert time.monotonic() < deadline, "what was waited for did not arrive"
        received += map(bytes, connection.read(0.1))
    return received


def payloads(received: list[bytes]) -> list[bytes]:
    return [message[PAYLOAD_POS:] for message in received if message[0] == XLOG_DATA]


def decode_all(connection: ReplicationConnection, received: list[bytes]) -> list[Message]:
    decoder = Decoder(connection.protocol_version, "on")
    return [decoder.decode(payload) for payload in payloads(received)]


def await_free(database: Database, slot: str = SLOT) -> None:
    """Until the server has noticed that the slot's last reader is gone."""
    eventually(
        lambda: (
            database.value("SELECT active FROM pg_replication_slots WHERE slot_name = %s", slot)
            is False
        ),
        f"slot {slot} is free",
    )


def streamed(database: Database, slot: str = SLOT) -> int:
    """How many transactions the server has streamed on this slot, as far as it has said."""
    return int(
        database.value(
            "SELECT coalesce(sum(stream_txns), 0) FROM pg_stat_replication_slots"
            " WHERE slot_name = %s",
            slot,
        )
    )
