"""What is wrong before capture starts is named, and nothing is touched."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest

from penstock.capture.start import check_source
from penstock.errors import (
    AuthenticationFailed,
    PrivilegeMissing,
    PublicationMissing,
    SlotInUse,
    SlotInvalidated,
    SlotMissing,
    SlotOtherDatabase,
    SlotTwoPhase,
    SlotWrongPlugin,
    SourceError,
)
from penstock.lsn import ZERO
from penstock.postgres.connection import ReplicationConnection
from penstock.postgres.embedded import EmbeddedPostgres
from support.capturing import capture_config, capturing
from support.database import Database
from support.replication import replicating
from support.waiting import eventually
from support.workload import PUBLICATION, SLOT, prepare

SLOTS: dict[type[SourceError], tuple[str, ...]] = {
    SlotMissing: (),
    SlotWrongPlugin: (f"SELECT pg_create_physical_replication_slot('{SLOT}')",),
    SlotTwoPhase: (
        f"SELECT pg_create_logical_replication_slot('{SLOT}', 'pgoutput', false, true)",
    ),
}


@pytest.mark.parametrize("kind", SLOTS, ids=lambda kind: kind.__name__)
def test_a_slot_that_cannot_be_used_is_named(
    database: Database, tmp_path: Path, kind: type[SourceError]
) -> None:
    # M3.5, M7.3
    prepare(database, slot=False)
    database.run(*SLOTS[kind])
    try:
        with capturing(capture_config(database.dsn(), tmp_path / "log")) as running:
            error = running.failure()
        assert type(error) is kind
        assert f'"{SLOT}"' in str(error)
        assert not (tmp_path / "log").exists()
    finally:
        database.run(  # a physical slot belongs to no database
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots"
        )


def test_a_slot_of_another_database_is_named(database: Database, tmp_path: Path) -> None:
    # M7.3
    prepare(database, slot=False)
    with Database(database.server, "t_another") as another:
        another.create_slot(SLOT)
        with capturing(capture_config(database.dsn(), tmp_path)) as running:
            assert isinstance(running.failure(), SlotOtherDatabase)


def test_a_publication_that_does_not_exist_is_named(database: Database, tmp_path: Path) -> None:
    # M3.7: the server itself would start, and on 18 skip every change.
    prepare(database)
    config = capture_config(database.dsn(), tmp_path, publication="misspelt")
    with capturing(config) as running:
        error = running.failure()
    assert isinstance(error, PublicationMissing)
    assert '"misspelt"' in str(error)


def test_a_slot_in_use_is_named_with_its_holder(database: Database, tmp_path: Path) -> None:
    # M7.3
    prepare(database)
    source = capture_config(database.dsn(), tmp_path).source
    with replicating(database.dsn()):
        pid = database.value("SELECT active_pid FROM pg_replication_slots")
        with pytest.raises(SlotInUse, match=str(pid)):
            check_source(source)
        with (
            ReplicationConnection(database.dsn()) as second,
            pytest.raises(SlotInUse, match=str(pid)),
        ):
            second.start(SLOT, PUBLICATION, ZERO)
    assert check_source(source).active_pid is None


def test_a_slot_in_use_is_taken_over_when_it_is_free(database: Database, tmp_path: Path) -> None:
    prepare(database)
    with (
        replicating(database.dsn()) as other,
        capturing(capture_config(database.dsn(), tmp_path)) as running,
    ):
        eventually(lambda: len(running.pauses()) >= 2, "it is tried again")
        other.end()
        running.connected()


def test_a_missing_slot_is_named_by_the_connection_too(database: Database) -> None:
    prepare(database, slot=False)
    with ReplicationConnection(database.dsn()) as connection, pytest.raises(SlotMissing):
        connection.start(SLOT, PUBLICATION, ZERO)


def test_an_invalidated_slot_is_named_and_never_created_again(
    own_server: EmbeddedPostgres, tmp_path: Path
) -> None:
    # M1.7
    with Database(own_server, "app") as database:
        prepare(database)
        database.run("ALTER SYSTEM SET max_slot_wal_keep_size = '1MB'", "SELECT pg_reload_conf()")
        for _ in range(3):
            database.run("INSERT INTO unpublished (body) VALUES ('x')", "SELECT pg_switch_wal()")
        database.run("CHECKPOINT")
        status = "SELECT wal_status FROM pg_replication_slots"
        assert database.value(status) == "lost"
        with capturing(capture_config(database.dsn(), tmp_path / "log")) as running:
            error = running.failure()
        assert isinstance(error, SlotInvalidated)
        assert "seed the targets again" in str(error)
        assert database.value(status) == "lost"


def test_a_role_that_may_not_replicate_is_told_the_grant(
    database: Database, tmp_path: Path
) -> None:
    # M7.3
    prepare(database)
    database.run("DROP ROLE IF EXISTS plain", "CREATE ROLE plain LOGIN")
    with capturing(capture_config(database.dsn("plain"), tmp_path)) as running:
        error = running.failure()
    assert isinstance(error, PrivilegeMissing)
    assert "ALTER ROLE plain REPLICATION" in str(error)
    database.run("DROP ROLE plain")


def test_a_wrong_password_is_named_and_appears_nowhere(
    own_server: EmbeddedPostgres, tmp_path: Path
) -> None:
    # M7.3
    with Database(own_server, "app") as database:
        prepare(database)
        database.run("CREATE ROLE guarded LOGIN REPLICATION PASSWORD 'right'")
        hba = own_server.data_dir / "pg_hba.conf"
        hba.write_text("host all guarded 127.0.0.1/32 scram-sha-256\n" + hba.read_text())
        database.run("SELECT pg_reload_conf()")
        eventually(lambda: refuses(database), "the rule is in force")
        config = capture_config(database.dsn("guarded", password="wr0ng-s3cret"), tmp_path)
        with capturing(config) as running:
            error = running.failure()
        assert isinstance(error, AuthenticationFailed)
        for text in (str(error), repr(error), repr(vars(error)), repr(running.said), repr(config)):
            assert "s3cret" not in text
        config = capture_config(database.dsn("guarded", password="right"), tmp_path)
        with capturing(config) as running:
            running.connected()


def refuses(database: Database) -> bool:
    try:
        database.connect(user="guarded").close()
    except psycopg.OperationalError:
        return True
    return False
