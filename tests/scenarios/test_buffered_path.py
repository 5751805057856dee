"""Whole transactions for a destination that cannot hide the others, from a real server."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from penstock.capture.builder import TransactionBuilder
from penstock.lsn import ZERO
from penstock.postgres.fragments import Fragment, Fragmenter
from penstock.postgres.messages import Delete, Insert, Relation, Update
from penstock.postgres.pgoutput import Decoder
from penstock.postgres.transaction import Transaction
from support.building import in_memory
from support.database import Database
from support.replication import replicating
from support.workload import STREAMED_ROWS, insert_items, prepare

# A part of what one of the large transactions needs.
MEMORY_BYTES = 20_000
NOT_STREAMED = "-c logical_decoding_work_mem=1GB"


def write(one: psycopg.Connection, two: psycopg.Connection) -> None:
    """Two large transactions at a time, in part rolled back, then one that changes their rows."""
    insert_items(one, STREAMED_ROWS, writer=1)
    insert_items(two, STREAMED_ROWS, writer=2)
    with one.transaction(force_rollback=True):
        insert_items(one, 2 * STREAMED_ROWS, writer=3)
        with one.transaction():
            insert_items(one, STREAMED_ROWS, writer=4)
    with one.transaction():
        insert_items(one, STREAMED_ROWS, writer=5)
    two.execute("UPDATE items SET seq = -seq WHERE writer = 2")
    two.commit()
    insert_items(two, STREAMED_ROWS, writer=6)
    two.rollback()
    one.commit()
    one.execute("DELETE FROM items WHERE seq % 3 = 0")
    one.execute("UPDATE items SET id = -id, body = 'changed' WHERE writer = 5")
    one.commit()


def collect(database: Database, directory: Path, *, streamed: bool) -> list[Transaction]:
    """What one connection hands out, up to and with the marker."""
    found: list[Transaction] = []
    forms = set()
    deadline = time.monotonic() + 20
    options = "" if streamed else NOT_STREAMED
    with (
        TransactionBuilder(directory, MEMORY_BYTES) as builder,
        replicating(database.dsn(options=options)) as connection,
    ):
        fragmenter = Fragmenter(ZERO)
        while not (found and any(changes("markers", found[-1]))):
            assert time.monotonic() < deadline, "what was waited for did not arrive"
            for event in fragmenter.feed(connection.read(0.1)):
                if isinstance(event, Fragment):
                    forms.add(event.streamed)
                whole = builder.add(event)
                assert builder.memory_bytes <= MEMORY_BYTES
                if whole is not None:
                    found.append(in_memory(whole))
    assert forms == ({True, False} if streamed else {False})
    return [transaction for transaction in found if transaction.payloads]


def changes(table: str, transaction: Transaction) -> Iterator[Insert | Update | Delete]:
    decoder, names = Decoder(1, "off"), {}
    for payload in transaction.payloads:
        message = decoder.decode(payload)
        if isinstance(message, Relation):
            names[message.oid] = message.name
        elif isinstance(message, Insert | Update | Delete) and names[message.relation_oid] == table:
            yield message


def replayed(transactions: list[Transaction]) -> list[tuple[object, ...]]:
    """The rows of `items`, whose first column is its key, as text."""
    rows: dict[object, tuple[object, ...]] = {}
    for change in (change for one in transactions for change in changes("items", one)):
        if isinstance(change, Update | Delete):
            old = change.old_key or (change.new if isinstance(change, Update) else ())
            del rows[old[0]]
        if isinstance(change, Insert | Update):
            assert change.new[0] not in rows
            rows[change.new[0]] = change.new
    return sorted(rows.values(), key=repr)


@pytest.mark.parametrize("streamed", [True, False], ids=["streamed", "whole"])
def test_large_transactions_come_whole_and_equal_what_a_select_says(
    database18: Database, tmp_path: Path, streamed: bool
) -> None:
    # M3.6
    database = database18
    prepare(database)
    with (
        database.connect(autocommit=False) as one,
        database.connect(autocommit=False) as two,
    ):
        write(one, two)
    database.run("INSERT INTO markers DEFAULT VALUES")

    found = collect(database, tmp_path, streamed=streamed)
    commits = [transaction.commit_lsn for transaction in found]
    assert commits == sorted(set(commits))
    assert len(found) == 4
    truth = [
        tuple(str(value).encode() for value in row)
        for row in database.rows("SELECT id, writer, seq, body FROM items")
    ]
    assert replayed(found) == sorted(truth, key=repr)
    # And in the other form it is the same, byte for byte.
    assert collect(database, tmp_path, streamed=not streamed) == found
    assert list(tmp_path.iterdir()) == []
