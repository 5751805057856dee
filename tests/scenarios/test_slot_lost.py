"""The server gives up the slot while capture runs: named, and never made again in silence."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest

from penstock.errors import SlotInvalidated, SlotMissing
from penstock.postgres.embedded import EmbeddedPostgres
from support.capturing import capture_config, capturing
from support.database import Database
from support.oracle import Mirror
from support.waiting import eventually
from support.workload import SLOT, insert_items, prepare

pytestmark = pytest.mark.every_version


def test_an_invalidated_slot_ends_capture_with_its_name(
    own_server: EmbeddedPostgres, tmp_path: Path
) -> None:
    # M1.7: an open transaction holds back the slot's WAL until the server has had enough.
    mirror = Mirror(tmp_path)
    with Database(own_server, "app") as database:
        prepare(database)
        database.run("ALTER SYSTEM SET max_slot_wal_keep_size = '1MB'", "SELECT pg_reload_conf()")
        with (
            capturing(capture_config(database.dsn(), tmp_path)) as running,
            database.connect(autocommit=False) as open_transaction,
        ):
            insert_items(open_transaction, 10)
            mirror.await_marker(database)
            before = mirror.complete_lsn
            for _ in range(3):
                database.run(
                    "INSERT INTO unpublished (body) VALUES ('x')", "SELECT pg_switch_wal()"
                )
            database.run("CHECKPOINT")
            error = running.failure()
        assert isinstance(error, SlotInvalidated)
        assert f'"{SLOT}"' in str(error)
        assert "seed the targets again" in str(error)
        assert database.value("SELECT wal_status FROM pg_replication_slots") == "lost"
        assert mirror.complete_lsn >= before
        assert len(mirror.commits) == 1


def drop_while_in_use(database: Database) -> bool:
    """Capture comes back at once: whether we were quicker."""
    try:
        with database.connect() as connection, connection.pipeline():
            connection.execute(
                "SELECT pg_terminate_backend(active_pid, 5000) FROM pg_replication_slots"
                " WHERE active_pid IS NOT NULL"
            )
            connection.execute("SELECT pg_drop_replication_slot(%s)", [SLOT])
    except psycopg.errors.ObjectInUse:
        return False
    return True


def test_a_slot_that_is_dropped_ends_capture_and_is_not_made_again(
    database: Database, tmp_path: Path
) -> None:
    # M1.7
    prepare(database)
    mirror = Mirror(tmp_path)
    with capturing(capture_config(database.dsn(), tmp_path)) as running:
        mirror.must_equal(database)
        eventually(lambda: drop_while_in_use(database), "the slot is dropped")
        error = running.failure()
    assert isinstance(error, SlotMissing)
    assert f"move {tmp_path} away" in error.remedy, "a new slot could not continue this log"
    assert database.rows("SELECT 1 FROM pg_replication_slots") == []
