"""The server, its WAL or its slot is not the one that the log was written from."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from penstock.changelog.writer import LogWriter
from penstock.errors import ServerRewound, SlotAheadOfLog, WrongServer
from penstock.lsn import Lsn
from penstock.postgres.embedded import EmbeddedPostgres
from support.capturing import capture_config, capturing
from support.database import Database
from support.images import put_back
from support.logs import identity
from support.oracle import Mirror
from support.refusals import refusal
from support.workload import PUBLICATION, SLOT, insert_items, prepare


def test_a_server_restored_from_an_older_image_is_refused(
    own_server: EmbeddedPostgres, tmp_path: Path
) -> None:
    # M1.8, M7.3: it has the same system id, and would skip what it writes up to our position.
    mirror = Mirror(tmp_path / "log")
    with Database(own_server, "app") as database:
        prepare(database)
        with (
            put_back(own_server, tmp_path / "image"),
            capturing(capture_config(database.dsn(), tmp_path / "log")),
            database.connect() as connection,
        ):
            insert_items(connection, 1000)
            mirror.must_equal(database)
        own_server.start()
        error = refusal(database, tmp_path / "log")
        assert isinstance(error, ServerRewound)
        assert str(mirror.complete_lsn) in str(error)
    assert Mirror(tmp_path / "log").read().commits == mirror.commits


def keys(mirror: Mirror) -> list[int]:
    return sorted(int(row["id"] or 0) for row in mirror.read().rows("items").values())


def insert_keys(database: Database, *ids: int) -> None:
    for number in ids:
        database.run(f"INSERT INTO items (id, writer, seq) VALUES ({number}, 0, 0)")


def grow_past(database: Database, lsn: Lsn) -> None:
    """Write WAL in one transaction, of a table that is not published."""
    missing = lsn - database.wal_position()
    database.run(
        "INSERT INTO unpublished (body) SELECT repeat('x', 1000)"
        f" FROM generate_series(0, {max(0, missing) // 1000})"
    )
    assert database.wal_position() > lsn


def test_a_server_that_was_refused_stays_refused_when_its_wal_has_grown(
    own_server: EmbeddedPostgres, tmp_path: Path
) -> None:
    # M1.8: its rows 101 to 103 would be skipped, and 201 would follow 13.
    log = tmp_path / "log"
    mirror = Mirror(log)
    with Database(own_server, "app") as database:
        prepare(database)
        config = capture_config(database.dsn(), log)
        with capturing(config):
            insert_keys(database, 1, 2, 3)
            mirror.await_marker(database)
        with put_back(own_server, tmp_path / "image"), capturing(config):
            insert_keys(database, 11, 12, 13)
            mirror.await_marker(database)
        own_server.start()
        first = refusal(database, log)
        assert isinstance(first, ServerRewound)
        insert_keys(database, 101, 102, 103)
        grow_past(database, mirror.complete_lsn)
        insert_keys(database, 201)
        again = refusal(database, log)
        assert isinstance(again, ServerRewound)
        assert str(again) == str(first)
        # Whatever else is wrong by then.
        database.run(f"DROP PUBLICATION {PUBLICATION}")
        assert str(refusal(database, log)) == str(first)
    assert keys(Mirror(log)) == [1, 2, 3, 11, 12, 13]
    # As the remedy says.
    shutil.move(log, tmp_path / "log.old")
    with Database(own_server, "other") as database:
        prepare(database)
        with capturing(capture_config(database.dsn(), log)):
            Mirror(log).must_equal(database)


def test_a_server_whose_wal_has_grown_while_capture_was_down_is_refused_by_its_transactions(
    own_server: EmbeddedPostgres, tmp_path: Path
) -> None:
    # M1.8
    log = tmp_path / "log"
    mirror = Mirror(log)
    with Database(own_server, "app") as database:
        prepare(database)
        config = capture_config(database.dsn(), log)
        with capturing(config):
            insert_keys(database, 1, 2, 3)
            mirror.await_marker(database)
        with put_back(own_server, tmp_path / "image"), capturing(config):
            insert_keys(database, *range(11, 31))
            mirror.await_marker(database)
        own_server.start()
        insert_keys(database, 101, 102, 103)
        grow_past(database, mirror.complete_lsn)
        insert_keys(database, 201)
        first = refusal(database, log)
        assert isinstance(first, ServerRewound)
        assert "next transaction" in str(first)
        insert_keys(database, *range(301, 331))
        assert str(refusal(database, log)) == str(first)


def test_a_server_that_crashed_or_was_restarted_is_followed_although_ids_are_given_again(
    own_server: EmbeddedPostgres, tmp_path: Path
) -> None:
    # M1.8: what is not on disk may go back, transaction ids among it, and nobody was told of it.
    mirror = Mirror(tmp_path)
    with Database(own_server, "app") as database:
        prepare(database)
        config = capture_config(database.dsn(), tmp_path)
        for stop in ("immediate", "fast", "immediate"):
            with capturing(config), database.connect() as connection:
                connection.execute("SET synchronous_commit = off")
                insert_items(connection, 3)
                mirror.await_marker(database)
                # Ids that leave no trace on disk.
                for _ in range(50):
                    connection.execute("SELECT pg_current_xact_id()")
            own_server.restart(stop)
            with capturing(config):
                mirror.must_equal(database)
    assert not (tmp_path / "refused.json").exists()
    assert int((tmp_path / "highest_xid").read_text()) > 0


def test_another_server_is_refused(database: Database, tmp_path: Path) -> None:
    # M7.3
    prepare(database)
    LogWriter(tmp_path, identity(database, database.confirmed(SLOT), "1234567890")).close()
    error = refusal(database, tmp_path)
    assert isinstance(error, WrongServer)
    assert "1234567890" in str(error)
    assert not (tmp_path / "refused.json").exists(), "the DSN is wrong, not the log"


@pytest.mark.parametrize("how", ["advanced by hand", "created again"])
def test_a_slot_that_is_past_the_log_is_refused(
    database: Database, tmp_path: Path, how: str
) -> None:
    # M1.8
    prepare(database)
    config = capture_config(database.dsn(), tmp_path)
    mirror = Mirror(tmp_path)
    with capturing(config):
        mirror.must_equal(database)
    with database.connect() as connection:
        insert_items(connection, 10)  # that nobody captures
    if how == "advanced by hand":
        database.rows("SELECT pg_replication_slot_advance(%s, pg_current_wal_lsn())", SLOT)
    else:
        database.rows("SELECT pg_drop_replication_slot(%s)", SLOT)
        database.create_slot(SLOT)
    error = refusal(database, tmp_path)
    assert isinstance(error, SlotAheadOfLog)
    assert str(database.confirmed(SLOT)) in str(error)
    assert "seed the targets again" in str(error)
    # Also when the slot is gone again, and setup would seem to be the remedy.
    database.rows("SELECT pg_drop_replication_slot(%s)", SLOT)
    with capturing(config) as running:
        assert str(running.failure()) == str(error)
