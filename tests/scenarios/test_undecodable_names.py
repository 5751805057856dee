"""Tables whose names are not UTF-8, which a database without an encoding takes from any role."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from penstock.changelog.reader import LogReader
from penstock.decode.definition import Definition
from penstock.errors import NotUtf8
from penstock.ops.doctor import diagnose
from penstock.ops.findings import Finding
from penstock.ops.setup import setup
from penstock.postgres.embedded import EmbeddedPostgres
from support.capturing import capture_config, capturing
from support.database import Database
from support.oracle import Mirror
from support.workload import PUBLICATION, SLOT, insert_items, prepare


@pytest.fixture
def database(server: EmbeddedPostgres) -> Iterator[Database]:
    with Database(server, "t_undecodable_names", "SQL_ASCII") as database:
        yield database


def run_bytes(database: Database, *statements: bytes) -> None:
    dsn = database.dsn()
    with psycopg.connect(dsn, client_encoding="sql_ascii", autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement)


HOSTILE = (
    b'CREATE SCHEMA "sch\xe9ma"',
    b"CREATE TYPE \"\xff\" AS ENUM ('a')",
    b'CREATE TABLE "sch\xe9ma"."na\xefve" ("\xfcber" int PRIMARY KEY, k "\xff")',
    b'INSERT INTO "sch\xe9ma"."na\xefve" VALUES (1, \'a\')',
    b'UPDATE "sch\xe9ma"."na\xefve" SET "\xfcber" = 2',
)


def findings(database: Database, log: Path) -> list[Finding]:
    return [
        each
        for each in diagnose(capture_config(database.dsn(), log))
        if each.check == "name_encoding"
    ]


def test_a_table_of_another_does_not_stop_capture(database: Database, tmp_path: Path) -> None:
    # M7.6: also after it was dropped, because it is in the WAL.
    prepare(database, slot=False)
    database.run(
        f"DROP PUBLICATION {PUBLICATION}", f"CREATE PUBLICATION {PUBLICATION} FOR ALL TABLES"
    )
    database.create_slot(SLOT)
    mirror = Mirror(tmp_path)
    run_bytes(database, *HOSTILE, b'DROP TABLE "sch\xe9ma"."na\xefve"')
    with capturing(capture_config(database.dsn(), tmp_path)) as running:
        with database.connect() as connection:
            insert_items(connection, 10)
        mirror.must_equal(database)
        assert running.connections == 1
    tables = [Definition.parse(entry.messages) for entry in LogReader(tmp_path).tables()]
    (foreign,) = (each for each in tables if each.table.schema != "public")
    assert foreign.table.schema == "sch\\xe9ma"
    assert foreign.table.name == "na\\xefve"
    assert [column.name for column in foreign.relation.columns] == ["\\xfcber", "k"]


def test_doctor_finds_them_and_its_sql_renames_them(database: Database, tmp_path: Path) -> None:
    prepare(database)
    run_bytes(database, *HOSTILE, b'CREATE TABLE "na\xc3\xafve" (id int)')
    found = findings(database, tmp_path)
    assert [each.subject for each in found] == [
        "sch\\xe9ma.na\\xefve",
        "sch\\xe9ma",
        "na\\xefve.\\xfcber",
    ]
    assert {each.level for each in found} == {"warning"}
    database.run(*(each.fix for each in found))
    assert findings(database, tmp_path) == []
    ((schema, table, column),) = database.rows(
        "SELECT n.nspname, c.relname, a.attname FROM pg_class AS c"
        " JOIN pg_namespace AS n ON n.oid = c.relnamespace"
        " JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum = 1"
        " WHERE c.relname ~ '^table_[0-9]+$'"
    )
    assert (schema[:7], table[:6], column) == ("schema_", "table_", "column_1")


def test_a_publication_that_lists_one_is_an_error_with_what_to_do(
    database: Database, tmp_path: Path
) -> None:
    prepare(database)
    listed = b'ALTER PUBLICATION penstock ADD TABLE "sch\xe9ma"."na\xefve"'
    run_bytes(database, *HOSTILE[:3], listed)
    config = capture_config(database.dsn(), tmp_path)
    with pytest.raises(NotUtf8, match="penstock doctor"):
        setup(config)
    found = findings(database, tmp_path)
    assert len(found) == 3
    database.run(*(each.fix for each in found))
    setup(config)
