"""What is wrong before capture starts is named, and nothing is touched."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.capture import engine
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
from support.impatient import Impatient
from support.refusals import (
    RIGHT_PASSWORD,
    Trouble,
    invalidated_slot,
    missing_publication,
    missing_slot,
    physical_slot,
    role_without_replication,
    slot_in_use,
    two_phase_slot,
    wrong_password,
)
from support.replication import replicating
from support.waiting import eventually
from support.workload import PUBLICATION, SLOT, prepare

pytestmark = pytest.mark.every_version

SLOTS: dict[type[SourceError], Trouble] = {
    SlotMissing: missing_slot,
    SlotWrongPlugin: physical_slot,
    SlotTwoPhase: two_phase_slot,
}


@pytest.mark.parametrize("kind", SLOTS, ids=lambda kind: kind.__name__)
def test_a_slot_that_cannot_be_used_is_named(
    database: Database, tmp_path: Path, kind: type[SourceError]
) -> None:
    # M3.5, M7.3
    with SLOTS[kind](database, tmp_path / "log") as config, capturing(config) as running:
        error = running.failure()
    assert type(error) is kind
    assert f'"{SLOT}"' in str(error)
    assert not (tmp_path / "log").exists()


def test_a_slot_of_another_database_is_named(database: Database, tmp_path: Path) -> None:
    # M7.3
    prepare(database, slot=False)
    with Database(database.server, "t_another") as another:
        another.create_slot(SLOT)
        with capturing(capture_config(database.dsn(), tmp_path)) as running:
            assert isinstance(running.failure(), SlotOtherDatabase)


def test_a_publication_that_does_not_exist_is_named(database: Database, tmp_path: Path) -> None:
    # M3.7: the server itself would start, and on 18 skip every change.
    with missing_publication(database, tmp_path) as config, capturing(config) as running:
        error = running.failure()
    assert isinstance(error, PublicationMissing)
    assert '"misspelt"' in str(error)


def test_a_slot_in_use_is_named_with_its_holder(database: Database, tmp_path: Path) -> None:
    # M7.3
    with slot_in_use(database, tmp_path) as config:
        pid = database.value("SELECT active_pid FROM pg_replication_slots")
        with pytest.raises(SlotInUse, match=str(pid)):
            check_source(config.source)
        with (
            ReplicationConnection(database.dsn()) as second,
            pytest.raises(SlotInUse, match=str(pid)),
        ):
            second.start(SLOT, PUBLICATION, ZERO)
    assert check_source(config.source).active_pid is None


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
        with (
            invalidated_slot(database, tmp_path / "log") as config,
            capturing(config) as running,
        ):
            error = running.failure()
        assert isinstance(error, SlotInvalidated)
        assert "seed the targets again" in str(error)
        assert database.value("SELECT wal_status FROM pg_replication_slots") == "lost"


def test_a_role_that_may_not_replicate_is_told_the_grant(
    database: Database, tmp_path: Path
) -> None:
    # M7.3
    with role_without_replication(database, tmp_path) as config, capturing(config) as running:
        error = running.failure()
    assert isinstance(error, PrivilegeMissing)
    assert "ALTER ROLE plain REPLICATION" in str(error)


def test_a_wrong_password_is_named_and_appears_nowhere(
    own_server: EmbeddedPostgres, tmp_path: Path
) -> None:
    # M7.3
    with Database(own_server, "app") as database:
        with wrong_password(database, tmp_path) as config, capturing(config) as running:
            error = running.failure()
        assert isinstance(error, AuthenticationFailed)
        for text in (str(error), repr(error), repr(vars(error)), repr(running.said), repr(config)):
            assert "s3cret" not in text
        config = capture_config(database.dsn("guarded", password=RIGHT_PASSWORD), tmp_path)
        with capturing(config) as running:
            running.connected()


def test_a_password_that_becomes_wrong_is_retried_for_a_while(
    own_server: EmbeddedPostgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # M7.3: a secret that is being rotated is wrong for a moment.
    monkeypatch.setattr(engine, "Patience", Impatient)
    with Database(own_server, "app") as database, wrong_password(database, tmp_path):
        config = capture_config(database.dsn("guarded", password=RIGHT_PASSWORD), tmp_path)
        cut = "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots"
        with capturing(config) as running:
            running.connected()
            database.run("ALTER ROLE guarded PASSWORD 'an0ther-s3cret'", cut)
            eventually(lambda: any("password" in each for each in running.reasons()), "retried")
            database.run(f"ALTER ROLE guarded PASSWORD '{RIGHT_PASSWORD}'")
            running.connected(times=2)
            database.run("ALTER ROLE guarded PASSWORD 'an0ther-s3cret'", cut)
            error = running.failure()
        assert isinstance(error, AuthenticationFailed)
        assert "s3cret" not in repr(running.said)
