"""The publication is dropped while capture runs: it stops, and confirms nothing after it."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.errors import PublicationMissing, new_log
from support.capturing import capture_config, capturing
from support.database import Database
from support.oracle import Mirror
from support.workload import PUBLICATION, SCHEMA, SLOT, insert_items, prepare

pytestmark = pytest.mark.every_version


def test_capture_stops_and_confirms_nothing_that_was_skipped(
    database: Database, tmp_path: Path
) -> None:
    # M3.7: 15 and 16 end with an error at the next change, 18 skips it with a warning.
    prepare(database)
    mirror = Mirror(tmp_path)
    config = capture_config(database.dsn(), tmp_path)
    with capturing(config) as running, database.connect() as connection:
        insert_items(connection, 3)
        mirror.must_equal(database)
        connection.execute(f"DROP PUBLICATION {PUBLICATION}")
        insert_items(connection, 3)
        committed = database.wal_position()
        error = running.failure()
    assert isinstance(error, PublicationMissing)
    assert "while capture was running" in str(error)
    assert database.confirmed(SLOT) < committed
    assert mirror.complete_lsn < committed
    assert len(mirror.rows("items")) == 3

    with capturing(config) as running:
        error = running.failure()
    assert isinstance(error, PublicationMissing), "and it is missing at the next start"
    assert f'"{PUBLICATION}" does not exist' in str(error)
    # Set-up would refuse: the slot is older than a publication that it makes.
    assert f"Start a new log: {new_log(str(tmp_path))}".lower() in str(error).lower()

    database.run(SCHEMA[-1])
    with capturing(config) as running:
        error = running.failure()
    assert isinstance(error, PublicationMissing), "to create it again does not bring back changes"
    assert database.confirmed(SLOT) < committed
    assert mirror.complete_lsn < committed


def test_a_change_of_an_unpublished_table_does_not_hide_it(
    database: Database, tmp_path: Path
) -> None:
    # M3.7: nor does WAL that goes on after the skipped change.
    prepare(database)
    with capturing(capture_config(database.dsn(), tmp_path)) as running:
        running.connected()
        with database.connect() as connection, connection.transaction():
            connection.execute(f"DROP PUBLICATION {PUBLICATION}")
        with database.connect() as connection:
            insert_items(connection, 1)
            committed = database.wal_position()
            for _ in range(10):
                connection.execute("INSERT INTO unpublished (body) VALUES ('x')")
        assert isinstance(running.failure(), PublicationMissing)
    assert database.confirmed(SLOT) < committed


def test_one_that_is_made_anew_in_one_transaction_is_not_missed(
    database: Database, tmp_path: Path
) -> None:
    # M3.7: what doctor advises in place of one FOR ALL TABLES.
    prepare(database)
    database.run(f"DROP PUBLICATION {PUBLICATION}")
    database.run(f"CREATE PUBLICATION {PUBLICATION} FOR ALL TABLES")
    mirror = Mirror(tmp_path)
    with (
        capturing(capture_config(database.dsn(), tmp_path)) as running,
        database.connect() as connection,
    ):
        running.connected()
        insert_items(connection, 3)
        connection.execute(f"BEGIN; DROP PUBLICATION {PUBLICATION}; {SCHEMA[-1]}; COMMIT".encode())
        insert_items(connection, 3)
        mirror.must_equal(database)
        assert running.connections == 1
