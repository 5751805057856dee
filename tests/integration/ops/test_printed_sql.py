"""Every kind of SQL that a message prints, executed as it is printed, with its effect. M4.1, M4.2,
M4.4

Each test below takes a message from doctor, set-up or a refusal, runs the SQL that it prints, and
sees that the finding or the refusal is gone. `test_every_kind_is_run` holds that none is missing,
and tests/unit/test_printed_sql.py that no message has SQL of no kind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

import psycopg
import pytest
from rich.console import Console
from typer.testing import CliRunner

from penstock.capture.start import check_source
from penstock.cli import app
from penstock.config import Config
from penstock.declarations import AggregateConfig
from penstock.errors import (
    InputUnfit,
    NothingToCapture,
    NotLogical,
    OutputPluginNotAllowed,
    PenstockError,
    PrivilegeMissing,
    SetupBlocked,
    SlotInUse,
    SlotLimitReached,
    TargetClash,
    TargetMismatch,
)
from penstock.lsn import Lsn
from penstock.ops.doctor import diagnose
from penstock.ops.findings import Finding
from penstock.ops.present import show_dry_run
from penstock.ops.setup import setup
from penstock.ops.teardown import teardown
from penstock.pipelines.seeding import begin
from penstock.postgres.connect import connect
from penstock.postgres.embedded import EmbeddedPostgres
from penstock.postgres.failures import walsender_limit_fix
from penstock.postgres.slots import check_slot, read_slot
from penstock.postgres.waiting import Blocker
from penstock.printed_sql import PrintedSql, SqlKind
from support.aggregates import NOTES, config_with, declared
from support.commands import penstock
from support.database import Database
from support.ops import QUICK, config_for, reader, slots
from support.printed import statements_of
from support.waiting import eventually

pytestmark = pytest.mark.every_version

# By test.
_RUN: dict[str, tuple[SqlKind, ...]] = {}
_Test = TypeVar("_Test", bound=Callable[..., None])


def runs(*kinds: SqlKind) -> Callable[[_Test], _Test]:
    """Declare which kinds a test runs; the fixture `printed` holds it to that."""

    def declare(test: _Test) -> _Test:
        _RUN[test.__name__] = kinds
        return test

    return declare


# Older servers have no such settings.
_OF_SOME_SERVERS = {
    SqlKind.IDLE_SLOT_TIMEOUT,
    SqlKind.OUTPUT_PLUGIN,
    SqlKind.PUBLISH_GENERATED,
}


class Printed:
    """What messages printed in this test, and which of it was run."""

    def __init__(self) -> None:
        self.made: list[PrintedSql] = []
        self.ran: set[SqlKind] = set()

    def run(self, database: Database, kind: SqlKind, message: str) -> None:
        """Run the SQL of a message, which is of this kind, as a superuser would copy it."""
        statements = statements_of(message)
        fitting = [each for each in self.made if list(each.statements) == statements]
        assert kind in {each.kind for each in fitting}, message
        database.run(*statements)
        self.ran.add(kind)


@pytest.fixture
def printed(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Printed]:
    found = Printed()
    monkeypatch.setattr(PrintedSql, "__post_init__", lambda one: found.made.append(one))
    yield found
    kinds = set(_RUN[request.function.__name__])
    assert found.ran <= kinds
    assert kinds - found.ran <= _OF_SOME_SERVERS


@pytest.fixture
def role(database: Database) -> Iterator[str]:
    name = "printed_role"
    database.run(f"DROP ROLE IF EXISTS {name}", f"CREATE ROLE {name} LOGIN")
    yield name
    database.run(f"DROP OWNED BY {name}", f"DROP ROLE {name}")


def found(config: Config, check: str, words: str = "") -> list[Finding]:
    return [f for f in diagnose(config) if f.check == check and f.fix and words in f.what + f.fix]


def refusal(config: Config, kind: type[PenstockError]) -> str:
    with pytest.raises(kind) as caught:
        setup(config, patience=QUICK)
    return caught.value.remedy


def test_every_kind_is_run() -> None:
    assert set(SqlKind) == {kind for kinds in _RUN.values() for kind in kinds}


@runs(
    SqlKind.WAL_LEVEL,
    SqlKind.WAL_KEEP_SIZE,
    SqlKind.IDLE_SLOT_TIMEOUT,
    SqlKind.OUTPUT_PLUGIN,
    SqlKind.SHOW_SLOTS,
    SqlKind.SHOW_WALSENDERS,
)
def test_settings_of_the_server(own_server: EmbeddedPostgres, printed: Printed) -> None:
    # What it was started with would win over ALTER SYSTEM.
    for setting in ("wal_level", "output_plugin_libraries", "max_replication_slots"):
        own_server._settings.pop(setting, None)
    own_server.restart()
    with Database(own_server, "printed") as database:
        database.run(
            "CREATE TABLE orders (id int PRIMARY KEY)",
            "ALTER SYSTEM SET max_replication_slots = 1",
        )
        config = config_for(database)
        printed.run(database, SqlKind.WAL_LEVEL, refusal(config, NotLogical))
        own_server.restart()
        database.create_slot("taken")
        printed.run(database, SqlKind.SHOW_SLOTS, refusal(config, SlotLimitReached))
        database.run(
            "SELECT pg_drop_replication_slot('taken')",
            "ALTER SYSTEM RESET max_replication_slots",
        )
        own_server.restart()
        setup(config)

        database.run("ALTER SYSTEM SET max_slot_wal_keep_size = '10MB'")
        reload_settings(database)
        (small,) = found(config, "max_slot_wal_keep_size")
        printed.run(database, SqlKind.WAL_KEEP_SIZE, small.fix)
        eventually(lambda: not found(config, "max_slot_wal_keep_size"), "it is larger")
        printed.run(database, SqlKind.SHOW_WALSENDERS, walsender_limit_fix())

        if own_server.version >= 18:
            database.run("ALTER SYSTEM SET idle_replication_slot_timeout = '1min'")
            reload_settings(database)
            (idle,) = found(config, "idle_replication_slot_timeout")
            printed.run(database, SqlKind.IDLE_SLOT_TIMEOUT, idle.fix)
            eventually(lambda: not found(config, "idle_replication_slot_timeout"), "it is off")
        if database.rows("SELECT FROM pg_settings WHERE name = 'output_plugin_libraries'"):
            plugin_not_allowed(database, config, printed)


def plugin_not_allowed(database: Database, config: Config, printed: Printed) -> None:
    """Doctor, set-up, capture and START_REPLICATION, each by a role that sees the list or not."""

    def forbid() -> None:
        # One name that no plugin has.
        database.run("ALTER SYSTEM SET output_plugin_libraries = 'pgoutput, test_decoding'")
        reload_settings(database)

    def allowed() -> None:
        eventually(lambda: not found(config, "output_plugin_libraries"), "pgoutput is allowed")
        check_source(config.source)

    forbid()
    (finding,) = found(config, "output_plugin_libraries")
    printed.run(database, SqlKind.OUTPUT_PLUGIN, finding.fix)
    allowed()
    forbid()
    with pytest.raises(OutputPluginNotAllowed) as caught:
        check_source(config.source)
    printed.run(database, SqlKind.OUTPUT_PLUGIN, caught.value.remedy)
    allowed()
    # A role that does not see the list is refused by the server, and learns the same.
    database.run("CREATE ROLE blind LOGIN REPLICATION", "GRANT CREATE ON SCHEMA public TO blind")
    forbid()
    for command in ("setup", "capture"):
        blind = config_for(database, dsn=database.dsn("blind"), slot="of_blind")
        if command == "setup":
            database.run("ALTER TABLE orders OWNER TO blind")
            with database.connect() as admin:
                admin.execute(f'GRANT CREATE ON DATABASE "{database.name}" TO blind'.encode())
            remedy = refusal(blind, OutputPluginNotAllowed)
            assert slots(database) == ["penstock"]
        else:
            setup(blind)
            forbid()
            remedy = capture_refusal(database)
        printed.run(database, SqlKind.OUTPUT_PLUGIN, remedy)
        allowed()


def capture_refusal(database: Database) -> str:
    """What `penstock capture` prints where the server refuses the plugin, with exit code 2."""
    path = Path(database.server.data_dir).parent / "of_blind.toml"
    dsn, log = database.dsn("blind"), path.with_suffix("")
    path.write_text(
        f'[source]\ndsn = "{dsn}"\nslot = "of_blind"\ntables = ["orders"]\n[log]\npath = "{log}"\n'
    )
    done = penstock("capture", "--config", str(path))
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr


def reload_settings(database: Database) -> None:
    loaded = database.value("SELECT pg_conf_load_time()")
    database.run("SELECT pg_reload_conf()")
    eventually(
        lambda: database.value("SELECT pg_conf_load_time()") > loaded, "the settings are loaded"
    )


@runs(
    SqlKind.REPLICATION,
    SqlKind.CONNECT,
    SqlKind.HEARTBEATS,
    SqlKind.SETUP_PRIVILEGES,
    SqlKind.TABLE_OWNER,
    SqlKind.SOURCE_GRANTS,
    SqlKind.BYPASS_ROW_SECURITY,
)
def test_what_a_role_lacks_in_the_source(
    database: Database, role: str, printed: Printed, tmp_path: Path
) -> None:
    messages = "pg_logical_emit_message(boolean, text, text"
    more = ", boolean)" if database.server.version >= 17 else ")"
    database.run(
        NOTES,
        f'REVOKE CONNECT ON DATABASE "{database.name}" FROM PUBLIC',
        f"REVOKE EXECUTE ON FUNCTION {messages}{more} FROM PUBLIC",
    )
    dsn = database.dsn(role)
    config = config_with(database, dsn=dsn)
    with pytest.raises(PrivilegeMissing) as caught:
        connect(config.source.conninfo)
    printed.run(database, SqlKind.CONNECT, caught.value.remedy)
    with pytest.raises(PrivilegeMissing) as caught:
        connect(config.source.conninfo, replication="database")
    printed.run(database, SqlKind.REPLICATION, caught.value.remedy)
    connect(config.source.conninfo, replication="database").close()
    database.run(f"ALTER ROLE {role} NOREPLICATION")
    (finding,) = found(config, "privileges", "may not replicate")
    printed.run(database, SqlKind.REPLICATION, finding.fix)
    (finding,) = found(config, "privileges", "heartbeats")
    printed.run(database, SqlKind.HEARTBEATS, finding.fix)
    assert not found(config, "privileges")

    (finding,) = found(config, "aggregate_privileges")
    printed.run(database, SqlKind.SOURCE_GRANTS, finding.fix)
    database.run("ALTER TABLE notes ENABLE ROW LEVEL SECURITY")
    (finding,) = found(config, "aggregate_privileges")
    printed.run(database, SqlKind.BYPASS_ROW_SECURITY, finding.fix)
    assert not found(config, "aggregate_privileges")

    database.run(f"ALTER ROLE {role} NOREPLICATION")
    printed.run(
        database,
        SqlKind.SETUP_PRIVILEGES,
        refusal(config_for(database, "notes", dsn=dsn), PrivilegeMissing),
    )
    setup(config_for(database, "notes", dsn=dsn))
    database.run("ALTER TABLE notes OWNER TO postgres")
    command = ["init", "--dsn", dsn, "--config", str(tmp_path / "penstock.toml")]
    done = CliRunner().invoke(app, command)
    assert isinstance(done.exception, NothingToCapture)
    printed.run(database, SqlKind.TABLE_OWNER, done.exception.remedy)
    assert CliRunner().invoke(app, command).exit_code == 0


@runs(SqlKind.TARGET_SETUP_PRIVILEGES, SqlKind.TARGET_GRANTS)
def test_what_a_role_lacks_for_targets(database: Database, role: str, printed: Printed) -> None:
    database.run(NOTES)
    with Database(database.server, "printed_reports") as reports:
        reports.run("REVOKE CREATE ON SCHEMA public FROM PUBLIC")
        config = config_with(database, declared(target_dsn=reports.dsn(role)))
        printed.run(reports, SqlKind.TARGET_SETUP_PRIVILEGES, refusal(config, PrivilegeMissing))
        setup(config)
        reports.run(f"REASSIGN OWNED BY {role} TO postgres")
        (finding,) = found(config, "target_privileges")
        printed.run(reports, SqlKind.TARGET_GRANTS, finding.fix)
        assert not found(config, "target_privileges")
        reports.run(f"DROP OWNED BY {role}")


PARTED = (
    "CREATE TABLE parted (id int, k int, status text, PRIMARY KEY (id, k)) PARTITION BY LIST (k)",
    "CREATE UNLOGGED TABLE leaf (id int, k int, status text, PRIMARY KEY (id, k))",
    "ALTER TABLE parted ATTACH PARTITION leaf FOR VALUES IN (1)",
    "ALTER TABLE parted REPLICA IDENTITY FULL",
    "ALTER TABLE leaf REPLICA IDENTITY FULL",
)


@runs(
    SqlKind.SET_LOGGED,
    SqlKind.PUBLISH_TABLE,
    SqlKind.PUBLISH_WHOLE_TABLE,
    SqlKind.PUBLISH_NEEDED,
    SqlKind.PUBLISH_OPERATIONS,
    SqlKind.PUBLISH_VIA_ROOT,
    SqlKind.PUBLISH_GENERATED,
    SqlKind.DROP_PUBLICATION,
)
def test_what_the_publication_leaves_out(database: Database, printed: Printed) -> None:
    database.run(
        NOTES,
        *PARTED,
        "ALTER TABLE notes ADD g int GENERATED ALWAYS AS (id % 10) STORED",
        "ALTER TABLE notes REPLICA IDENTITY DEFAULT",
        "CREATE PUBLICATION penstock FOR TABLE parted, notes (status) WITH (publish = 'insert')",
    )
    config = config_for(database, "notes", "parted")
    (finding,) = found(config, "publication_operations")
    printed.run(database, SqlKind.PUBLISH_OPERATIONS, finding.fix)
    assert not found(config, "publication_operations")
    (finding,) = found(config, "partition_root", "names of the partitions")
    printed.run(database, SqlKind.PUBLISH_VIA_ROOT, finding.fix)
    assert not found(config, "partition_root", "names of the partitions")
    (finding,) = found(config, "partition_kind")
    printed.run(database, SqlKind.SET_LOGGED, finding.fix)
    assert not found(config, "partition_kind")
    # The column list leaves out the key: UPDATE fails.
    database.run("INSERT INTO notes (service_id, status) VALUES (gen_random_uuid(), 'a')")
    update = "UPDATE notes SET status = 'b'"
    with pytest.raises(psycopg.errors.InvalidColumnReference):
        database.run(update)
    (finding,) = found(config, "application_writes")
    printed.run(database, SqlKind.PUBLISH_WHOLE_TABLE, finding.fix)
    database.run(update)
    assert not found(config, "application_writes")

    # An aggregate needs a column, and all rows.
    database.run("ALTER PUBLICATION penstock SET TABLE parted, notes (id) WHERE (id > 1)")
    counting = config_with(
        database,
        declared(dimensions=["id"], measures={"n": "count", "total": "sum(price)"}),
        tables=["notes", "parted"],
    )
    with pytest.raises(InputUnfit) as caught:
        setup(counting)
    printed.run(database, SqlKind.PUBLISH_NEEDED, caught.value.remedy)
    assert not found(counting, "aggregate_inputs")
    database.run("ALTER PUBLICATION penstock SET TABLE parted")
    (finding,) = found(config, "publication_tables")
    printed.run(database, SqlKind.PUBLISH_TABLE, finding.fix)
    assert not found(config, "publication_tables")
    if database.server.version >= 18:
        (finding,) = found(config, "generated_columns")
        printed.run(database, SqlKind.PUBLISH_GENERATED, finding.fix)
        assert not found(config, "generated_columns")

    (note,) = [note for note in teardown(config, dry_run=True).notes if "remove it" in note]
    printed.run(database, SqlKind.DROP_PUBLICATION, note)
    assert not database.rows("SELECT FROM pg_publication")


@runs(SqlKind.UNPUBLISH_TABLE, SqlKind.UNPUBLISH_SCHEMA, SqlKind.NARROW_PUBLICATION)
def test_targets_that_are_published(database: Database, printed: Printed) -> None:
    database.run(NOTES)
    config = config_with(database)
    setup(config)
    for published, kind in (
        ("ALTER PUBLICATION penstock ADD TABLE stats", SqlKind.UNPUBLISH_TABLE),
        ("ALTER PUBLICATION penstock ADD TABLES IN SCHEMA public", SqlKind.UNPUBLISH_SCHEMA),
        (
            "DROP PUBLICATION penstock; CREATE PUBLICATION penstock FOR ALL TABLES",
            SqlKind.NARROW_PUBLICATION,
        ),
    ):
        database.run(published)
        printed.run(database, kind, refusal(config, TargetClash))
        assert setup(config).steps == ()
        assert database.rows("SELECT tablename FROM pg_publication_tables") == [("notes",)]


@runs(SqlKind.IDENTITY, SqlKind.COVERING_INDEX, SqlKind.WIDE_INDEX_DROP)
def test_old_values_that_are_not_in_the_wal(database: Database, printed: Printed) -> None:
    database.run(
        NOTES,
        'ALTER TABLE notes REPLICA IDENTITY DEFAULT, ADD "Long ""text" text NOT NULL DEFAULT 0',
    )
    config = config_with(database)
    (finding,) = found(config, "aggregate_old_values")
    printed.run(database, SqlKind.COVERING_INDEX, finding.fix)
    assert not found(config, "aggregate_old_values")
    nullable = config_with(database, declared(dimensions=["kind"]))
    (finding,) = found(nullable, "aggregate_old_values")
    printed.run(database, SqlKind.IDENTITY, finding.fix)
    assert not found(nullable, "aggregate_old_values")
    database.run(
        'CREATE UNIQUE INDEX "notes_penstock_key "" 2" ON notes (id, "Long ""text")',
        'ALTER TABLE notes REPLICA IDENTITY USING INDEX "notes_penstock_key "" 2"',
    )
    (finding,) = found(config, "index_width")
    printed.run(database, SqlKind.WIDE_INDEX_DROP, finding.fix)
    assert not found(config, "index_width")
    setup(config)


@runs(
    SqlKind.TARGET_KEY,
    SqlKind.TARGET_COLUMN,
    SqlKind.TARGET_COLUMN_COMPUTED,
    SqlKind.TARGET_TYPE,
    SqlKind.TARGET_NOT_NULL,
    SqlKind.RELEASE_TARGET,
    SqlKind.RELEASE_NAME,
)
def test_targets_that_do_not_fit(database: Database, printed: Printed) -> None:
    database.run(
        NOTES,
        "CREATE TABLE stats (n int, status int DEFAULT 1,"
        " count bigint GENERATED ALWAYS AS (n) STORED)",
    )
    config = config_with(database)
    by_words = {
        "has no unique key": SqlKind.TARGET_KEY,
        "has no column service_id": SqlKind.TARGET_COLUMN,
        "the server computes column count": SqlKind.TARGET_COLUMN_COMPUTED,
        "column status is integer": SqlKind.TARGET_TYPE,
        "column count may be NULL": SqlKind.TARGET_NOT_NULL,
    }
    for _ in range(10):
        wrong = [f for f in found(config, "target") if f.fix != "Run `penstock setup`"]
        if not wrong:
            break
        # A key is for columns that are there.
        finding = min(wrong, key=lambda f: "unique key" in f.what)
        (kind,) = [kind for words, kind in by_words.items() if words in finding.what]
        printed.run(database, kind, finding.fix)
    setup(config)

    with database.connect() as connection:
        ours = AggregateConfig.model_validate(declared())
        begin(connection, ours, str(uuid4()), Lsn(1))
    again = config_with(database, declared(name="again"))
    printed.run(database, SqlKind.RELEASE_TARGET, refusal(again, TargetClash))
    setup(again)
    database.run(
        "DELETE FROM penstock.targets; DELETE FROM penstock.progress",
        "SELECT pg_drop_replication_slot('penstock')",
    )
    with database.connect() as connection:
        begin(connection, ours, str(uuid4()), Lsn(1))
        connection.execute("UPDATE penstock.progress SET state = 'live'")
    taken = config_with(database, declared(targets=["others"]))
    printed.run(database, SqlKind.RELEASE_NAME, refusal(taken, TargetClash))
    setup(taken)


# Of the servers here only Debian's has ICU.
@runs(SqlKind.TARGET_COLLATION)
@pytest.mark.parametrize("server", [15], indirect=True)
def test_a_target_for_which_different_texts_are_equal(database: Database, printed: Printed) -> None:
    database.run(
        NOTES,
        "CREATE COLLATION odd (provider = icu, locale = 'und', deterministic = false)",
        "CREATE TABLE stats (service_id uuid, status text COLLATE odd, count bigint DEFAULT 0,"
        " UNIQUE NULLS NOT DISTINCT (service_id, status))",
    )
    printed.run(database, SqlKind.TARGET_COLLATION, refusal(config_with(database), TargetMismatch))
    setup(config_with(database))


@runs(SqlKind.TERMINATE, SqlKind.SHOW_PREPARED)
def test_sessions_that_stand_in_the_way(database: Database, printed: Printed) -> None:
    database.run("CREATE TABLE orders (id int PRIMARY KEY)")
    config = config_for(database)
    with database.connect(autocommit=False) as writer:
        writer.execute("INSERT INTO orders VALUES (1)")
        printed.run(database, SqlKind.TERMINATE, refusal(config, SetupBlocked))
        with pytest.raises(psycopg.OperationalError):
            writer.commit()
    setup(config)
    with reader(database, "penstock"), database.connect() as connection:
        with pytest.raises(SlotInUse) as caught:
            check_slot(read_slot(connection, "penstock"), "penstock", database.name)
        printed.run(database, SqlKind.TERMINATE, caught.value.remedy)
        free = "SELECT FROM pg_replication_slots WHERE active"
        eventually(lambda: not database.rows(free), "the slot is free")
    printed.run(database, SqlKind.SHOW_PREPARED, str(Blocker(0)))


@runs(SqlKind.RENAME)
def test_names_that_are_not_utf8(database: Database, printed: Printed) -> None:
    with Database(database.server, "t_printed_names", "SQL_ASCII") as unencoded:
        dsn = unencoded.dsn()
        with psycopg.connect(dsn, client_encoding="sql_ascii", autocommit=True) as connection:
            connection.execute(b'CREATE SCHEMA "\xe9"')
            connection.execute(b'CREATE TABLE "\xe9"."\xe9" ("\xe9" int)')
        config = config_for(unencoded)
        findings = found(config, "name_encoding")
        assert len(findings) == 3
        for finding in findings:
            printed.run(unencoded, SqlKind.RENAME, finding.fix)
        assert not found(config, "name_encoding")


def test_what_a_dry_run_prints_is_a_complete_set_up(
    database: Database, capsys: pytest.CaptureFixture[str]
) -> None:
    database.run(NOTES, *PARTED, "ALTER TABLE leaf SET LOGGED")
    tables: list[Any] = [{"name": "notes", "replica_identity": "default"}, "parted"]
    config = config_with(database, declared(dimensions=["id"]), tables=tables)
    show_dry_run(Console(soft_wrap=True), setup(config, dry_run=True))
    shown = capsys.readouterr().out
    assert "CREATE PUBLICATION" in shown
    for statement in filter(str.strip, shown.split(";\n")):
        database.run(statement)
    assert setup(config).steps == ()
    assert slots(database) == ["penstock"]
