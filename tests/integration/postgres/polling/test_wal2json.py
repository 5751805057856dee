"""Two slots see the same WAL: what wal2json says, translated, is what pgoutput says.

Where it cannot be, a test names the difference: `docs/polling.md` says the same.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import psycopg
import pytest

from penstock.decode.definition import Definition
from penstock.errors import NumberNotInJson
from penstock.lsn import Lsn
from penstock.names import TableName, quote
from penstock.postgres.connection import VALUE_SETTINGS
from penstock.postgres.envelope import PAYLOAD_POS
from penstock.postgres.messages import (
    UNCHANGED,
    Begin,
    Commit,
    Delete,
    Insert,
    LogicalMessage,
    Relation,
    Truncate,
    Type,
    Update,
)
from penstock.postgres.pgoutput import Decoder
from penstock.postgres.polling.type_text import type_modifier, type_name
from penstock.postgres.polling.wal2json import Translator
from penstock.postgres.polling.wal2json_options import FormatVersion, slot_options
from support.database import Database
from support.known_values import Image, image

# Debian has wal2json for 15.
pytestmark = pytest.mark.parametrize("server", [15], indirect=True)
VERSIONS: tuple[FormatVersion, ...] = (1, 2)
both_formats = pytest.mark.parametrize("version", VERSIONS)
PREFIX = "penstock"
SEED = 23


@dataclass(frozen=True)
class Seen:
    """A change as readers of the log see it."""

    table: str
    # Names, and types as they are outside of Postgres.
    columns: tuple[tuple[str, str], ...]
    change: Image


@dataclass
class Committed:
    xid: int
    end_lsn: Lsn
    committed_us: int
    changes: list[Seen] = field(default_factory=list)
    messages: list[bytes] = field(default_factory=list)


class Slots:
    """One slot of each plugin."""

    def __init__(self, database: Database, tables: Sequence[TableName]) -> None:
        self._database = database
        self.tables = tables
        database.run(f"CREATE PUBLICATION p FOR TABLE {', '.join(t.sql for t in tables)}")
        database.create_slot("by_pgoutput")
        database.create_slot("by_wal2json", "wal2json")

    def pgoutput(self) -> list[Committed]:
        rows = self._peek(
            "SELECT lsn, data FROM pg_logical_slot_peek_binary_changes('by_pgoutput', NULL, NULL,"
            " 'proto_version', '1', 'publication_names', 'p', 'messages', 'true')"
        )
        return _committed(data for _, data in rows)

    def wal2json(self, version: FormatVersion, **options: Any) -> list[Committed]:
        translator = Translator(version, message_prefix=PREFIX)
        found = [
            record[PAYLOAD_POS:]
            for lsn, data in self.documents(version, **options)
            for record in translator.feed(Lsn.parse(lsn), data)
        ]
        assert not translator.half_read
        return _committed(found)

    def documents(
        self, version: FormatVersion, *, pretty: bool = False, **options: Any
    ) -> list[tuple[str, bytes]]:
        chosen = slot_options(version, self.tables, message_prefix=PREFIX, **options)
        if pretty:
            chosen["pretty-print"] = "1"
        pairs = [part for pair in chosen.items() for part in pair]
        rows = self._peek(
            "SELECT lsn, convert_to(data, 'UTF8') FROM pg_logical_slot_peek_changes("
            f"'by_wal2json', NULL, NULL{', %s' * len(pairs)})",
            pairs,
        )
        return [(lsn, data) for lsn, data in rows]

    def _peek(self, query: str, parameters: Sequence[str] = ()) -> list[tuple[Any, ...]]:
        with closing(self._database.connect()) as connection:
            for name, value in VALUE_SETTINGS.items():
                connection.execute("SELECT set_config(%s, %s, false)", [name, value])
            return connection.execute(query.encode(), parameters or None).fetchall()


def _committed(payloads: Any) -> list[Committed]:
    decoder = Decoder(1, "off")
    types: dict[int, bytes] = {}
    definitions: dict[int, Definition] = {}
    found: list[Committed] = []
    current: Committed | None = None
    for payload in payloads:
        match message := decoder.decode(payload):
            case Begin():
                assert current is None
                current = Committed(message.xid, Lsn(0), message.committed_us)
            case Commit():
                assert current is not None
                assert current.committed_us == message.committed_us
                current.end_lsn = message.end_lsn
                found.append(current)
                current = None
            case Type():
                types[message.oid] = payload
            case Relation():
                definitions[message.oid] = Definition.parse([payload, *types.values()])
            case LogicalMessage():
                if message.prefix == PREFIX and current is not None:
                    current.messages.append(message.content)
            case Insert() | Update() | Delete():
                assert current is not None
                definition = definitions[message.relation_oid]
                current.changes.append(_seen(definition, image(message, definition.relation)))
            case Truncate():
                assert current is not None
                for oid in message.relation_oids:
                    current.changes.append(_seen(definitions[oid], Image("T")))
    assert current is None
    return [each for each in found if each.changes or each.messages]


def _seen(definition: Definition, change: Image) -> Seen:
    columns = zip(definition.relation.columns, map(str, definition.types), strict=True)
    shown = tuple((column.name, kind) for column, kind in columns)
    return Seen(str(definition.table), shown, change)


def without_truncates(found: list[Committed]) -> list[Committed]:
    for each in found:
        each.changes = [seen for seen in each.changes if seen.change.kind != "T"]
    return [each for each in found if each.changes or each.messages]


# --- random transactions ------------------------------------------------------------------------

TABLES = ("plain", "wide", "complete", "indexed", 'app."Örder, v1.2 * ""x"""', "keyed")
SCHEMA = (
    "CREATE SCHEMA app",
    "CREATE TABLE plain (id int PRIMARY KEY, body text, n numeric(20,4) NOT NULL)",
    "CREATE TABLE wide (id int PRIMARY KEY, body text, note varchar(30), more jsonb)",
    "CREATE TABLE complete (id int PRIMARY KEY, body text, note text, n numeric)",
    "ALTER TABLE complete REPLICA IDENTITY FULL",
    "CREATE TABLE indexed (id int PRIMARY KEY, code text NOT NULL, n int NOT NULL, body text)",
    "CREATE UNIQUE INDEX by_code ON indexed (code, n)",
    "ALTER TABLE indexed REPLICA IDENTITY USING INDEX by_code",
    'CREATE TABLE app."Örder, v1.2 * ""x""" ("Id " int PRIMARY KEY, "b""\\o,dy" text)',
    # A key that is itself TOASTed.
    "CREATE TABLE keyed (id text PRIMARY KEY, body text)",
    "ALTER TABLE keyed ALTER id SET STORAGE EXTERNAL, ALTER body SET STORAGE EXTERNAL",
    "ALTER TABLE plain ALTER body SET STORAGE EXTERNAL",
    "ALTER TABLE complete ALTER body SET STORAGE EXTERNAL",
    "CREATE TABLE others (id int)",
)


class Random:
    """Statements that change rows at random, of any of the tables."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._columns = 0

    def text(self) -> str:
        pick = self._random.random()
        if pick < 0.15:
            return "NULL"
        if pick < 0.4:
            return f"repeat('{self._random.randrange(1000)} é', 1500)"
        return self._random.choice(
            ["''", "'null'", r"E'a\nb\t\\c\"d\x01'", "'{\"value\":1}'", "'},{'", "'é☃😀'"]
        )

    def statement(self) -> str:
        some, key = self._random, self._random.randrange(12)
        other = some.randrange(12)
        what = some.randrange(16)
        text, table = self.text(), some.choice(["plain", "wide", "complete"])
        by_key = f"WHERE id % 12 = {key}"
        match what:
            case 0 | 1:
                number = f"{some.randrange(10**9)}.{some.randrange(10)}"
                return f"INSERT INTO plain VALUES ({self._new()}, {text}, {number})"
            case 2:
                more = some.choice(["NULL", '\'{"a": [1.50, null, "q\\""]}\''])
                return f"INSERT INTO wide (id, body, more) VALUES ({self._new()}, {text}, {more})"
            case 3 | 4:
                return f"INSERT INTO complete VALUES ({self._new()}, {text}, {self.text()}, NULL)"
            case 5:
                code = f"'c{some.randrange(10**6)}'"
                return f"INSERT INTO indexed VALUES ({self._new()}, {code}, {other}, {text})"
            case 6:
                return f'INSERT INTO app."Örder, v1.2 * ""x""" VALUES ({self._new()}, {text})'
            case 7:
                return f"UPDATE {table} SET body = {text} {by_key}"
            case 8:
                return f"UPDATE {table} SET id = id + 100000000 {by_key}"
            case 9:
                return f"UPDATE complete SET note = {text}, n = {other}.50 {by_key}"
            case 10:
                return f"UPDATE plain SET n = n + 0.0001 {by_key}"
            case 11:
                return f"UPDATE indexed SET body = {text}, n = n + {some.choice([0, 1])} {by_key}"
            case 12:
                return f"DELETE FROM {some.choice(['plain', 'complete', 'indexed'])} {by_key}"
            case 13:
                big = f"repeat('k{self._new()}', 400)"
                return f"INSERT INTO keyed VALUES ({big}, {text})"
            case 14:
                return f"UPDATE keyed SET body = {text} WHERE length(id) % 3 = {key % 3}"
            case _:
                return some.choice(
                    [self.ddl(), "TRUNCATE wide, plain", "INSERT INTO others VALUES (1)"]
                )

    def ddl(self) -> str:
        self._columns += 1
        table = self._random.choice(["plain", "wide", "complete"])
        earlier = self._random.randrange(self._columns)
        return self._random.choice(
            [
                f"ALTER TABLE {table} DROP COLUMN c{earlier}",
                f"ALTER TABLE {table} RENAME c{earlier} TO r{self._columns}",
                f"ALTER TABLE {table} REPLICA IDENTITY {self._random.choice(['FULL', 'DEFAULT'])}",
                f"ALTER TABLE {table} ADD c{self._columns} int DEFAULT {self._columns}",
                f"ALTER TABLE {table} ADD c{self._columns} text",
                f"ALTER TABLE wide ALTER note TYPE varchar({30 + self._columns})",
                f"CREATE INDEX ON {table} (id)",
            ]
        )

    def _new(self) -> int:
        return self._random.randrange(10**7)


def run_random(database: Database, seed: int, transactions: int) -> None:
    """Two sessions, savepoints, rollbacks and errors; what waits for a lock is given up."""
    some, statements = random.Random(seed), Random(seed)
    with database.connect(autocommit=False) as one, database.connect(autocommit=False) as two:
        for session in (one, two):
            session.execute("SET lock_timeout = '20ms'")
            session.commit()
        for _ in range(transactions):
            session = some.choice([one, two])
            try:
                for _ in range(some.randrange(1, 5)):
                    if some.random() < 0.3:
                        with session.transaction():
                            session.execute(statements.statement().encode())
                            if some.random() < 0.5:
                                raise psycopg.Rollback
                    else:
                        session.execute(statements.statement().encode())
                if some.random() < 0.2:
                    session.execute("SELECT pg_logical_emit_message(true, 'penstock', 'bé\"at')")
                    session.execute("SELECT pg_logical_emit_message(true, 'others', 'no')")
                if some.random() < 0.8:
                    session.rollback() if some.random() < 0.2 else session.commit()
            except psycopg.Error:
                session.rollback()
        for session in (one, two):
            session.commit()


@pytest.fixture
def slots(database: Database) -> Slots:
    database.run(*SCHEMA)
    return Slots(database, [TableName.parse(name) for name in TABLES])


def test_format_2_tells_a_random_workload_as_pgoutput_does(
    database: Database, slots: Slots
) -> None:
    run_random(database, SEED, 400)
    expected, found = slots.pgoutput(), slots.wal2json(2)
    kinds = {seen.change.kind for each in expected for seen in each.changes}
    assert kinds == set("IUDT")
    assert any(UNCHANGED in seen.change.new.values() for e in expected for seen in e.changes)
    for left, right in zip(expected, found, strict=True):
        assert_told(left, right)


@pytest.mark.parametrize("pretty", [False, True])
def test_format_1_tells_the_same_but_truncates_and_some_nulls_of_old_rows(
    database: Database, slots: Slots, pretty: bool
) -> None:
    run_random(database, SEED + 1, 400)
    expected, found = slots.pgoutput(), slots.wal2json(1, pretty=pretty)
    assert any(seen.change.kind == "T" for each in expected for seen in each.changes)
    unknown = 0
    for left, right in zip(without_truncates(expected), found, strict=True):
        for one, other in zip(left.changes, right.changes, strict=True):
            if one.change.old != other.change.old:
                lost = one.change.old.keys() - other.change.old.keys()
                assert {one.change.old[name] for name in lost} == {None}
                other.change.old |= dict.fromkeys(lost)
                unknown += 1
        assert_told(left, right)
    total = sum(len(each.changes) for each in expected)
    assert unknown < total / 10


def assert_told(expected: Committed, found: Committed) -> None:
    """The same transaction, and no more than the formats say of a table's columns."""
    for one, other in zip(expected.changes, found.changes, strict=True):
        assert (one.table, one.change.kind) == (other.table, other.change.kind)
        assert other.change.old == one.change.old
        new = one.change.new
        # One that no document has shown yet is not in the table.
        assert {new[name] for name in new.keys() - other.change.new.keys()} <= {UNCHANGED}
        # One that was dropped could have been left out; the next insert shows it.
        dropped = other.change.new.keys() - new.keys()
        assert {other.change.new[name] for name in dropped} <= {UNCHANGED}
        shared = new.keys() & other.change.new.keys()
        assert {n: other.change.new[n] for n in shared} == {n: new[n] for n in shared}
        kinds = dict(other.columns)
        assert all(kinds.get(name, kind) == kind for name, kind in one.columns)
        if one.change.kind == "I":
            assert one.columns == other.columns
    assert found.end_lsn == expected.end_lsn
    assert (found.xid, found.committed_us) == (expected.xid, expected.committed_us)
    assert found.messages == expected.messages


# --- types and values ---------------------------------------------------------------------------

# Type, and values of it.
TYPED = [
    ("smallint", "-32768", "32767"),
    ("integer", "-2147483648", "0"),
    ("bigint", "9223372036854775807", "-1"),
    ("real", "1.17549435e-38", "16777217"),
    ("double precision", "1.7976931348623157e308", "0.1", "-0"),
    ("numeric", "1" + "0" * 300 + ".000", "0." + "0" * 200 + "1", "-5"),
    ("numeric(30,10)", "12345678901234567890.0123456789", "0"),
    ("numeric(5,-2)", "1234500"),
    ("boolean", "true", "false"),
    ("text", "", "null", 'é\n\t"\\/\x01\x7f😀', '{"value":null},{'),
    ("varchar(30)", "x" * 30),
    ("char(5)", "ab"),
    ('"char"', "x"),
    ("name", "some"),
    ("bytea", r"\x", r"\x00ff5c22"),
    ("date", "0044-03-15 BC", "infinity", "2026-11-18"),
    ("time(3)", "23:59:59.999"),
    ("timetz", "12:00:00+05:30"),
    ("timestamp", "294276-12-31 23:59:59.999999", "-infinity"),
    ("timestamptz(3)", "2026-11-18 12:14:13.5+02"),
    ("interval", "1 year 2 months -3 days 04:05:06.789"),
    ("interval day to second(2)", "1 day 2.5 s"),
    ("interval year to month", "1 year"),
    ("interval(3)", "1.2345 s"),
    ("uuid", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
    ("json", '{"a" :  1.50, "é": "\\u00e9"}', "null"),
    ("jsonb", '{"a":[1,null,"q\\""]}'),
    ("int[]", "{1,NULL,3}", "{{1,2},{3,4}}"),
    ("text[]", '{"a,b","q\\"","",NULL,"NULL"}'),
    ("numeric(10,2)[]", "{1.5,NaN}"),
    ("varchar(7)[]", "{a}"),
    ("timestamptz(3)[]", '{"2026-11-18 12:14:13.5+02"}'),
    ('"char"[]', "{x,y}"),
    ("inet", "10.0.0.1/8"),
    ("macaddr", "08:00:2b:01:02:03"),
    ("bit(3)", "101"),
    ("bit varying(8)", "10101"),
    ("money", "-12.34"),
    ("int4range", "[1,5)"),
    ("tstzmultirange", "{}"),
    ("point", "(1.5,-2)"),
    ("box", "(1,1),(0,0)"),
    ("oid", "4294967295"),
    ("xid8", "18446744073709551615"),
    ("pg_lsn", "16/B374D848"),
    ("regclass", "pg_class"),
    ("tsvector", "a:1 b:2"),
    ("app.mood", "sad, ok"),
    ("app.mood[]", '{"sad, ok"}'),
    ('app."Mood ""x"""', "q"),
    ('app."Mood ""x"""[]', "{q}"),
    ('"Odd, schema".mood', "q"),
    ('"Odd, schema"."Mood ""x"""', "q"),
    ("app.pair", "(1,x)"),
    ("app.positive", "7"),
    ("app.flag", "t"),
    ("app.raw", r"\xbeef"),
    ("app.price", "1.50"),
]
TYPES_SCHEMA = (
    "CREATE SCHEMA app",
    'CREATE SCHEMA "Odd, schema"',
    "CREATE TYPE app.mood AS ENUM ('sad, ok')",
    'CREATE TYPE app."Mood ""x""" AS ENUM (\'q\')',
    "CREATE TYPE \"Odd, schema\".mood AS ENUM ('q')",
    'CREATE TYPE "Odd, schema"."Mood ""x""" AS ENUM (\'q\')',
    "CREATE TYPE app.pair AS (a int, b text)",
    "CREATE DOMAIN app.positive AS bigint CHECK (value > 0)",
    "CREATE DOMAIN app.flag AS boolean",
    "CREATE DOMAIN app.raw AS bytea",
    "CREATE DOMAIN app.price AS numeric",
)


def make_typed(database: Database) -> Slots:
    database.run(*TYPES_SCHEMA)
    columns = ", ".join(f"c{place} {kind[0]}" for place, kind in enumerate(TYPED))
    database.run(f"CREATE TABLE typed (id int PRIMARY KEY, {columns})")
    database.run("CREATE TABLE typed_full (LIKE typed INCLUDING ALL)")
    database.run("ALTER TABLE typed_full REPLICA IDENTITY FULL")
    return Slots(database, [TableName("public", "typed"), TableName("public", "typed_full")])


def fill_typed(database: Database, table: str) -> None:
    longest = max(len(values) for _, *values in TYPED)
    with database.connect() as connection:
        for number in range(longest):
            row = [values[number % len(values)] for _, *values in TYPED]
            marks = ", ".join(f"%s::{kind}" for kind, *_ in TYPED)
            insert = f"INSERT INTO {table} VALUES (%s, {marks})"
            connection.execute(insert.encode(), [number, *row])
        connection.execute(f"INSERT INTO {table} (id) VALUES (100)".encode())
        connection.execute(f"UPDATE {table} SET id = id + 1000 WHERE id < 3".encode())
        connection.execute(f"UPDATE {table} SET c0 = 5".encode())
        connection.execute(f"DELETE FROM {table}".encode())


@both_formats
@pytest.mark.parametrize("table", ["typed", "typed_full"])
def test_values_of_all_types_are_what_pgoutput_says(
    database: Database, version: FormatVersion, table: str
) -> None:
    slots = make_typed(database)
    fill_typed(database, table)
    expected, found = slots.pgoutput(), slots.wal2json(version)
    for left, right in zip(expected, found, strict=True):
        for one, other in zip(left.changes, right.changes, strict=True):
            assert one.columns == other.columns
            assert one.change.new == other.change.new
            if version == 1 and {*one.change.old.values()} == {b"100", None}:
                # All but the key is NULL, or not sent.
                assert other.change.old == {"id": b"100"}
            else:
                assert one.change.old == other.change.old


def test_the_spelling_of_a_type_says_its_name_and_modifier(database: Database) -> None:
    make_typed(database)
    with closing(database.connect()) as connection:
        connection.execute("SET search_path = pg_catalog")
        rows = connection.execute(
            "SELECT format_type(atttypid, atttypmod), atttypid, atttypmod, nspname, typname"
            " FROM pg_attribute JOIN pg_type t ON t.oid = atttypid"
            " JOIN pg_namespace n ON n.oid = typnamespace"
            " WHERE attrelid = 'public.typed'::regclass AND attnum > 0"
        ).fetchall()
    assert len(rows) == len(TYPED) + 1
    for text, oid, modifier, schema, name in rows:
        # wal2json writes this one so.
        text = "char" if text == '"char"' else text
        assert type_name(text) == (schema, name), text
        if oid < 10_000:
            assert type_modifier(text) == modifier, text


@both_formats
def test_without_type_names_values_are_the_same(database: Database, version: FormatVersion) -> None:
    slots = make_typed(database)
    fill_typed(database, "typed")
    with_types, without = slots.wal2json(version), slots.wal2json(version, types=False)
    for one, other in zip(with_types, without, strict=True):
        assert [seen.change for seen in one.changes] == [seen.change for seen in other.changes]


# --- what wal2json cannot say -------------------------------------------------------------------


@both_formats
@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity"])
@pytest.mark.parametrize("kind", ["numeric", "real", "double precision"])
def test_numbers_that_json_lacks_are_refused_or_null(
    database: Database, version: FormatVersion, value: str, kind: str
) -> None:
    database.run(f"CREATE TABLE t (id int PRIMARY KEY, a {kind} NOT NULL, b {kind})")
    slots = Slots(database, [TableName("public", "t")])
    database.run(f"INSERT INTO t VALUES (1, 1.5, '{value}')")
    (found,) = slots.wal2json(version)
    assert found.changes[0].change.new == {"id": b"1", "a": b"1.5", "b": None}
    (expected,) = slots.pgoutput()
    assert expected.changes[0].change.new["b"] == value.encode()
    database.run(f"INSERT INTO t VALUES (2, '{value}', NULL)")
    with pytest.raises(NumberNotInJson, match=r"column a of public\.t"):
        slots.wal2json(version)


@both_formats
def test_only_format_2_has_all_numbers_of_a_domain(
    database: Database, version: FormatVersion
) -> None:
    """Format 1 writes them as those of the type below."""
    database.run("CREATE DOMAIN free AS numeric", "CREATE TABLE t (id int PRIMARY KEY, a free)")
    slots = Slots(database, [TableName("public", "t")])
    database.run("INSERT INTO t VALUES (1, 'NaN')")
    (found,) = slots.wal2json(version)
    assert found.changes[0].change.new["a"] == (None if version == 1 else b"NaN")


@both_formats
def test_a_domain_of_a_domain_is_text(database: Database, version: FormatVersion) -> None:
    database.run(
        "CREATE DOMAIN inner_one AS int",
        "CREATE DOMAIN outer_one AS inner_one",
        "CREATE TABLE t (id int PRIMARY KEY, a outer_one)",
    )
    slots = Slots(database, [TableName("public", "t")])
    database.run("INSERT INTO t VALUES (1, 5)")
    (found,), (expected,) = slots.wal2json(version), slots.pgoutput()
    assert expected.changes[0].columns == (("id", "integer"), ("a", "integer"))
    assert found.changes[0].columns == (("id", "integer"), ("a", "text"))
    assert found.changes[0].change == expected.changes[0].change


def test_format_1_gives_a_domain_the_modifier_of_its_base_type(database: Database) -> None:
    database.run(
        "CREATE DOMAIN price AS numeric(10,2)", "CREATE TABLE t (id int PRIMARY KEY, a price)"
    )
    slots = Slots(database, [TableName("public", "t")])
    database.run("INSERT INTO t VALUES (1, 5)")
    kinds = [found[0].changes[0].columns[1][1] for found in (slots.pgoutput(), slots.wal2json(2))]
    assert kinds == ["text", "text"]
    assert slots.wal2json(1)[0].changes[0].columns[1][1] == "decimal(10,2)"


@both_formats
def test_generated_columns_are_there(database: Database, version: FormatVersion) -> None:
    """pgoutput of 15 leaves them out."""
    database.run(
        "CREATE TABLE t (id int PRIMARY KEY, a int, b int GENERATED ALWAYS AS (a * 2) STORED)"
    )
    slots = Slots(database, [TableName("public", "t")])
    database.run("INSERT INTO t VALUES (1, 5)", "UPDATE t SET a = 6")
    assert [seen.change.new for each in slots.wal2json(version) for seen in each.changes] == [
        {"id": b"1", "a": b"5", "b": b"10"},
        {"id": b"1", "a": b"6", "b": b"12"},
    ]


@both_formats
def test_updates_of_a_table_without_identity_are_not_there(
    database: Database, version: FormatVersion
) -> None:
    """wal2json says so in a warning, and pgoutput's publication would not let them happen."""
    database.run("CREATE TABLE t (a int)")
    slots = Slots(database, [TableName("public", "t")])
    database.run("DROP PUBLICATION p")
    database.run("INSERT INTO t VALUES (1)", "UPDATE t SET a = 2", "DELETE FROM t")
    changes = [seen.change for each in slots.wal2json(version) for seen in each.changes]
    assert changes == [Image("I", {"a": b"1"})]


@both_formats
def test_partitions_come_under_their_own_names(database: Database, version: FormatVersion) -> None:
    database.run(
        "CREATE TABLE t (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE t_1 PARTITION OF t FOR VALUES FROM (0) TO (10)",
    )
    slots = Slots(database, [TableName("public", "t"), TableName("public", "t_1")])
    database.run("INSERT INTO t VALUES (1)")
    (found,) = slots.wal2json(version)
    assert [seen.table for seen in found.changes] == ["public.t_1"]


def test_options_name_tables_as_they_are(database: Database) -> None:
    odd = ["a b", "a.b", "a,b", "a*", "*", "a\\b", "a'b", 'a"b', "a\tb", " a", "Ä", "a\\"]
    tables = [TableName(odd[n - 1], odd[n]) for n in range(len(odd))]
    others = [TableName(odd[n - 1], odd[n - 2]) for n in range(len(odd))]
    database.run(*(f"CREATE SCHEMA {quote(name)}" for name in odd))
    database.run(*(f"CREATE TABLE {table.sql} (id int)" for table in tables + others))
    slots = Slots(database, tables)
    with database.connect() as connection, connection.transaction():
        for table in tables + others:
            connection.execute(f"INSERT INTO {table.sql} VALUES (1)".encode())
    for table in tables:
        slots.tables = [table, TableName("no such", "table")]
        for version in VERSIONS:
            (found,) = slots.wal2json(version)
            assert [seen.table for seen in found.changes] == [str(table)]
