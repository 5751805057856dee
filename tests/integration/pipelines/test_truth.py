"""What an aggregate should be: the source's own tables at an exact position."""

from __future__ import annotations

import threading
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pytest

from penstock.decode.deltas import ROWS
from penstock.lsn import Lsn
from penstock.pipelines import grouped_by_postgres, grouped_by_spark
from penstock.pipelines.binding import bind, types_of
from penstock.pipelines.log_deltas import log_deltas
from penstock.pipelines.numbered_rows import division
from penstock.pipelines.source_columns import rows_in_columns
from penstock.pipelines.sums import rolled_up
from penstock.pipelines.truth import true_sums
from penstock.postgres import pages
from penstock.postgres.snapshots import snapshot
from penstock.postgres.tables import read_tables
from support.capturing import capturing
from support.database import Database
from support.targets import declared
from support.truth import COUNTS, NOTIFICATIONS, complete, no_spark, published, truth, truth_of


def test_values_that_are_equal_and_not_printed_alike_are_several_keys(
    database18: Database,
) -> None:  # M5.6: as they are in the log
    database18.run(
        "CREATE TABLE notifications (id int PRIMARY KEY, plain numeric, scaled numeric(5,2),"
        " span interval, blank bpchar, padded char(3), real double precision)",
        "INSERT INTO notifications VALUES (1, 1.0, 1.0, '1 day', 'a', 'a', 0),"
        " (2, 1.00, 1.00, '24:00:00', 'a ', 'a ', '-0')",
    )
    for name, keys in {
        "plain": {("1.0",): (1,), ("1.00",): (1,)},
        "scaled": {("1.00",): (2,)},
        "span": {("1 day",): (1,), ("24:00:00",): (1,)},
        "blank": {("a",): (1,), ("a ",): (1,)},
        "padded": {("a  ",): (2,)},
        "real": {("0",): (1,), ("-0",): (1,)},
    }.items():
        assert truth(database18, declared(dimensions=[name])) == keys, name


def test_keys_are_written_as_the_log_writes_them(
    database: Database, tmp_path: Path
) -> None:  # M5.5, M5.6: a target may hold them as text
    values = {
        "bool": "true",
        "char(3)": "'a'",
        "padded": "'a'",
        "inet": "'192.168.1.1'",
        "cidr": "'10.0.0.0/8'",
        "timestamp": "'2026-01-01'",
        "timestamptz": "'2026-01-01 12:00:00.5+02'",
        "numeric(5,1)": "1.5",
        "numeric": "1.50",
        "float8": "1e20",
        "float4": "0.1",
        "bytea": "'\\x00ff'",
        "interval": "'1 day'",
        "uuid": "'f81d4fae-7dec-11d0-a765-00a0c91e6bf6'",
        "mood": "'sad'",
        "jsonb": """'{"a": 1}'""",
        "money": "'1.50'",
        "bit(3)": "'101'",
        "time": "'12:00'",
        "name": "'x'",
        '"char"': "'x'",
        "text": "''",
        "smallint": "-1",
        "information_schema.cardinal_number": "7",
    }
    columns = [f"c{number}" for number in range(len(values))]
    typed = ", ".join(f"{name} {kind}" for name, kind in zip(columns, values, strict=True))
    database.run(
        "CREATE DOMAIN padded AS char(3)",
        "CREATE TYPE mood AS ENUM ('sad')",
        f"CREATE TABLE notifications (id int PRIMARY KEY, {typed})",
    )
    config = published(database, tmp_path)
    counts = declared(dimensions=columns)
    with capturing(config):
        with snapshot(database.dsn()) as source:
            start = source.lsn
        database.run(
            f"INSERT INTO notifications VALUES (1, {', '.join(values.values())})",
            "INSERT INTO notifications VALUES (2)",
        )
        with snapshot(database.dsn()) as source:
            bound, sums = truth_of(source, counts)
        log = complete(tmp_path, source.lsn)
    deltas = log_deltas(log, bound, start, source.lsn, no_spark)
    assert sums == rolled_up(deltas.sums, columns, ["count"])
    assert len(sums) == 2


def test_a_reading_that_is_broken_off_leaves_the_connection_and_no_thread(
    database18: Database, monkeypatch: pytest.MonkeyPatch
) -> None:  # M5.5: whoever is told of rows may end it
    monkeypatch.setattr(grouped_by_postgres, "_MOST_ROWS", 2)
    monkeypatch.setattr(grouped_by_postgres, "_AT_ONCE", 1)
    database18.run(
        *NOTIFICATIONS, "INSERT INTO notifications SELECT n, n::text FROM generate_series(1, 9) n"
    )
    told: list[int] = []

    def enough(rows: int) -> None:
        told.append(rows)
        if len(told) == 2:
            raise KeyboardInterrupt

    with snapshot(database18.dsn()) as source:
        types = types_of(read_tables(source.connection, [each.table for each in COUNTS.sources]))
        with pytest.raises(KeyboardInterrupt):
            true_sums(source.connection, bind(COUNTS, types, Lsn(1)), no_spark, enough)
        assert source.connection.execute("SELECT 1").fetchone() == (1,)
    assert told == [2, 4]
    assert "telling" not in {thread.name for thread in threading.enumerate()}


def test_rows_are_read_out_as_the_log_has_them(database18: Database) -> None:  # M5.5
    """For expressions, which Spark computes."""
    database18.run(
        "CREATE TABLE notifications (id int, padded char(3), word text, flag bool, at timestamptz,"
        " tags text[], price numeric(10,2))",
        """INSERT INTO notifications VALUES
           (1, 'a', '', true, '2026-01-01', '{"x,y",NULL}', 1.5),
           (2, 'a', NULL, false, NULL, NULL, NULL),
           (3, 'a', E'quo"te,\n\\\\.', NULL, 'infinity', '{}', 'NaN'),
           (4, NULL, 'NULL', NULL, NULL, NULL, 2)""",
    )
    config = declared(
        dimensions={
            "day": "to_date(at)",
            "first": "concat(padded, word, flag, tags[0])",
        },
        measures={"count": "count", "cost": "sum(price)"},
    )
    with snapshot(database18.dsn()) as source:
        (table,) = (each.table for each in config.sources)
        bound = bind(config, types_of(read_tables(source.connection, [table])), source.lsn)
        (counted,) = config.sources
        (read,) = rows_in_columns(source.connection, bound, counted)
        good, left_out = grouped_by_spark._good(read)
    columns = {each.name: read.by_row(each).to_pylist() for each in bound.summed.inputs}
    names = ("padded", "word", "flag", "tags", "price")
    rows = zip(*(columns[name] for name in names), strict=True)
    shown = [row for row, is_good in zip(rows, good, strict=True) if is_good]
    # The third has values that Spark cannot hold.
    assert shown == [
        ("a  ", "", True, ["x,y", None], Decimal("1.50")),
        ("a  ", None, False, None, None),
        (None, "NULL", None, None, Decimal("2.00")),
    ]
    # Once, though two of its values are such.
    assert {name: rows for name, rows in left_out.items() if rows} == {"at": 1}


def test_what_waits_for_spark_is_limited_in_bytes(
    database18: Database, monkeypatch: pytest.MonkeyPatch
) -> None:  # M5.5: little memory, whatever the rows are
    monkeypatch.setattr(pages, "_PAGES_AT_ONCE", 5)
    monkeypatch.setattr(grouped_by_spark, "_BYTES_AT_ONCE", 100_000)
    database18.run(
        "CREATE TABLE notifications (id int, body text)",
        "INSERT INTO notifications SELECT n, repeat(n::text, 20) FROM generate_series(1, 3000) n",
    )
    config = declared(dimensions={"first": "left(body, 1)"})
    with snapshot(database18.dsn()) as source:
        (table,) = config.sources
        types = types_of(read_tables(source.connection, [table.table]))
        bound = bind(config, types, source.lsn)
        found = list(grouped_by_spark._portions(source.connection, bound, division(bound), table))
    assert sum(rows for rows, _ in found) == 3000
    # No more than that and one range.
    assert 100_000 < max(portion.rows.nbytes for _, portion in found[:-1]) < 200_000


def test_where_no_column_is_read_the_server_counts(database18: Database) -> None:  # M5.2, M5.5
    database18.run(
        "CREATE TABLE notifications (id int)",
        "CREATE TABLE more () INHERITS (notifications)",
        "INSERT INTO more VALUES (7)",
    )
    config = declared(dimensions={"all": "'all'"})

    def portions() -> list[tuple[int, Any]]:
        with snapshot(database18.dsn()) as source:
            (table,) = config.sources
            types = types_of(read_tables(source.connection, [table.table]))
            bound = bind(config, types, source.lsn)
            found = grouped_by_spark._portions(source.connection, bound, division(bound), table)
            return [(rows, part.rows.rows[ROWS].to_pylist()) for rows, part in found]

    assert portions() == []
    database18.run("INSERT INTO notifications VALUES (1), (NULL), (3)")
    assert portions() == [(3, [3])]


def test_rows_with_values_that_spark_cannot_hold_are_left_out_and_counted_as_in_the_log(
    database: Database, tmp_path: Path
) -> None:  # M4.5, M4.6, M5.5, M5.6
    database.run(
        "CREATE TABLE notifications (id int PRIMARY KEY, at timestamp, price numeric(10,2),"
        " fee numeric(5,1), size int)"
    )
    config = published(database, tmp_path)
    kept = {
        ("2026-01-01 00:00:00.000000",): (2, Decimal("1.50"), Decimal("0.5"), 4),
        (None,): (1, Decimal("2.00"), Decimal(0), 0),
    }
    counts = declared(
        dimensions=["at"],
        measures={"count": "count", "cost": "sum(price)", "fees": "sum(fee)", "size": "sum(size)"},
    )
    with capturing(config):
        with snapshot(database.dsn()) as source:
            start = source.lsn
        database.run(
            "INSERT INTO notifications VALUES (1, '2026-01-01', 'NaN', 1, 2),"
            " (2, '2026-01-01', 1.5, 0.5, 4), (3, 'infinity', 1, 1, 1),"
            " (4, '0044-03-15 BC', 1, 1, 1), (5, '2026-01-01', NULL, NULL, NULL),"
            # Of one moment nothing is left.
            " (6, NULL, 2, NULL, NULL), (7, '2026-01-02', 'NaN', 'NaN', 1),"
            # Each row is told once, under the first reason.
            " (8, '-infinity', 1, 'NaN', 1), (9, '2026-01-01', 2, 'NaN', 1)"
        )
        with snapshot(database.dsn()) as source:
            bound, sums = truth_of(source, counts)
            found = true_sums(source.connection, bound, no_spark)
        log = complete(tmp_path, source.lsn)
    assert sums == kept
    assert len(found.sums) == 2
    assert found.skipped == {
        "public.notifications: a at that Spark cannot hold": 3,
        "public.notifications: a price that Spark cannot hold": 2,
        "public.notifications: a fee that Spark cannot hold": 1,
    }
    deltas = log_deltas(log, bound, start, source.lsn, no_spark)
    assert rolled_up(deltas.sums, list(counts.dimensions), list(counts.measures)) == kept
    assert deltas.skipped == found.skipped


def test_a_dimension_that_is_summed_too_is_left_out_once(
    database18: Database,
) -> None:  # M4.6, M5.5
    database18.run(
        "CREATE TABLE notifications (id int PRIMARY KEY, price numeric(10,2))",
        "INSERT INTO notifications VALUES (1, 'NaN'), (2, 1.5), (3, 1.5)",
    )
    config = declared(dimensions=["price"], measures={"count": "count", "cost": "sum(price)"})
    with snapshot(database18.dsn()) as source:
        bound, sums = truth_of(source, config)
        found = true_sums(source.connection, bound, no_spark)
    assert sums == {("1.50",): (2, Decimal("3.00"))}
    assert found.skipped == {"public.notifications: a price that Spark cannot hold": 1}


@pytest.mark.parametrize("chunked", [True, False])
def test_what_the_server_has_grouped_comes_by_portions(
    database18: Database, monkeypatch: pytest.MonkeyPatch, *, chunked: bool
) -> None:  # M5.5: little memory, also if there are millions of combinations
    monkeypatch.setattr(grouped_by_postgres, "_MOST_ROWS", 10)
    monkeypatch.setattr(grouped_by_postgres, "_AT_ONCE", 3)
    # With an older libpq.
    monkeypatch.setattr(psycopg.capabilities, "has_stream_chunked", lambda **_: chunked)
    database18.run(
        "CREATE TABLE notifications (id int PRIMARY KEY, price numeric(10,2))",
        "INSERT INTO notifications SELECT n, CASE WHEN n % 7 = 0 THEN numeric 'NaN' ELSE n END"
        "  FROM generate_series(1, 100) n",
    )
    config = declared(dimensions=["id"], measures={"count": "count", "cost": "sum(price)"})
    told: list[int] = []
    with snapshot(database18.dsn()) as source:
        bound, sums = truth_of(source, config)
        found = true_sums(source.connection, bound, no_spark, told.append)
    assert sums == {(str(n),): (1, n) for n in range(1, 101) if n % 7}
    assert found.skipped == {"public.notifications: a price that Spark cannot hold": 14}
    assert told == [*range(10, 101, 10), 100]


def test_several_tables_with_other_names_and_types(database18: Database) -> None:  # M4.5, M5.2
    database18.run(
        "CREATE TABLE notifications (id int PRIMARY KEY, status int, price int)",
        'CREATE TABLE "Old" (id int PRIMARY KEY, "Sta tus" bigint, price bigint)',
        "CREATE TABLE archive (id int PRIMARY KEY)",
        "INSERT INTO notifications VALUES (1, 1, 2147483647), (2, 1, 2147483647)",
        f'INSERT INTO "Old" VALUES (1, 1, {2**63 - 1}), (2, {2**40}, {2**63 - 1})',
        "INSERT INTO archive VALUES (1)",
    )
    off = {"table": "archive", "insert": False, "update": False, "delete": False}
    config = declared(
        sources=[
            "notifications",
            {"table": '"Old"', "aliases": {"status": ["status", "Sta tus"]}},
            off,
        ],
        dimensions=["status"],
        measures={"count": "count", "cost": "sum(price)"},
    )
    assert truth(database18, config) == {
        ("1",): (3, 2 * (2**31 - 1) + 2**63 - 1),
        (str(2**40),): (1, 2**63 - 1),
    }
    # What is told is rows, of all tables together. M7.1
    told: list[int] = []
    with snapshot(database18.dsn()) as source:
        bound, _ = truth_of(source, config)
        true_sums(source.connection, bound, no_spark, told.append)
    assert told == [2, 4]


def test_values_are_printed_as_in_the_log_whatever_the_role_s_settings(
    database18: Database,
) -> None:  # M4.6
    database18.run(
        "CREATE TABLE notifications (id int, at timestamptz, data bytea, span interval)",
        "INSERT INTO notifications VALUES (1, '2026-01-01 00:00+00', '\\x00ff', '1 day 2 hours')",
        f"ALTER DATABASE {database18.name} SET timezone = 'Asia/Tokyo'",
        f"ALTER DATABASE {database18.name} SET datestyle = 'German'",
        f"ALTER DATABASE {database18.name} SET bytea_output = 'escape'",
        f"ALTER DATABASE {database18.name} SET intervalstyle = 'iso_8601'",
    )
    assert truth(database18, declared(dimensions=["at", "data", "span"])) == {
        ("2026-01-01 00:00:00.000000Z", "\\x00ff", "1 day 02:00:00"): (1,)
    }


def test_types_are_those_that_the_log_will_give(database: Database) -> None:  # M4.6
    database.run(
        "CREATE DOMAIN positive AS int CHECK (value > 0)",
        "CREATE DOMAIN small AS positive",
        "CREATE DOMAIN price AS numeric(10,2)",
        "CREATE TYPE mood AS ENUM ('sad')",
        "CREATE TABLE notifications (id small, cost price, plain numeric, exact numeric(7,3),"
        " mood mood, moods mood[], tags text[], gone int, at timestamptz(3))",
        "ALTER TABLE notifications DROP COLUMN gone",
    )
    with database.connect() as connection:
        (table,) = (source.table for source in declared().sources)
        types = types_of(read_tables(connection, [table]))[table]
    assert {name: str(kind) for name, kind in types.items()} == {
        "id": "integer",
        # The log does not tell the modifier of a domain.
        "cost": "text",
        "plain": "text",
        "exact": "decimal(7,3)",
        "mood": "text",
        "moods": "text",
        "tags": "array of text",
        "at": "timestamptz",
    }
