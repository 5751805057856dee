"""Large transactions, streamed before they commit: interleaved, in part rolled back, aborted."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.capturing import capture_config, capturing
from support.database import Database
from support.oracle import Mirror
from support.replication import streamed
from support.waiting import eventually
from support.workload import SLOT, STREAMED_ROWS, Writers, insert_items, prepare

pytestmark = pytest.mark.every_version


def test_two_open_transactions_arrive_interleaved_and_are_kept_apart(
    database: Database, tmp_path: Path
) -> None:
    # M3.5
    prepare(database)
    mirror = Mirror(tmp_path)
    with (
        capturing(capture_config(database.dsn(), tmp_path)),
        database.connect(autocommit=False) as one,
        database.connect(autocommit=False) as two,
    ):
        for _ in range(3):
            insert_items(one, STREAMED_ROWS, writer=1)
            insert_items(two, STREAMED_ROWS, writer=2)
        eventually(lambda: streamed(database) >= 2, "both are streamed while they are open")
        mirror.await_marker(database)
        assert mirror.rows("items") == {}, "nobody sees them before they commit"
        two.commit()
        mirror.must_equal(database)
        assert {row["writer"] for row in mirror.rows("items").values()} == {"2"}
        one.commit()
        mirror.must_equal(database)
        assert len(mirror.rows("items")) == 6 * STREAMED_ROWS


def test_subtransactions_that_roll_back_leave_nothing(database: Database, tmp_path: Path) -> None:
    # M3.5
    prepare(database)
    mirror = Mirror(tmp_path)
    with capturing(capture_config(database.dsn(), tmp_path)), database.connect() as connection:
        with connection.transaction():
            insert_items(connection, STREAMED_ROWS, writer=1)
            with connection.transaction(force_rollback=True):
                insert_items(connection, STREAMED_ROWS, writer=2)
                with connection.transaction():
                    insert_items(connection, STREAMED_ROWS, writer=3)
            with connection.transaction():
                insert_items(connection, STREAMED_ROWS, writer=4)
                with connection.transaction(force_rollback=True):
                    insert_items(connection, STREAMED_ROWS, writer=5)
            insert_items(connection, STREAMED_ROWS, writer=6)
        with connection.transaction(force_rollback=True):
            insert_items(connection, 3 * STREAMED_ROWS, writer=7)
        with connection.transaction():
            insert_items(connection, 3, writer=8)
            with connection.transaction(force_rollback=True):
                insert_items(connection, 3, writer=9)
        mirror.must_equal(database)
        assert {row["writer"] for row in mirror.rows("items").values()} == set("1468")
        eventually(lambda: streamed(database) >= 1, "streaming happened")


def test_an_open_transaction_holds_back_neither_the_slot_nor_the_others(
    database: Database, tmp_path: Path
) -> None:
    # M1.3: and after a reconnect the server sends it again from its start.
    prepare(database)
    mirror = Mirror(tmp_path)
    config = capture_config(database.dsn(), tmp_path)
    with database.connect(autocommit=False) as connection:
        with capturing(config):
            insert_items(connection, STREAMED_ROWS, writer=1)
            eventually(lambda: streamed(database) >= 1, "it is streamed")
            mirror.await_marker(database)
            written = database.wal_position()
            eventually(lambda: database.confirmed(SLOT) >= written, "the slot is past it")
        with capturing(config):
            insert_items(connection, 10, writer=1)
            connection.commit()
            mirror.must_equal(database)
    assert len(mirror.rows("items")) == STREAMED_ROWS + 10


def test_random_transactions_of_many_writers(database: Database, tmp_path: Path) -> None:
    # M3.5
    prepare(database)
    mirror = Mirror(tmp_path)
    with capturing(capture_config(database.dsn(), tmp_path)):
        with Writers(database, 4) as writers:
            writers.await_commits(25)
        mirror.must_equal(database)
        eventually(lambda: streamed(database) >= 1, "streaming happened")
