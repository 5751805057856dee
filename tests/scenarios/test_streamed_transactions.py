"""Large transactions, streamed before they commit: interleaved, in part rolled back, aborted."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.changelog.reader import LogReader
from support.capturing import capture_config, capturing
from support.database import Database
from support.oracle import Mirror
from support.repeats import repeats
from support.replication import streamed
from support.versions import USUAL, version_id
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


@pytest.mark.parametrize("server", USUAL, ids=version_id, indirect=True)
def test_very_many_subtransactions_that_roll_back_do_not_make_the_server_hang_up(
    database: Database, tmp_path: Path
) -> None:
    # M1.6, M3.5: all are streamed before they roll back at once, and the commit needs them all.
    prepare(database)
    # With the tests' buffer of 64 kB it is the server that takes minutes.
    database.run(f"ALTER DATABASE \"{database.name}\" SET logical_decoding_work_mem = '4MB'")
    mirror = Mirror(tmp_path)
    config = capture_config(database.dsn(), tmp_path, wal_sender_timeout_s=3.0)
    with capturing(config) as running:
        running.connected()
        database.run(
            f"""DO $$ BEGIN
                BEGIN
                    FOR i IN 1..{repeats(20_000, soak=300_000)} LOOP
                        BEGIN
                            INSERT INTO items (writer, seq, body) VALUES (1, i, repeat('x', 1000));
                        EXCEPTION WHEN division_by_zero THEN NULL;
                        END;
                    END LOOP;
                    RAISE division_by_zero;
                EXCEPTION WHEN division_by_zero THEN NULL;
                END;
                INSERT INTO items (writer, seq) VALUES (2, 1);
            END $$"""
        )
        mirror.await_marker(database, within_s=repeats(60, soak=300))
        mirror.must_equal(database)
        assert {row["writer"] for row in mirror.rows("items").values()} == {"2"}
        assert running.connections == 1, running.reasons()
    (large,) = (
        commit
        for reader in [LogReader(tmp_path)]
        for commit in reader.commits(reader.start(), reader.end())
        if commit.aborted
    )
    assert len(large.aborted) >= repeats(20_000, soak=300_000) / 2


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
