"""The server, its WAL or its slot is not the one that the log was written from."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.changelog.writer import LogWriter
from penstock.errors import ServerRewound, SlotAheadOfLog, WrongServer
from penstock.postgres.embedded import EmbeddedPostgres
from support.capturing import capture_config, capturing
from support.database import Database
from support.images import put_back
from support.logs import identity
from support.oracle import Mirror
from support.refusals import refusal
from support.workload import SLOT, insert_items, prepare


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


def test_another_server_is_refused(database: Database, tmp_path: Path) -> None:
    # M7.3
    prepare(database)
    LogWriter(tmp_path, identity(database, database.confirmed(SLOT), "1234567890")).close()
    error = refusal(database, tmp_path)
    assert isinstance(error, WrongServer)
    assert "1234567890" in str(error)


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
