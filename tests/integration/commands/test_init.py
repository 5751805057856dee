"""`penstock init` on real servers: what it writes is what set-up takes. M7.1, M7.3, M7.4"""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import psycopg
import pytest
from typer.testing import CliRunner, Result

from penstock.cli import app
from penstock.config import Config, load
from penstock.errors import (
    AuthenticationFailed,
    ConfigExists,
    ConfigInvalidValue,
    ConfigMissingKey,
    ConfigNotWritten,
    ConfigUnknownKey,
    DatabaseMissing,
    NothingToCapture,
    NotPublishable,
    PenstockError,
    ServerTooOld,
    SourceUnavailable,
    TableMissing,
)
from penstock.names import TableName
from penstock.notify.writing import FILES
from penstock.ops.doctor import diagnose
from penstock.ops.setup import setup
from penstock.postgres import catalog
from penstock.postgres.embedded import EmbeddedPostgres, free_port
from support.commands import penstock
from support.database import Database
from support.ops import on_18, replica_identities, slots

SECRET = "s3cret-of-init"

# As `pgbench -i --scale 2` makes it, with fewer accounts: no foreign keys, no key for history.
PGBENCH = (
    "CREATE TABLE pgbench_history (tid int, bid int, aid int, delta int, mtime timestamp)",
    "CREATE TABLE pgbench_tellers (tid int PRIMARY KEY, bid int, tbalance int, filler char(84))",
    "CREATE TABLE pgbench_accounts (aid int PRIMARY KEY, bid int, abalance int, filler char(84))",
    "CREATE TABLE pgbench_branches (bid int PRIMARY KEY, bbalance int, filler char(88))",
    "INSERT INTO pgbench_branches SELECT n, 0 FROM generate_series(1, 2) AS n",
    "INSERT INTO pgbench_tellers SELECT n, 1 + n / 11, 0 FROM generate_series(1, 20) AS n",
    "INSERT INTO pgbench_accounts SELECT n, 1 + n % 2, 0, '' FROM generate_series(1, 2000) AS n",
)


def run(directory: Path, *words: str) -> Result:
    return CliRunner().invoke(app, ["init", *words, "--config", str(directory / "penstock.toml")])


def written(database: Database, directory: Path, *words: str) -> str:
    done = run(directory, "--dsn", database.dsn(), *words)
    assert (done.exit_code, done.exception) == (0, None), done.output
    return (directory / "penstock.toml").read_text()


def config(directory: Path) -> Config:
    return load(directory / "penstock.toml", environ={})


def tables(directory: Path) -> dict[str, str]:
    return {str(t.name): t.replica_identity for t in config(directory).source.tables}


def refused(directory: Path, *words: str) -> PenstockError:
    error = run(directory, *words).exception
    # As `main` prints it, and ends with 2.
    assert isinstance(error, PenstockError), error
    assert SECRET not in str(error)
    assert [path.name for path in directory.iterdir()] == []
    return error


@pytest.mark.parametrize("analyzed", [True, False], ids=["analyzed", "sampled"])
def test_what_is_written_for_pgbench_is_set_up_as_it_is(
    database: Database, tmp_path: Path, analyzed: bool
) -> None:  # M5.2
    database.run(*PGBENCH, *(["ANALYZE"] * analyzed))
    text = written(database, tmp_path)
    assert tables(tmp_path) == {
        "public.pgbench_accounts": "full",
        "public.pgbench_branches": "auto",
        "public.pgbench_tellers": "auto",
    }
    assert "# public.pgbench_history has neither a primary key nor" in text
    (aggregate,) = config(tmp_path).aggregate
    assert list(aggregate.dimensions) == ["bid"]
    assert aggregate.measures == {"count": "count", "abalance_sum": "sum(abalance)"}
    assert str(aggregate.targets[0].table) == "public.pgbench_accounts_counts"
    found = [
        f for f in diagnose(config(tmp_path), tmp_path / "penstock.toml") if f.level == "error"
    ]
    assert all(f.fix.startswith("Run `penstock setup`") for f in found)
    # Each matter once.
    assert [f.check for f in found if "public.pgbench_accounts" in f.what + f.subject] == [
        "replica_identity",
        "target",
    ]
    setup(config(tmp_path))
    assert replica_identities(database)["pgbench_accounts"] == "f"
    assert slots(database) == ["penstock"]
    after = diagnose(config(tmp_path), tmp_path / "penstock.toml")
    tools = {"java", "pyspark"}
    assert [f for f in after if f.level in {"error", "warning"} and f.check not in tools] == []


def test_names_that_need_quotes_survive(database: Database, tmp_path: Path) -> None:
    odd = [
        'Up"per',
        "new\nline",
        "ünï códe",
        "a.b",
        "tab\t'x'",
        "back\\slash",
        "\u202etxt",
        "order",
    ]
    for name in odd:
        column = psycopg.sql.Identifier(name).as_string(None)
        database.run(
            f"CREATE SCHEMA {column}",
            f"CREATE TABLE {column}.{column} (id int PRIMARY KEY, {column} boolean NOT NULL)",
        )
    text = written(database, tmp_path)
    assert all(line.isprintable() for line in text.splitlines())
    found = config(tmp_path)
    assert {t.name for t in found.source.tables} == {TableName(name, name) for name in odd}
    (aggregate,) = found.aggregate
    assert set(aggregate.keys) <= set(odd)
    setup(found)


def test_dimensions_come_from_statistics_enums_and_foreign_keys(
    database: Database, tmp_path: Path
) -> None:
    database.run(
        "CREATE TYPE channel AS ENUM ('sms', 'email')",
        "CREATE TABLE services (id uuid PRIMARY KEY DEFAULT gen_random_uuid())",
        "INSERT INTO services SELECT FROM generate_series(1, 5)",
        "CREATE TABLE notifications (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,"
        " service uuid REFERENCES services, via channel, template text, body text,"
        " cost numeric(10, 2), weight float8, sent_at timestamptz)",
        "INSERT INTO notifications (template, body) SELECT n % 4, n FROM generate_series(1, 900) n",
        "ANALYZE",
    )
    text = written(database, tmp_path)
    (aggregate,) = config(tmp_path).aggregate
    assert list(aggregate.dimensions) == ["service", "via", "template"]
    assert aggregate.summed == ("cost",)
    assert "#   template: about 4 values" in text
    setup(config(tmp_path))


@on_18
def test_an_index_that_covers_is_preferred(database: Database, tmp_path: Path) -> None:  # M4.2
    database.run(
        "CREATE TABLE orders (id int PRIMARY KEY, status text NOT NULL)",
        "CREATE UNIQUE INDEX by_status ON orders (status, id)",
    )
    written(database, tmp_path)
    assert tables(tmp_path) == {"public.orders": "by_status"}
    setup(config(tmp_path))


def test_partitions_extensions_and_our_own_tables_are_not_listed(
    database: Database, tmp_path: Path
) -> None:
    database.run(
        "CREATE TABLE orders (id int, day int, status text, PRIMARY KEY (id, day))"
        " PARTITION BY LIST (day)",
        "CREATE TABLE orders_1 PARTITION OF orders FOR VALUES IN (1)",
        "INSERT INTO orders SELECT n, 1, n % 3 FROM generate_series(1, 300) AS n",
        "CREATE UNLOGGED TABLE cache (id int PRIMARY KEY)",
        "CREATE VIEW seen AS SELECT 1 AS id",
    )
    text = written(database, tmp_path)
    assert tables(tmp_path) == {"public.orders": "full"}
    assert "# ALTER TABLE public.cache SET LOGGED" in text
    setup(config(tmp_path))
    # Once more, with the targets, the slot and the publication there.
    again = tmp_path / "again"
    again.mkdir()
    text = written(database, again)
    assert list(tables(again)) == ["public.orders"]
    assert "# public.orders_counts looks like the target of an aggregate" in text
    assert "penstock.progress" not in text
    source = config(again).source
    assert source.slot == source.publication != "penstock"
    assert str(config(again).aggregate[0].targets[0].table) == "public.orders_counts_2"
    setup(config(again))


@on_18
def test_tables_that_are_asked_for_are_the_only_ones(database: Database, tmp_path: Path) -> None:
    database.run(
        "CREATE TABLE a (id int PRIMARY KEY)", "CREATE TABLE b (v int)", "CREATE TABLE c (v int)"
    )
    text = written(database, tmp_path, "--table", "b", "-t", "public.a", "--table", "b")
    assert tables(tmp_path) == {"public.a": "auto", "public.b": "full"}
    assert "public.c" not in text
    setup(config(tmp_path))


@on_18
def test_nothing_is_changed_in_the_database(database: Database, tmp_path: Path) -> None:
    database.run("CREATE TABLE orders (id int PRIMARY KEY, status text)")
    before = database.wal_position()
    written(database, tmp_path)
    assert slots(database) == []
    assert replica_identities(database) == {"orders": "d"}
    assert database.wal_position() - before < 10_000


@on_18
def test_a_locked_table_is_not_waited_for(database: Database, tmp_path: Path) -> None:
    database.run(
        "CREATE TABLE orders (id int PRIMARY KEY, word text)",
        "INSERT INTO orders SELECT n, n % 3 FROM generate_series(1, 300) AS n",
    )
    with database.connect(autocommit=False) as other:
        other.execute("LOCK TABLE orders IN ACCESS EXCLUSIVE MODE")
        written(database, tmp_path)
    assert list(tables(tmp_path)) == ["public.orders"]
    assert config(tmp_path).aggregate == ()


# M7.3
@on_18
def test_a_password_is_used_and_neither_written_nor_shown(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database.run("CREATE TABLE orders (id int PRIMARY KEY)")
    secret = database.server.password
    dsn = database.dsn(password=secret)
    done = run(tmp_path, "--dsn", dsn)
    assert done.exit_code == 0
    text = (tmp_path / "penstock.toml").read_text()
    assert secret not in text + done.output
    assert "export PGPASSWORD=…" in done.output
    assert psycopg.conninfo.conninfo_to_dict(config(tmp_path).source.conninfo) == (
        psycopg.conninfo.conninfo_to_dict(database.dsn())
    )
    (tmp_path / "penstock.toml").unlink()
    monkeypatch.setenv("PENSTOCK_SOURCE_DSN", dsn)
    done = run(tmp_path)
    assert done.exit_code == 0
    assert "the next commands find it in PENSTOCK_SOURCE_DSN" in done.output
    assert secret not in (tmp_path / "penstock.toml").read_text() + done.output
    assert load(tmp_path / "penstock.toml").source.conninfo == dsn
    (tmp_path / "penstock.toml").unlink()
    assert "PENSTOCK_SOURCE_DSN is set" in run(tmp_path, "--dsn", database.dsn()).output


@on_18
def test_the_next_three_commands_are_told(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database.run("CREATE TABLE orders (id int PRIMARY KEY)")
    monkeypatch.chdir(tmp_path)
    # The real command, once; here nobody may see a traceback.
    done = penstock("init", "--dsn", database.dsn())
    assert (done.returncode, done.stderr) == (0, "")
    first, *_, doctor, set_up, run_it = done.stdout.splitlines()
    assert first == "penstock.toml is written, with 1 table."
    assert [line.split("#")[0].split() for line in (doctor, set_up, run_it)] == [
        ["penstock", "doctor"],
        ["penstock", "setup"],
        ["penstock", "run"],
    ]
    there = CliRunner().invoke(app, ["init", "--dsn", database.dsn()]).exception
    assert isinstance(there, ConfigExists)
    words = ["init", "--dsn", database.dsn(), "--config", "my file.toml"]
    assert "penstock setup --config 'my file.toml'" in CliRunner().invoke(app, words).output
    words = ["init", "--dsn", database.dsn(), "--config", "other.toml", "--json"]
    found: dict[str, Any] = json.loads(CliRunner().invoke(app, words).output)
    assert found["file"] == "other.toml"
    assert found["tables"] == ["public.orders"]
    assert found["next"][2] == "penstock run --config other.toml"
    logs = {load(Path(name), environ={}).log.path.name for name in ("penstock.toml", "other.toml")}
    assert logs == {"penstock-log", "other-log"}
    assert tomllib.loads(Path("other.toml").read_text())["source"]["tables"] == ["public.orders"]


# M7.5
@on_18
def test_tables_of_others_are_left_out_with_the_remedy(database: Database, tmp_path: Path) -> None:
    role = f"{database.name[:40]}_role"
    database.run(
        "CREATE TABLE theirs (id int PRIMARY KEY)",
        f"CREATE ROLE {role} LOGIN",
        f"GRANT CREATE ON SCHEMA public TO {role}",
    )
    try:
        error = refused(tmp_path, "--dsn", database.dsn(role))
        assert isinstance(error, NothingToCapture)
        assert "belongs to postgres, and only its owner may publish it" in error.problem
        error = refused(tmp_path, "--dsn", database.dsn(role), "--table", "theirs")
        assert isinstance(error, NotPublishable)
        database.run("CREATE TABLE mine (id int PRIMARY KEY)", f"ALTER TABLE mine OWNER TO {role}")
        assert run(tmp_path, "--dsn", database.dsn(role)).exit_code == 0
        assert list(tables(tmp_path)) == ["public.mine"]
        text = (tmp_path / "penstock.toml").read_text()
        assert f"# ALTER TABLE public.theirs OWNER TO {role}" in text
    finally:
        database.run(f"DROP OWNED BY {role}", f"DROP ROLE {role}")


# M7.3
@on_18
def test_bad_input_is_named_with_its_remedy(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dsn = database.dsn(password=database.server.password)
    assert isinstance(refused(tmp_path, "--dsn", dsn), NothingToCapture)
    database.run(
        "CREATE SCHEMA app",
        "CREATE TABLE app.orders (id int PRIMARY KEY)",
        "CREATE TABLE orders_archive (id int PRIMARY KEY)",
    )
    error = refused(tmp_path, "--dsn", dsn, "--table", "order")
    assert isinstance(error, TableMissing)
    assert error.problem == f'table public."order" does not exist in database "{database.name}"'
    assert error.remedy == "Did you mean app.orders?"
    error = refused(tmp_path, "--dsn", dsn, "--table", "a b")
    assert isinstance(error, ConfigInvalidValue)
    assert error.problem.startswith("flag --table: 'a b' is not a table name")
    assert isinstance(refused(tmp_path, "--dsn", dsn, "--table", "\udcff"), ConfigInvalidValue)
    nobody = f"host=127.0.0.1 port={free_port()} password={SECRET}"
    assert isinstance(refused(tmp_path, "--dsn", nobody), SourceUnavailable)
    elsewhere = database.server.dsn("no_such_db", password=database.server.password)
    assert isinstance(refused(tmp_path, "--dsn", elsewhere), DatabaseMissing)
    unknown = database.dsn("no_such_role", password=SECRET)
    assert isinstance(refused(tmp_path, "--dsn", unknown), AuthenticationFailed)
    monkeypatch.delenv("PENSTOCK_SOURCE_DSN", raising=False)
    assert isinstance(refused(tmp_path), ConfigMissingKey)
    assert "flag --dsn is empty" in refused(tmp_path, "--dsn", " ").problem
    monkeypatch.setenv("PENSTOCK_DSN", dsn)
    assert isinstance(refused(tmp_path), ConfigUnknownKey)
    monkeypatch.delenv("PENSTOCK_DSN")
    monkeypatch.setattr(catalog, "OLDEST_VERSION", 99)
    assert isinstance(refused(tmp_path, "--dsn", dsn), ServerTooOld)


def test_a_folder_that_is_missing_is_told_before_the_server_is_asked(tmp_path: Path) -> None:
    nobody = f"host=127.0.0.1 port={free_port()}"
    file = tmp_path / "no" / "penstock.toml"
    error = CliRunner().invoke(app, ["init", "--dsn", nobody, "--config", str(file)]).exception
    assert isinstance(error, ConfigNotWritten)
    assert str(tmp_path / "no") in error.problem


@pytest.mark.parametrize("own_server", [18], indirect=True)
def test_a_server_that_is_not_ready_yet_gets_its_file(
    own_server: EmbeddedPostgres, tmp_path: Path
) -> None:
    own_server._settings = {**own_server._settings, "wal_level": "replica"}
    own_server.restart()
    with psycopg.connect(own_server.dsn(), autocommit=True) as connection:
        connection.execute("CREATE TABLE orders (id int PRIMARY KEY)")
    assert run(tmp_path, "--dsn", own_server.dsn()).exit_code == 0
    found = diagnose(config(tmp_path))
    assert ("wal_level", "error") in {(f.check, f.level) for f in found}


def test_an_example_is_written_whole_and_without_the_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # M7.1, M7.3
    monkeypatch.chdir(tmp_path)
    dsn = "postgresql://app:hunter2@db.example.com/notify"
    done = CliRunner().invoke(app, ["init", "--example", "notify", "--dsn", dsn])
    assert done.exit_code == 0, done.output
    assert set(map(str, Path().iterdir())) == set(FILES)
    for command in ("penstock doctor", "penstock setup", "penstock run"):
        assert command in done.output
    assert "export PGPASSWORD=…" in done.output
    assert "hunter2" not in done.output + Path("penstock.toml").read_text()
    written = load(Path("penstock.toml"), environ={})
    assert written.source.conninfo == "postgresql://app@db.example.com/notify"
    again = CliRunner().invoke(app, ["init", "--example", "notify"]).exception
    assert isinstance(again, PenstockError)
    assert "README.md" in again.problem
    for flag, value in (("--table", "orders"), ("--config", "mine.toml")):
        error = CliRunner().invoke(app, ["init", "--example", "notify", flag, value]).exception
        assert isinstance(error, PenstockError)
        assert f"flag {flag} does not go with --example" in error.problem
    assert CliRunner().invoke(app, ["init", "--example", "other"]).exit_code == 2


def test_what_comes_next_begins_with_the_tables_of_the_example(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # M7.1
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PENSTOCK_SOURCE_DSN", "postgresql://app:hunter2@db/notify?sslpassword=x")
    done = CliRunner().invoke(app, ["init", "--example", "notify", "--json"])
    create, *commands = json.loads(done.output)["next"]
    assert create == "python load.py --dsn postgresql://app@db/notify create"
    assert commands == ["penstock doctor", "penstock setup", "penstock run"]
    for name in FILES:
        Path(name).unlink()
    done = CliRunner().invoke(app, ["init", "--example", "notify"])
    assert "The password and sslpassword are left out of the file" in done.output
