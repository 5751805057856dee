"""Doctor on real servers: it reads the server's own facts, and its exit codes mean something."""

from __future__ import annotations

import json
import time
from contextlib import chdir
from pathlib import Path
from typing import Any

import psycopg
import pytest

from penstock.errors import SlotInUse, SlotInvalidated
from penstock.ops import doctor
from penstock.ops.doctor import diagnose, gather
from penstock.ops.facts import SourceFacts, read_facts
from penstock.ops.findings import Finding, exit_code
from penstock.ops.setup import setup
from penstock.postgres.embedded import EmbeddedPostgres
from penstock.postgres.slots import check_slot, read_slot
from support.commands import penstock
from support.database import Database
from support.ops import config_for, on_18, reader, slots
from support.printed import statements_of
from support.versions import NEWEST
from support.waiting import eventually

pytestmark = pytest.mark.every_version


def found(database: Database, *tables: Any, **source: Any) -> dict[tuple[str, str], Finding]:
    """By check and level; the last of each."""
    findings = diagnose(config_for(database, *tables, **source))
    return {(finding.check, finding.level): finding for finding in findings}


def test_a_source_that_was_set_up_is_ready(database: Database) -> None:
    database.run("CREATE TABLE orders (id int PRIMARY KEY, status text)")
    setup(config_for(database))
    findings = diagnose(config_for(database))
    assert exit_code([f for f in findings if f.check not in {"java", "pyspark"}]) == 0
    assert ("slot", "ok") in {(f.check, f.level) for f in findings}


@on_18
def test_before_set_up_it_cannot_run_and_says_what_to_do(database: Database) -> None:
    database.run("CREATE TABLE orders (a int)")
    findings = diagnose(config_for(database))
    assert exit_code(findings) == 2
    errors = [f for f in findings if f.level == "error"]
    assert {f.check for f in errors} == {"publication", "slot"}
    assert all("penstock setup" in f.fix for f in errors)
    # Errors first, then warnings.
    assert findings[: len(errors)] == errors


def test_the_sql_it_prints_mends_what_it_finds(database: Database) -> None:
    database.run(
        "CREATE TABLE orders (id int NOT NULL, v int)",
        "CREATE TABLE more (id int PRIMARY KEY)",
        "CREATE PUBLICATION penstock FOR TABLE orders (id) WHERE (v > 1) WITH (publish = 'update')",
    )
    database.create_slot("penstock")
    for _ in range(6):
        findings = [
            f
            for f in diagnose(config_for(database, "orders", "more"))
            if f.level in {"warning", "error"}
            and f.check in {"application_writes", "publication_tables", "publication_operations"}
        ]
        if not findings:
            break
        database.run(*statements_of(findings[0].fix))
    assert findings == []
    database.run("INSERT INTO orders VALUES (2, 2)", "UPDATE orders SET v = 3")


# M4.2
@on_18
def test_every_leaf_is_looked_at(database: Database) -> None:
    database.run(
        "CREATE TABLE orders (id int, k int, PRIMARY KEY (id, k)) PARTITION BY LIST (k)",
        "CREATE TABLE a PARTITION OF orders FOR VALUES IN (1) PARTITION BY LIST (id)",
        "CREATE TABLE a_1 PARTITION OF a FOR VALUES IN (1)",
        "ALTER TABLE orders REPLICA IDENTITY FULL",
    )
    finding = found(database)["partition_identity", "warning"]
    assert finding.subject == "public.a_1"
    database.run(*statements_of(finding.fix))
    assert ("partition_identity", "warning") not in found(database)


def test_generated_columns_in_an_identity_are_found_where_they_break_updates(
    database: Database,
) -> None:
    database.run(
        "CREATE TABLE orders (a int, g int NOT NULL GENERATED ALWAYS AS (a * 2) STORED)",
        "CREATE UNIQUE INDEX g_key ON orders (g)",
        "ALTER TABLE orders REPLICA IDENTITY USING INDEX g_key",
        "CREATE PUBLICATION penstock FOR TABLE orders",
        "INSERT INTO orders VALUES (1)",
    )
    findings = found(database)
    if database.server.version < 18:
        database.run("UPDATE orders SET a = 2")
        assert ("generated_columns", "warning") in findings
        assert ("application_writes", "error") not in findings
    else:
        with pytest.raises(psycopg.errors.InvalidColumnReference):
            database.run("UPDATE orders SET a = 2")
        fix = statements_of(findings["application_writes", "error"].fix)
        database.run(*fix, "UPDATE orders SET a = 2")


# M4.4
def test_wal2json_is_looked_for_without_leaving_a_slot(database: Database) -> None:
    config = config_for(database)
    gathered = gather(config)
    installed = database.server.program("postgres")[0]
    library = Path(installed).parents[1] / "lib"
    expected = any(library.rglob("wal2json.so"))
    assert gathered.wal2json.present is expected
    assert slots(database) == []


@pytest.mark.parametrize("version", [15, 18])
def test_the_sql_for_a_plugin_that_is_not_allowed_allows_it_and_takes_none_away(
    version: int,
) -> None:
    with EmbeddedPostgres(NEWEST[version]) as own, Database(own, "plugins") as database:
        if not database.rows("SELECT FROM pg_settings WHERE name = 'output_plugin_libraries'"):
            pytest.fail(f"{own.full_version} has no list of output plugins: upgrade it")
        # One name that no plugin has. It is how the list must not be written.
        _set_plugins(database, "'pgoutput, test_decoding, wal2json'")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            database.create_slot("streaming")
        _run_fix(database, found(database)["output_plugin_libraries", "error"])
        assert ("output_plugin_libraries", "error") not in found(database)
        database.create_slot("streaming")
        _set_plugins(database, "DEFAULT")
        _run_fix(database, found(database)["wal2json", "info"])
        database.create_slot("still_streaming")
        expected = "pgoutput, test_decoding, wal2json"
        assert database.value("SHOW output_plugin_libraries") == expected
        if version == 15:  # Debian's has the plugin itself
            assert ("wal2json", "ok") in found(database)
            database.create_slot("polling", "wal2json")


def _set_plugins(database: Database, value: str) -> None:
    database.run(f"ALTER SYSTEM SET output_plugin_libraries = {value}")
    _reload(database)


def _run_fix(database: Database, finding: Finding) -> None:
    """Run what doctor prints, statement by statement, as `psql` does."""
    database.run(*statements_of(finding.fix))
    _reload(database)


def _reload(database: Database) -> None:
    """Return when new sessions have the settings that were written."""
    loaded = database.value("SELECT pg_conf_load_time()")
    database.run("SELECT pg_reload_conf()")
    eventually(
        lambda: database.value("SELECT pg_conf_load_time()") > loaded, "the settings are loaded"
    )


def test_looking_for_a_plugin_that_is_there_does_not_wait_for_open_transactions(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "_PROBE_TIMEOUT_MS", 200)
    database.run("CREATE TABLE orders (id int PRIMARY KEY)")
    with psycopg.connect(database.dsn()) as writer, database.connect() as connection:
        writer.execute("INSERT INTO orders VALUES (1)")
        facts = read_facts(connection, config_for(database).source)
        started = time.monotonic()
        assert doctor._probe(connection, facts, "pgoutput").present is True
        assert time.monotonic() - started < 5
    assert slots(database) == []


# M7.3, M1.7
def test_a_lost_slot_is_named_with_what_to_do(own_server: EmbeddedPostgres) -> None:
    with Database(own_server, "t_lost") as database:
        database.run("CREATE TABLE orders (id int PRIMARY KEY)")
        setup(config_for(database))
        database.run("ALTER SYSTEM SET max_slot_wal_keep_size = '1MB'", "SELECT pg_reload_conf()")
        for _ in range(4):
            database.run(
                "INSERT INTO orders SELECT coalesce(max(id), 0) + 1 FROM orders",
                "SELECT pg_switch_wal()",
            )
        database.run("CHECKPOINT")
        finding = found(database)["slot", "error"]
        assert "was invalidated by the server" in finding.what
        assert "penstock teardown" in finding.fix
        with database.connect() as connection, pytest.raises(SlotInvalidated):
            check_slot(read_slot(connection, "penstock"), "penstock", database.name)
        with pytest.raises(SlotInvalidated):
            setup(config_for(database))
        assert slots(database) == ["penstock"]


@on_18
def test_who_reads_from_the_slot_is_named(database: Database) -> None:
    database.run("CREATE TABLE orders (id int PRIMARY KEY)")
    setup(config_for(database))
    with reader(database, "penstock") as other:
        finding = found(database)["slot_active", "warning"]
        assert str(other.info.backend_pid) in finding.what
        assert "somebody" in finding.what
        with database.connect() as connection, pytest.raises(SlotInUse, match="somebody"):
            check_slot(read_slot(connection, "penstock"), "penstock", database.name)


def test_settings_are_read_as_the_server_has_them() -> None:
    settings: dict[str, str | int] = {
        "max_slot_wal_keep_size": "2GB",
        "wal_sender_timeout": "7s",
        "max_replication_slots": 3,
        "idle_replication_slot_timeout": "5min",
    }
    with EmbeddedPostgres(18, settings=settings) as server:
        database = Database(server, "postgres")
        facts = gather(config_for(database)).source
        assert isinstance(facts, SourceFacts)
        assert facts.server.max_slot_wal_keep_mb == 2048
        assert facts.server.wal_sender_timeout_ms == 7000
        assert facts.server.max_slots == 3
        assert facts.server.idle_slot_timeout_s == 300
        assert facts.server.major == 18
        assert facts.server.wal_level == "logical"


# M7.1, M7.3: the command itself.
def test_the_command_ends_with_the_worst_of_its_findings(
    database18: Database, tmp_path: Path
) -> None:
    database18.run("CREATE TABLE orders (id int PRIMARY KEY)")
    file = tmp_path / "penstock.toml"
    file.write_text(f'[source]\ndsn = "{database18.dsn()}"\ntables = ["orders"]\n')
    given = ("doctor", "--json", "--config", str(file))
    before = penstock(*given)
    assert before.returncode == json.loads(before.stdout)["exit_code"] == 2
    setup(config_for(database18))
    database18.run("ALTER PUBLICATION penstock SET (publish = 'insert')")
    warned = penstock(*given)
    assert (warned.returncode, json.loads(warned.stdout)["worst"]) == (1, "warning")
    plain = penstock("doctor", "--config", str(file))
    assert "! warning" in plain.stdout
    assert "\x1b" not in plain.stdout


def test_commands_that_are_advised_name_the_configuration(
    database18: Database, tmp_path: Path
) -> None:  # M7.3
    database18.run("CREATE TABLE orders (id int PRIMARY KEY)")
    settings = f'[source]\ndsn = "{database18.dsn()}"\ntables = ["orders"]\n'
    other = tmp_path / "the other.toml"
    for file in (other, tmp_path / "penstock.toml"):
        file.write_text(settings)
    named = f"penstock setup --config '{other}'`"
    done = penstock("doctor", "--json", "--config", str(other))
    fixes = [f["fix"] for f in json.loads(done.stdout)["findings"] if f["check"] == "slot"]
    assert [named in fix for fix in fixes] == [True]
    assert named in penstock("doctor", "--config", str(other)).stdout
    # So do errors.
    assert named in penstock("capture", "--config", str(other)).stderr
    # The default is found without being named.
    with chdir(tmp_path):
        assert "`penstock setup`" in penstock("doctor").stdout
        assert "`penstock setup`" in penstock("doctor", "--config", "penstock.toml").stdout


def test_a_server_that_is_down_is_one_error(tmp_path: Path) -> None:
    file = tmp_path / "penstock.toml"
    dsn = "postgresql://u:hunter2@127.0.0.1:1/db"
    file.write_text(f'[source]\ndsn = "{dsn}"\ntables = ["orders"]\n')
    file.chmod(0o644)
    done = penstock("doctor", "--json", "--config", str(file))
    report = json.loads(done.stdout)
    assert done.returncode == 2
    assert [f["check"] for f in report["findings"] if f["level"] == "error"] == ["connection"]
    assert any(f["check"] == "config_file" for f in report["findings"])
    assert "hunter2" not in done.stdout + done.stderr


def test_a_malformed_dsn_is_a_finding_too(database18: Database) -> None:
    findings = found(database18, dsn="postgresql://u:hunter2@[/db")
    assert "is not a connection string" in findings["connection", "error"].what
    refused = found(database18, setup_dsn=database18.dsn("no_such_role"))
    assert "no_such_role" in refused["setup_connection", "warning"].what
