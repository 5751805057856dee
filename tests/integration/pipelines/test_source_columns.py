"""Columns of all rows of a table: packed by the server they are what they are when they are copied,
value by value.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg import sql

from penstock.errors import TableRewritten
from penstock.pipelines import source_columns
from penstock.pipelines.binding import bind, types_of
from penstock.pipelines.copied_rows import copied_rows
from penstock.pipelines.source_columns import rows_in_columns
from penstock.postgres import forms, packing, pages
from penstock.postgres.embedded import EmbeddedPostgres
from penstock.postgres.snapshots import snapshot
from penstock.postgres.tables import read_tables
from support.database import Database
from support.reading_columns import explain, packed_and_copied, read, values
from support.targets import declared

# By type: values that are usual, and those at its ends.
VALUES: dict[str, Sequence[str]] = {
    "bool": ("t", "f"),
    "int2": ("0", "-1", "32767", "-32768"),
    "int4": ("0", "-1", "2147483647", "-2147483648"),
    "int8": ("0", "9223372036854775807", "-9223372036854775808"),
    "oid": ("0", "4294967295"),
    "xid": ("0", "4294967295"),
    "float4": ("0", "-0", "0.1", "NaN", "Infinity", "-Infinity", "1e-45", "3.4028235e38"),
    "float8": ("0", "-0", "0.1", "NaN", "Infinity", "5e-324", "1.7976931348623157e308"),
    "numeric(10,2)": ("0", "-1.50", "99999999.99", "NaN"),
    "numeric(3,-2)": ("100", "99900"),
    "text": ("", "a", 'quo"te,\n\\N', "\u00e9\U0001f600", "NULL", " ", "x" * 70),
    "varchar(5)": ("", "ab", "abcde"),
    "char(3)": ("", "a", "abc"),
    '"char"': ("", "x"),
    "name": ("n", "\u00e9"),
    "bytea": ("\\x", "\\x00ff", "\\x" + "ab" * 40),
    "uuid": ("00000000-0000-0000-0000-000000000000", "f81d4fae-7dec-11d0-a765-00a0c91e6bf6"),
    "date": (
        *("2026-01-01", "0001-01-01", "9999-12-31", "10000-01-01", "0001-12-31 BC"),
        *("infinity", "-infinity", "1969-12-31", "4713-01-01 BC", "5874897-12-31"),
    ),
    "timestamp": (
        *("2026-01-01 12:00", "0001-01-01 00:00", "9999-12-31 23:59:59.999999", "-infinity"),
        *("10000-01-01", "0001-12-31 23:59:59.999999 BC", "infinity", "1969-12-31 23:59:59.9"),
        "294276-12-31 23:59:59.999999",
    ),
    "timestamptz": (
        *("2026-01-01 12:00+02", "0001-01-01 00:00+00", "9999-12-31 23:59:59.999999+00"),
        *("10000-01-01+00", "10000-01-01 00:30+01", "0001-01-01 00:00+01", "infinity", "-infinity"),
    ),
    "timestamptz(0)": ("2026-01-01 12:00:00.5+00",),
    "time": ("12:00", "24:00", "00:00:00.000001"),
    "interval": ("1 day", "24:00", "-1 year"),
    "inet": ("192.168.1.1", "::1/64"),
    "money": ("$1.50",),
    "timetz": ("12:00+02",),
    "macaddr": ("08:00:2b:01:02:03",),
    "macaddr8": ("08:00:2b:01:02:03:04:05",),
    "cidr": ("10.0.0.0/8", "::/0"),
    "pg_lsn": ("0/0", "FF/FFFFFFFF"),
    "xid8": ("18446744073709551615",),
    "cid": ("1",),
    "mood": ("sad", "a b"),
    "word": ("", "domain"),
    "price": ("1.50", "NaN"),
    "feeling": ("sad",),
    "moment": ("2026-01-01 12:00+02", "infinity"),
}
COLUMNS = [f"c{number}" for number in range(len(VALUES))]
FEW = settings(
    max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
row = st.tuples(*(st.none() | st.sampled_from(values) for values in VALUES.values()))


@pytest.fixture
def every_type(database: Database) -> Database:
    typed = ", ".join(f"{name} {kind}" for name, kind in zip(COLUMNS, VALUES, strict=True))
    database.run(
        "CREATE TYPE mood AS ENUM ('sad', 'a b')",
        "CREATE DOMAIN word AS text",
        "CREATE DOMAIN price AS numeric(10,2)",
        "CREATE DOMAIN moment AS timestamptz",
        "CREATE DOMAIN feeling AS mood",
        f"CREATE TABLE notifications ({typed})",
    )
    return database


def insert(database: Database, rows: Sequence[Sequence[str | None]]) -> None:
    with (
        database.connect() as connection,
        connection.cursor() as cursor,
        cursor.copy("COPY notifications FROM STDIN") as copy,
    ):
        for each in rows:
            copy.write_row(each)


def test_values_of_every_type_are_packed_as_they_are_copied(
    every_type: Database,
) -> None:  # M4.6, M5.5
    """Those that a type cannot hold, too; by themselves, and together with rows that are equal in
    some columns.
    """
    ours = {kind.strip('"').partition("(")[0] for kind in VALUES}
    ours |= {"bpchar"} if "char(3)" in VALUES else set()
    assert ours > {*forms._NUMBERS, *forms._TEXTS, *forms._SMALL_TEXTS}
    width = max(map(len, VALUES.values()))
    rows = [
        tuple(each[number] if number < len(each) else None for each in VALUES.values())
        for number in range(width + 1)
    ]
    insert(every_type, [*rows, *rows])
    packed, copied = packed_and_copied(every_type, *COLUMNS)
    assert len(packed) == 2 * len(rows)
    assert packed == copied
    assert any(True in each[1::2] for each in packed)


@FEW
@given(rows=st.lists(row, max_size=20))
def test_any_rows_are_packed_as_they_are_copied(
    every_type: Database, rows: list[tuple[str | None, ...]]
) -> None:  # M4.6, M5.5
    every_type.run("TRUNCATE notifications")
    insert(every_type, rows)
    packed, copied = packed_and_copied(every_type, *COLUMNS)
    assert len(packed) == len(rows)
    assert packed == copied


def test_rows_come_once_whatever_pages_and_partitions_they_are_in(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:  # M5.5
    """Partitions of other sizes, an empty one, and one below another."""
    monkeypatch.setattr(pages, "_PAGES_AT_ONCE", 8)
    database.run(
        "CREATE TABLE notifications (id int, status text) PARTITION BY RANGE (id)",
        "CREATE TABLE few PARTITION OF notifications FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE many PARTITION OF notifications FOR VALUES FROM (10) TO (10000)"
        " PARTITION BY RANGE (id)",
        "CREATE TABLE more PARTITION OF many FOR VALUES FROM (10) TO (9000)",
        "CREATE TABLE none PARTITION OF many FOR VALUES FROM (9000) TO (10000)",
        "INSERT INTO notifications SELECT n, n::text FROM generate_series(0, 8999) AS n",
        # Pages without a row, and pages with a few.
        "DELETE FROM notifications WHERE id BETWEEN 3000 AND 6000 AND id % 997 > 0",
    )
    with snapshot(database.dsn()) as source:
        found = list(read(source, "id", "status"))
    assert len(found) > 5
    ids = [each for each, _, status, _ in values(found) if str(each) == status]
    assert sorted(ids) == [n for n in range(9000) if not 3000 <= n <= 6000 or n % 997 == 0]


@pytest.mark.parametrize(
    "partitioned", ["", " PARTITION BY RANGE (id)"], ids=["a table", "without a partition"]
)
def test_a_table_without_rows_has_none(database18: Database, partitioned: str) -> None:  # M5.5
    database18.run(f"CREATE TABLE notifications (id int, status text){partitioned}")
    with snapshot(database18.dsn()) as source:
        assert list(read(source, "id", "status")) == []


def test_rows_of_tables_that_inherit_are_not_among_them(database18: Database) -> None:  # M5.5
    database18.run(
        "CREATE TABLE notifications (id int)",
        "CREATE TABLE more () INHERITS (notifications)",
        "INSERT INTO notifications VALUES (1)",
        "INSERT INTO more VALUES (2)",
    )
    assert packed_and_copied(database18, "id") == ([(1, False)], [(1, False)])


def test_what_happens_after_the_snapshot_is_not_among_them(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:  # M5.5
    """Rows move to other pages, vacuum looks at those they were in, and pages are added."""
    monkeypatch.setattr(pages, "_PAGES_AT_ONCE", 3)
    database.run(
        "CREATE TABLE notifications (id int, status text)",
        "INSERT INTO notifications SELECT n, repeat('x', 100) FROM generate_series(1, 2000) AS n",
    )
    with snapshot(database.dsn()) as source:
        reading = read(source, "id", "status")
        first = next(reading)
        database.run(
            "UPDATE notifications SET status = 'changed' WHERE id % 2 = 0",
            "DELETE FROM notifications WHERE id % 3 = 0",
            "INSERT INTO notifications SELECT n, 'new' FROM generate_series(3000, 9000) AS n",
            "VACUUM notifications",
        )
        found = values([first, *reading])
    assert sorted(found) == [(n, False, "x" * 100, False) for n in range(1, 2001)]


@pytest.fixture
def copied(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The conditions of what is copied."""
    conditions: list[str] = []

    def copying(connection: Any, rows: Any, columns: Any, condition: sql.Composable) -> Any:
        conditions.append(condition.as_string())
        return copied_rows(connection, rows, columns, condition)

    monkeypatch.setattr(source_columns, "copied_rows", copying)
    return conditions


def test_pages_with_long_texts_are_copied(
    database18: Database, monkeypatch: pytest.MonkeyPatch, copied: list[str]
) -> None:  # M5.5: of a range that is packed all is in memory at once
    monkeypatch.setattr(pages, "_PAGES_AT_ONCE", 1)
    database18.run(
        "CREATE TABLE notifications (id int, body text)",
        "INSERT INTO notifications SELECT n, repeat('y', 256) FROM generate_series(1, 500) AS n",
        "INSERT INTO notifications VALUES (501, repeat('x', 257))",
        "INSERT INTO notifications SELECT n, repeat('z', 256) FROM generate_series(502, 900) AS n",
    )
    with snapshot(database18.dsn()) as source:
        found = values(list(read(source, "id", "body")))
    assert sorted(each for _, _, each, _ in found) == list(range(1, 901))
    assert {len(body) for body, *_ in found} == {256, 257}
    page = database18.value("SELECT ctid FROM notifications WHERE id = 501").partition(",")[0]
    assert copied == [f"ctid >= '{page},0)' AND ctid < '({int(page[1:]) + 1},0)'"]


def test_where_long_texts_are_usual_the_rest_is_copied_at_one_go(
    database18: Database, monkeypatch: pytest.MonkeyPatch, copied: list[str]
) -> None:  # M5.5: else all of it would be made twice
    monkeypatch.setattr(pages, "_PAGES_AT_ONCE", 1)
    database18.run(
        "CREATE TABLE notifications (id int, body text)",
        "INSERT INTO notifications SELECT n, repeat('y', 100) FROM generate_series(1, 200) AS n",
        # Stored in a few hundred bytes each.
        "INSERT INTO notifications SELECT n, repeat('x', 30000) FROM generate_series(201, 400) n",
    )
    with snapshot(database18.dsn()) as source:
        found = values(list(read(source, "id", "body")))
    assert sorted(each for _, _, each, _ in found) == list(range(1, 401))
    assert len(copied) == 2
    assert "ctid <" not in copied[1]


def test_values_that_take_no_room_in_a_page_take_little_in_memory(
    database18: Database, monkeypatch: pytest.MonkeyPatch, copied: list[str]
) -> None:  # M5.5
    """A column that was added later, with a default, is in no page."""
    database18.run(
        "CREATE TABLE notifications (id int)",
        "INSERT INTO notifications SELECT n FROM generate_series(1, 150000) AS n",
        "ALTER TABLE notifications ADD body text NOT NULL DEFAULT repeat('y', 256)",
    )
    sizes: list[int] = []
    unpacked = source_columns._unpacked

    def measured(rows: packing.PackedRows, columns: Any) -> Any:
        sizes.append(max(len(each.data) for each in rows.columns))
        return unpacked(rows, columns)

    monkeypatch.setattr(source_columns, "_unpacked", measured)
    with snapshot(database18.dsn()) as source:
        assert sum(rows.count for rows in read(source, "id", "body")) == 150_000
    assert copied == []
    assert 20_000_000 < max(sizes) < 40_000_000


@pytest.mark.parametrize("ctid", [False, True], ids=["its columns", "and ctid"])
def test_a_role_that_may_read_the_columns_reads_them(
    database: Database, copied: list[str], ctid: bool
) -> None:  # M5.5, M7.5: of a partitioned table, without any right on its partitions
    role = f"reader_of_{database.name}"
    database.run(
        "CREATE TABLE notifications (id int, status text, secret text) PARTITION BY RANGE (id)",
        "CREATE TABLE one PARTITION OF notifications FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE two PARTITION OF notifications FOR VALUES FROM (10) TO (20)",
        "INSERT INTO notifications SELECT n, n::text FROM generate_series(0, 19) AS n",
        f"CREATE ROLE {role}",
        f"GRANT SELECT (id, status{', ctid' if ctid else ''}) ON notifications TO {role}",
    )
    try:
        with snapshot(database.dsn()) as source:
            source.connection.execute(f"SET ROLE {role}".encode())
            assert len(values(list(read(source, "id", "status")))) == 20
    finally:
        database.run(f"DROP OWNED BY {role}", f"DROP ROLE {role}")
    assert copied == ([] if ctid else ["true"])


def test_a_partition_that_comes_with_rows_while_others_are_read_is_noticed(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:  # M5.5, M5.6: some of its rows would count and others not
    monkeypatch.setattr(pages, "_PAGES_AT_ONCE", 2)
    database.run(
        "CREATE TABLE notifications (id int, status text) PARTITION BY RANGE (id)",
        "CREATE TABLE one PARTITION OF notifications FOR VALUES FROM (0) TO (10000)",
        "CREATE TABLE two (LIKE notifications)",
        "INSERT INTO notifications SELECT n, n::text FROM generate_series(0, 1999) AS n",
        "INSERT INTO two SELECT n, n::text FROM generate_series(10000, 12000) AS n",
    )
    with snapshot(database.dsn()) as source:
        reading = read(source, "id", "status")
        next(reading)
        database.run(
            "ALTER TABLE notifications ATTACH PARTITION two FOR VALUES FROM (10000) TO (20000)"
        )
        with pytest.raises(TableRewritten, match="got a partition while its rows were read"):
            list(reading)


def test_columns_of_documents_and_arrays_are_copied(
    database18: Database, monkeypatch: pytest.MonkeyPatch
) -> None:  # M5.5: how large they are shows only when they are printed
    monkeypatch.setattr(source_columns, "Packing", None)
    database18.run(
        "CREATE TABLE notifications (id int, doc jsonb)",
        """INSERT INTO notifications VALUES (1, '{"a": 1}')""",
    )
    config = declared(dimensions={"kind": "get_json_object(doc, '$.a')", "id": "id"})
    with snapshot(database18.dsn()) as source:
        tables = [each.table for each in config.sources]
        bound = bind(config, types_of(read_tables(source.connection, tables)), source.lsn)
        found = list(rows_in_columns(source.connection, bound, config.sources[0]))
    assert values(found) == [('{"a": 1}', False, 1, False)]


def test_a_column_that_should_not_be_null_and_is(database18: Database) -> None:  # M4.6
    """The catalog says NOT NULL of a column whose rows nobody has looked at."""
    database18.run(
        "CREATE TABLE notifications (id int, status text)",
        "INSERT INTO notifications VALUES (1, 'a'), (NULL, 'b'), (3, NULL), (4, 'd')",
        "ALTER TABLE notifications ADD CONSTRAINT has_id NOT NULL id NOT VALID",
    )
    packed, copied = packed_and_copied(database18, "id", "status")
    assert packed == copied
    assert (None, False, "b", False) in packed


@pytest.mark.parametrize("encoding", ["LATIN1", "EUC_JP", "SQL_ASCII"])
def test_text_of_other_encodings_is_read_as_it_is(
    server18: EmbeddedPostgres, encoding: str
) -> None:  # M4.6
    """Where letters take one byte that take two or three here."""
    text = "h\u00e9llo" if encoding != "EUC_JP" else "\u65e5\u672c"
    with Database(server18, f"encoded_{encoding.lower()}", encoding) as database:
        with database.connect() as connection:
            connection.execute(
                "CREATE TABLE notifications (id int, status text, padded char(7), at date)"
            )
            connection.execute(
                "INSERT INTO notifications VALUES (1, %s, %s, '2026-01-01'),"
                " (2, 'a', 'b', 'infinity')",
                [text, text],
            )
        packed, copied = packed_and_copied(database, "id", "status", "padded", "at")
    assert packed == copied
    assert text in {each[6] for each in packed}


@pytest.mark.parametrize("partitioned", [False, True], ids=["a table", "partitions"])
def test_a_range_of_pages_is_found_without_a_look_at_the_others(
    database: Database, partitioned: bool
) -> None:  # M5.5: else the time to read a table would grow with the square of its size
    database.run(
        "CREATE TABLE notifications (id int, status text)"
        + (" PARTITION BY HASH (id)" if partitioned else ""),
        *(
            f"CREATE TABLE p{n} PARTITION OF notifications"
            f" FOR VALUES WITH (MODULUS 3, REMAINDER {n})"
            for n in range(3 if partitioned else 0)
        ),
        # Nobody has analyzed it.
        "INSERT INTO notifications SELECT n, n::text FROM generate_series(1, 20000) AS n",
        f"ALTER DATABASE {database.name} SET enable_tidscan = off",
        f"ALTER DATABASE {database.name} SET max_parallel_workers_per_gather = 4",
        f"ALTER DATABASE {database.name} SET parallel_setup_cost = 0",
        f"ALTER DATABASE {database.name} SET parallel_tuple_cost = 0",
    )
    with snapshot(database.dsn()) as source, pytest.MonkeyPatch.context() as patched:
        patched.setattr(pages, "_PAGES_AT_ONCE", 12)
        plans: list[str] = []
        explain(source.connection, plans, patched)
        rows = list(read(source, "id", "status"))
    assert len(plans) == len(rows) > 5
    assert all("Tid Range Scan" in plan for plan in plans)
    assert not any("Seq Scan" in plan or "Gather" in plan for plan in plans)
