"""Set-up on real servers: what it makes, in which order, and how it gives way to others."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import psycopg
import pytest
from rich.console import Console

from penstock.errors import (
    NotLogical,
    NotPublishable,
    PenstockError,
    PrivilegeMissing,
    ServerTooOld,
    SlotBeforePublication,
    SlotLimitReached,
    SlotOtherDatabase,
    SlotTwoPhase,
    SlotWrongPlugin,
    TableMissing,
    UnsafeIdentity,
)
from penstock.ops.facts import read_facts
from penstock.ops.present import show_dry_run
from penstock.ops.setup import setup
from penstock.ops.teardown import teardown
from penstock.postgres.embedded import EmbeddedPostgres
from support.commands import penstock
from support.database import Database
from support.ops import config_for, do, on_18, replica_identities, slots

pytestmark = pytest.mark.every_version

TABLES = """
CREATE SCHEMA "App Data";
CREATE TABLE orders (id int PRIMARY KEY, status text);
CREATE TABLE "App Data"."Order Lines" ("Order" int NOT NULL, "line no" int NOT NULL, x text);
CREATE UNIQUE INDEX "Lines key" ON "App Data"."Order Lines" ("Order", "line no");
CREATE TABLE keyless (a int);
CREATE TABLE events (id int, kind int, body text, PRIMARY KEY (id, kind)) PARTITION BY LIST (kind);
CREATE TABLE events_1 PARTITION OF events FOR VALUES IN (1);
CREATE TABLE events_2 PARTITION OF events FOR VALUES IN (2) PARTITION BY RANGE (id);
CREATE TABLE events_2_low PARTITION OF events_2 FOR VALUES FROM (0) TO (100);
"""
ALL = ("orders", '"App Data"."Order Lines"', "keyless", "events")


# M4.1, M4.2
def test_one_command_makes_everything_and_the_application_still_writes(database: Database) -> None:
    database.run(TABLES, "ALTER TABLE events REPLICA IDENTITY FULL")
    plan = do(database, *ALL)
    assert plan.steps[-1].kind == "create slot"
    assert replica_identities(database) == {
        "orders": "d",
        "Order Lines": "i",
        "keyless": "f",
        "events": "f",
        "events_1": "f",
        "events_2": "d",  # neither root nor leaf: its identity has no effect
        "events_2_low": "f",
    }
    published = database.rows("SELECT schemaname, tablename FROM pg_publication_tables ORDER BY 2")
    assert published == [
        ("App Data", "Order Lines"),
        ("public", "events"),
        ("public", "keyless"),
        ("public", "orders"),
    ]
    assert slots(database) == ["penstock"]
    database.run(
        "INSERT INTO orders VALUES (1, 'a')",
        "UPDATE orders SET status = 'b'",
        "INSERT INTO keyless VALUES (1)",
        "DELETE FROM keyless",
        "INSERT INTO events VALUES (1, 1, 'x'), (1, 2, 'y')",
        "UPDATE events SET body = 'z'",
        'INSERT INTO "App Data"."Order Lines" VALUES (1, 1)',
        'DELETE FROM "App Data"."Order Lines"',
    )


# M4.1
@on_18
def test_a_second_run_finds_nothing_to_do(database: Database) -> None:
    database.run(TABLES)
    do(database, *ALL)
    before = database.rows("SELECT restart_lsn FROM pg_replication_slots")
    assert do(database, *ALL).steps == ()
    assert database.rows("SELECT restart_lsn FROM pg_replication_slots") == before


def test_a_dry_run_prints_the_sql_that_would_run_and_runs_nothing(database18: Database) -> None:
    database18.run(TABLES)
    config = config_for(database18, *ALL)
    planned = setup(config, dry_run=True)
    assert slots(database18) == []
    assert database18.value("SELECT count(*) FROM pg_publication") == 0
    assert set(replica_identities(database18).values()) == {"d"}
    # Exactly that SQL, pasted, is a complete set-up.
    database18.run(*(statement for step in planned.steps for statement in step.statements))
    assert setup(config).steps == ()


def test_a_partition_that_was_added_later_is_noticed(database18: Database) -> None:
    database18.run(TABLES)
    tables = [{"name": "events", "replica_identity": "full"}]
    do(database18, *tables)
    database18.run("CREATE TABLE events_3 PARTITION OF events FOR VALUES IN (3)")
    (step,) = do(database18, *tables).steps
    assert step.statements == ("ALTER TABLE public.events_3 REPLICA IDENTITY FULL",)


def test_a_partitioned_table_without_a_key_uses_the_index_of_each_leaf(
    database: Database,
) -> None:
    database.run(
        "CREATE TABLE logs (at int NOT NULL, n int NOT NULL) PARTITION BY LIST (at)",
        "CREATE TABLE logs_1 PARTITION OF logs FOR VALUES IN (1) PARTITION BY LIST (n)",
        "CREATE TABLE logs_1_1 PARTITION OF logs_1 FOR VALUES IN (1)",
        "CREATE UNIQUE INDEX logs_key ON logs (at, n)",
    )
    do(database, "logs")
    assert replica_identities(database) == {"logs": "i", "logs_1": "d", "logs_1_1": "i"}
    database.run("INSERT INTO logs VALUES (1, 1)", "DELETE FROM logs")


def test_only_an_index_that_the_server_accepts_is_taken(database18: Database) -> None:
    database18.run(
        "CREATE TABLE orders (a int NOT NULL, b int NOT NULL, c int)",
        "CREATE UNIQUE INDEX a_partial ON orders (a) WHERE b > 0",
        "CREATE UNIQUE INDEX b_expression ON orders ((a + 1))",
        "CREATE UNIQUE INDEX c_nullable ON orders (c)",
        "CREATE INDEX d_not_unique ON orders (a)",
        "ALTER TABLE orders ADD CONSTRAINT e_deferrable UNIQUE (b) DEFERRABLE",
    )
    assert "REPLICA IDENTITY FULL" in do(database18).steps[0].sql
    database18.run("CREATE UNIQUE INDEX f_good ON orders (a) INCLUDE (c)")
    chosen = [{"name": "orders", "replica_identity": "f_good"}]
    assert "USING INDEX f_good" in do(database18, *chosen).steps[0].sql
    for refused in ("a_partial", "b_expression", "c_nullable", "d_not_unique", "e_deferrable"):
        with pytest.raises(UnsafeIdentity, match=f'no index "{refused}"'):
            do(database18, {"name": "orders", "replica_identity": refused})


def test_a_deferrable_primary_key_is_no_identity(database: Database) -> None:
    database.run("CREATE TABLE orders (id int PRIMARY KEY DEFERRABLE)")
    assert "REPLICA IDENTITY FULL" in do(database).steps[0].sql
    database.run("INSERT INTO orders VALUES (1)", "DELETE FROM orders")


def test_stored_generated_columns_in_the_identity_do_not_break_updates(
    database: Database,
) -> None:
    database.run("CREATE TABLE orders (a int, g int GENERATED ALWAYS AS (a * 2) STORED)")
    do(database)
    database.run("INSERT INTO orders VALUES (1)", "UPDATE orders SET a = 2", "DELETE FROM orders")


def test_virtual_generated_columns_and_full_are_refused(database18: Database) -> None:
    database18.run("CREATE TABLE orders (a int, g int GENERATED ALWAYS AS (a * 2) VIRTUAL)")
    with pytest.raises(UnsafeIdentity, match="virtual"):
        do(database18)


def test_children_by_inheritance_are_not_published(database18: Database) -> None:
    database18.run(
        "CREATE TABLE orders (id int PRIMARY KEY)", "CREATE TABLE child () INHERITS (orders)"
    )
    do(database18)
    assert database18.rows("SELECT tablename FROM pg_publication_tables") == [("orders",)]
    database18.run("INSERT INTO child VALUES (1)", "DELETE FROM child")


@on_18
def test_a_publication_of_the_users_own_is_extended_and_keeps_its_filters(
    database: Database,
) -> None:
    database.run(
        "CREATE TABLE orders (id int PRIMARY KEY)",
        "CREATE TABLE theirs (id int PRIMARY KEY, x int)",
        "CREATE PUBLICATION penstock FOR TABLE theirs (id) WHERE (id > 5)",
        "CREATE PUBLICATION another FOR TABLE orders, theirs",
    )
    plan = do(database)
    assert plan.steps[0].sql == "ALTER PUBLICATION penstock ADD TABLE public.orders;"
    assert any("theirs is published with the row filter (id > 5)" in note for note in plan.notes)
    kept = database.rows(
        "SELECT tablename, rowfilter FROM pg_publication_tables WHERE pubname = 'penstock' "
        "ORDER BY 1"
    )
    assert kept == [("orders", None), ("theirs", "(id > 5)")]


@on_18
def test_a_filter_of_another_publication_that_full_would_break_is_refused(
    database: Database,
) -> None:
    database.run(
        "CREATE TABLE orders (id int PRIMARY KEY, x int)",
        "CREATE PUBLICATION another FOR TABLE orders (id)",
    )
    with pytest.raises(UnsafeIdentity, match='publication "another"'):
        do(database, {"name": "orders", "replica_identity": "full"})
    assert replica_identities(database) == {"orders": "d"}


# Slot and publication: POSTGRES.md section 7.
def test_a_slot_older_than_its_publication_is_refused_for_it_cannot_be_decoded(
    database: Database,
) -> None:
    database.run("CREATE TABLE orders (id int PRIMARY KEY)")
    database.create_slot("penstock")
    with pytest.raises(SlotBeforePublication, match="does not") as caught:
        do(database)
    assert "penstock teardown" in caught.value.remedy
    assert database.value("SELECT count(*) FROM pg_publication") == 0

    # The reason: had it gone on, a change from before the publication would be in the way for ever.
    database.run(
        "INSERT INTO orders VALUES (1)",
        "CREATE PUBLICATION penstock FOR TABLE orders",
        "INSERT INTO orders VALUES (2)",
    )
    peek = (
        "SELECT count(*) FROM pg_logical_slot_peek_binary_changes('penstock', NULL, NULL, "
        "'proto_version', '1', 'publication_names', 'penstock')"
    )
    if database.server.version < 18:
        with pytest.raises(psycopg.errors.UndefinedObject, match='"penstock" does not exist'):
            database.rows(peek)
    else:
        assert database.value(peek) == 4  # begin, relation, insert of 2, commit: 1 was skipped

    teardown(config_for(database))
    database.run("DROP PUBLICATION penstock")
    assert len(do(database).steps) == 2


# M7.3
def test_an_existing_slot_that_does_not_fit_is_refused_and_nothing_changes(
    database: Database,
) -> None:
    database.run("CREATE TABLE orders (a int)")
    other = database.server
    with Database(other, "t_elsewhere") as elsewhere:
        elsewhere.create_slot("foreign_slot")
        database.rows("SELECT pg_create_logical_replication_slot('two', 'pgoutput', false, true)")
        database.rows("SELECT pg_create_physical_replication_slot('physical')")
        try:
            expected: list[tuple[str, type[PenstockError]]] = [
                ("foreign_slot", SlotOtherDatabase),
                ("two", SlotTwoPhase),
                ("physical", SlotWrongPlugin),
            ]
            for slot, error in expected:
                with pytest.raises(error):
                    do(database, slot=slot)
        finally:
            database.rows("SELECT pg_drop_replication_slot('physical')")
    assert replica_identities(database) == {"orders": "d"}
    assert database.value("SELECT count(*) FROM pg_publication") == 0


@pytest.mark.parametrize(
    ("made", "error", "words"),
    [
        ("SELECT 1", TableMissing, r"table public\.orders does not exist"),
        ("CREATE VIEW orders AS SELECT 1 AS id", NotPublishable, r"\(view\)"),
        ("CREATE UNLOGGED TABLE orders (id int)", NotPublishable, r"\(unlogged table\)"),
    ],
)
def test_what_cannot_be_published_is_named(
    database18: Database, made: str, error: type[PenstockError], words: str
) -> None:
    database18.run(made)
    with pytest.raises(error, match=words):
        do(database18)


# Only Debian's packages bring a second output plugin.
@pytest.mark.parametrize("server", [15], indirect=True)
def test_a_slot_of_another_plugin_is_refused(database: Database) -> None:
    database.run("CREATE TABLE orders (a int)")
    database.create_slot("penstock", "test_decoding")
    with pytest.raises(SlotWrongPlugin, match='uses the output plugin "test_decoding"'):
        do(database)
    with pytest.raises(SlotWrongPlugin):
        teardown(config_for(database))
    assert slots(database) == ["penstock"]


def test_failover_is_refused_before_17_and_made_from_then_on(database: Database) -> None:
    database.run("CREATE TABLE orders (id int PRIMARY KEY)")
    if database.server.version < 17:
        with pytest.raises(ServerTooOld, match="failover = true needs PostgreSQL 17"):
            do(database, failover=True)
    else:
        do(database, failover=True)
        assert database.value("SELECT failover FROM pg_replication_slots") is True


def test_a_line_break_in_a_name_does_not_end_the_comment_of_a_dry_run(
    database18: Database, capsys: pytest.CaptureFixture[str]
) -> None:
    database18.run('CREATE TABLE "x\nDROP TABLE y" (a int)')
    plan = setup(config_for(database18, '"x\nDROP TABLE y"', publication="p\rq"), dry_run=True)
    show_dry_run(Console(soft_wrap=True), plan)
    sql = re.sub(r'"[^"]*"', "", re.sub(r"(?m)^--.*$", "", capsys.readouterr().out))
    assert "CREATE PUBLICATION" in sql
    assert "DROP" not in sql


def test_a_server_that_is_not_logical_or_has_no_free_slot_is_named() -> None:
    with (
        EmbeddedPostgres(18, settings={"wal_level": "replica"}) as server,
        Database(server, "t_replica") as database,
    ):
        database.run("CREATE TABLE orders (id int PRIMARY KEY)")
        with pytest.raises(NotLogical, match="wal_level is replica"):
            do(database)
    with (
        EmbeddedPostgres(18, settings={"max_replication_slots": 1}) as server,
        Database(server, "t_full") as database,
    ):
        database.run("CREATE TABLE orders (id int PRIMARY KEY)")
        database.create_slot("taken")
        with pytest.raises(SlotLimitReached, match="all 1 replication slots"):
            do(database)


@on_18
def test_a_role_without_the_privileges_is_told_the_sql_and_changes_nothing(
    database: Database,
) -> None:
    database.run(
        "CREATE TABLE orders (a int)",
        "DROP ROLE IF EXISTS weak",
        "CREATE ROLE weak LOGIN",
        "REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA pg_catalog FROM weak",
    )
    try:
        with pytest.raises(PrivilegeMissing) as caught:
            do(database, dsn=database.dsn("weak"))
        assert "ALTER TABLE public.orders OWNER TO weak" in caught.value.remedy
        assert "GRANT postgres" not in caught.value.remedy
        assert "ALTER ROLE weak REPLICATION" in caught.value.remedy
        assert f"GRANT CREATE ON DATABASE {database.name} TO weak" in caught.value.remedy
        # With a set-up role that may, the capture role is given what it lacks.
        plan = do(database, dsn=database.dsn("weak"), setup_dsn=database.dsn())
        assert "ALTER ROLE weak REPLICATION;" in [step.sql for step in plan.steps]
    finally:
        database.run("DROP ROLE weak")


def test_the_heartbeat_permission_is_given_where_it_was_revoked(database: Database) -> None:
    functions = [
        name
        for (name,) in database.rows(
            "SELECT oid::regprocedure::text FROM pg_proc WHERE proname = 'pg_logical_emit_message'"
        )
    ]
    database.run(
        "CREATE TABLE orders (id int PRIMARY KEY)",
        "DROP ROLE IF EXISTS beating",
        "CREATE ROLE beating LOGIN REPLICATION",
        *(f"REVOKE EXECUTE ON FUNCTION {name} FROM PUBLIC" for name in functions),
    )
    try:
        do(database, dsn=database.dsn("beating"), setup_dsn=database.dsn())
        with database.connect(user="beating") as connection:
            connection.execute("SELECT pg_logical_emit_message(false, 'penstock', 'beat')")
    finally:
        database.run(
            *(f"GRANT EXECUTE ON FUNCTION {name} TO PUBLIC" for name in functions),
            "DROP OWNED BY beating",
            "DROP ROLE beating",
        )


def test_facts_are_read_in_as_many_queries_for_many_tables_as_for_one(
    database18: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"t{number}" for number in range(20)]
    database18.run(*(f"CREATE TABLE {name} (id int PRIMARY KEY)" for name in names))
    queries: list[Any] = []
    execute = psycopg.Cursor.execute

    def counted(self: Any, query: Any, *rest: Any, **options: Any) -> Any:
        queries.append(query)
        return execute(self, query, *rest, **options)

    monkeypatch.setattr(psycopg.Cursor, "execute", counted)
    with database18.connect() as connection:
        read_facts(connection, config_for(database18, "t1").source)
        for_one = len(queries)
        facts = read_facts(connection, config_for(database18, *names).source)
    assert len(queries) == 2 * for_one
    assert len(facts.tables) == 20
    assert all(table.identity_columns == ("id",) for table in facts.tables.values())


def test_names_with_capitals_and_spaces_work_everywhere(database18: Database) -> None:
    database18.run('CREATE TABLE "Order Lines" (a int)')
    tables, publication = ['"Order Lines"'], 'My "own" Pub'
    do(database18, *tables, publication=publication)
    assert do(database18, *tables, publication=publication).steps == ()
    teardown(config_for(database18, *tables, publication=publication))
    assert database18.value("SELECT count(*) FROM pg_publication") == 0


# M7.1: the command itself.
def test_the_command_sets_up_tells_each_step_and_is_idempotent(
    database18: Database, tmp_path: Path
) -> None:
    database18.run(TABLES)
    file = tmp_path / "penstock.toml"
    file.write_text(f'[source]\ndsn = "{database18.dsn()}"\ntables = ["orders", "keyless"]\n')
    given = ("--config", str(file))
    dry = penstock("setup", "--dry-run", *given)
    assert dry.returncode == 0
    assert "CREATE PUBLICATION penstock FOR TABLE public.orders, public.keyless" in dry.stdout
    assert slots(database18) == []
    as_json = json.loads(penstock("setup", "--dry-run", "--json", *given).stdout)
    assert [step["sql"] for step in as_json["steps"]][-1].startswith("SELECT lsn FROM pg_create")
    first = penstock("setup", *given)
    assert (first.returncode, first.stderr) == (0, "")
    assert "setting up replication slot" in first.stdout
    assert "keyless gets replica identity FULL" in first.stdout
    second = penstock("setup", *given)
    assert (second.returncode, second.stdout) == (0, "Nothing to do: all is set up.\n")


def test_the_command_ends_with_2_and_a_remedy_on_bad_input(tmp_path: Path) -> None:
    file = tmp_path / "penstock.toml"
    file.write_text('[source]\ndsn = "postgresql://u:hunter2@[/db"\ntables = ["orders"]\n')
    for arguments in (
        ("setup", "--config", str(tmp_path / "no.toml")),
        ("setup", "--config", str(file)),
        ("teardown", "--config", str(file)),
        ("setup", "--no-such-flag"),
        ("no-such-command",),
    ):
        done = penstock(*arguments)
        assert done.returncode == 2, arguments
        assert "rror" in done.stderr
        assert "hunter2" not in done.stderr
    told = json.loads(penstock("setup", "--json", "--config", str(file)).stdout)
    assert told["error"]["kind"] == "BadDsn"
    assert told["exit_code"] == 2
