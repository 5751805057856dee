"""Tear-down on real servers: releases the WAL, takes only what is ours."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from penstock.errors import SlotInUse, SlotOtherDatabase
from penstock.ops.setup import setup
from penstock.ops.teardown import teardown
from support.commands import penstock
from support.database import Database
from support.ops import config_for, on_18, reader, replica_identities, slots

pytestmark = pytest.mark.every_version


@pytest.fixture
def made(database: Database) -> Database:
    database.run("CREATE TABLE orders (a int)")
    setup(config_for(database))
    return database


def publications(database: Database) -> int:
    return int(database.value("SELECT count(*) FROM pg_publication"))


# M4.1
def test_slot_and_publication_go_and_the_identity_stays(made: Database) -> None:
    plan = teardown(config_for(made))
    assert [step.kind for step in plan.steps] == ["drop slot", "statements"]
    assert slots(made) == []
    assert publications(made) == 0
    assert replica_identities(made) == {"orders": "f"}
    assert teardown(config_for(made)).steps == ()


@on_18
def test_a_dry_run_drops_nothing(made: Database) -> None:
    assert len(teardown(config_for(made), dry_run=True).steps) == 2
    assert slots(made) == ["penstock"]
    assert publications(made) == 1


# M7.3
def test_a_slot_in_use_is_named_and_force_ends_its_reader(made: Database) -> None:
    config = config_for(made)
    with reader(made, "penstock") as other:
        with pytest.raises(SlotInUse) as caught:
            teardown(config)
        assert f"process {other.info.backend_pid}" in caught.value.problem
        assert "somebody" in caught.value.problem
        assert "--force" in caught.value.remedy
        assert slots(made) == ["penstock"]
        assert publications(made) == 1
        teardown(config, force=True)
    assert slots(made) == []


def test_a_publication_that_is_not_ours_is_kept(database18: Database) -> None:
    database18.run(
        "CREATE TABLE orders (id int PRIMARY KEY)", "CREATE PUBLICATION penstock FOR TABLE orders"
    )
    setup(config_for(database18))
    plan = teardown(config_for(database18))
    assert slots(database18) == []
    assert publications(database18) == 1
    assert any("was not made by Penstock" in note for note in plan.notes)


# M4.1: without it, what the other slot has still to read would be lost for good.
def test_a_publication_that_another_file_s_slot_may_read_stays_until_that_slot_is_gone(
    made: Database, tmp_path: Path
) -> None:
    first, second = config_for(made), config_for(made, slot="second")
    setup(second)
    made.run("INSERT INTO orders VALUES (1)")
    with reader(made, "second") as other:
        (note,) = [n for n in teardown(first, dry_run=True).notes if "is kept" in n]
        assert f'"second" (read by process {other.info.backend_pid})' in note
    plan = teardown(first)
    assert [step.kind for step in plan.steps] == ["drop slot"]
    (note,) = [n for n in plan.notes if "is kept" in n]
    assert '"second" (at rest)' in note
    assert ": DROP PUBLICATION penstock" in note
    assert (slots(made), publications(made)) == (["second"], 1)
    # It reads all that came before.
    changes = "SELECT count(*) FROM pg_logical_slot_peek_binary_changes('second', NULL, NULL,"
    changes += " 'proto_version', '1', 'publication_names', 'penstock')"
    assert made.value(changes) > 0
    # The command says so, and there is nothing wrong with that.
    file = tmp_path / "penstock.toml"
    file.write_text(f'[source]\ndsn = "{made.dsn()}"\ntables = ["orders"]\n')
    command = penstock("teardown", "--config", str(file))
    assert command.returncode == 0
    assert 'publication "penstock" is kept' in command.stdout
    teardown(second)
    assert (slots(made), publications(made)) == ([], 0)


def test_slots_of_other_databases_and_plugins_do_not_keep_it(database18: Database) -> None:
    """Nor those that go with their session, such as a snapshot's."""
    database18.run("CREATE TABLE orders (id int PRIMARY KEY)")
    setup(config_for(database18))
    with (
        Database(database18.server, "t_elsewhere") as elsewhere,
        database18.connect() as connection,
    ):
        connection.execute("SELECT pg_create_logical_replication_slot('brief', 'pgoutput', true)")
        elsewhere.create_slot("elsewhere")
        physical = "SELECT pg_create_physical_replication_slot('physical')"
        database18.value(physical)
        try:
            teardown(config_for(database18))
        finally:
            database18.value("SELECT pg_drop_replication_slot('physical')::text")
    assert publications(database18) == 0


def test_a_slot_of_another_database_is_left_alone(database18: Database) -> None:
    with Database(database18.server, "t_elsewhere") as elsewhere:
        elsewhere.create_slot("foreign_slot")
        with pytest.raises(SlotOtherDatabase):
            teardown(config_for(database18, slot="foreign_slot"), force=True)
        assert slots(elsewhere) == ["foreign_slot"]


@on_18
def test_tables_that_are_gone_do_not_stop_it(made: Database) -> None:
    made.run("DROP TABLE orders")
    assert len(teardown(config_for(made)).steps) == 2


# M7.1
def test_the_command_tears_down_and_is_idempotent(database18: Database, tmp_path: Path) -> None:
    database18.run("CREATE TABLE orders (id int PRIMARY KEY)")
    setup(config_for(database18))
    file = tmp_path / "penstock.toml"
    file.write_text(f'[source]\ndsn = "{database18.dsn()}"\ntables = ["orders"]\n')
    given = ("--config", str(file))
    with reader(database18, "penstock"):
        busy = penstock("teardown", *given)
        assert busy.returncode == 2
        assert "is in use by process" in busy.stderr
        # It was begun, and the reader is not told that it was done.
        assert busy.stdout.startswith("dropping replication slot")
        assert "Done" not in busy.stdout
    dry = penstock("teardown", "--dry-run", *given)
    assert "SELECT pg_drop_replication_slot('penstock');" in dry.stdout
    first = penstock("teardown", "--json", *given)
    assert first.returncode == 0
    assert len(json.loads(first.stdout)["steps"]) == 2
    second = penstock("teardown", *given)
    assert second.returncode == 0
    assert "Nothing to do" in second.stdout
