"""What Spark makes of a source's rows is what it makes of the log."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from penstock.config import Config
from penstock.declarations import AggregateConfig
from penstock.pipelines import grouped_by_spark, grouped_rows
from penstock.pipelines.binding import bind, types_of
from penstock.pipelines.log_deltas import log_deltas
from penstock.pipelines.numbered_rows import numbered_rows
from penstock.pipelines.sums import rolled_up
from penstock.pipelines.truth import true_sums
from penstock.postgres import pages
from penstock.postgres.snapshots import snapshot
from penstock.postgres.tables import read_tables
from support.capturing import capture_config, capturing
from support.database import Database
from support.targets import declared
from support.truth import complete
from support.workload import PUBLICATION, SLOT

ZONE = "spark.sql.session.timeZone"


@pytest.fixture(autouse=True)
def in_london(spark: SparkSession) -> Iterator[None]:
    """As a session is where TZ says so."""
    before = spark.conf.get(ZONE)
    spark.conf.set(ZONE, "Europe/London")
    yield
    spark.conf.set(ZONE, str(before))


def captured(database: Database, path: Path, *tables: str) -> Config:
    database.run(f"CREATE PUBLICATION {PUBLICATION} FOR TABLE {', '.join(tables)}")
    database.create_slot(SLOT)
    return capture_config(database.dsn(), path, tables=tables)


def both(
    database: Database, path: Path, spark: SparkSession, counts: AggregateConfig, *changes: str
) -> tuple[Any, Any]:
    """What changes add up to, by the tables and by the log; each with what was left out."""
    tables = [source.table for source in counts.sources]
    names, measures = list(counts.dimensions), list(counts.measures)
    with capturing(captured(database, path, *(table.sql for table in tables))):
        with snapshot(database.dsn()) as source:
            start = source.lsn
        database.run(*changes)
        with snapshot(database.dsn()) as source:
            bound = bind(counts, types_of(read_tables(source.connection, tables)), source.lsn)
            truth = true_sums(source.connection, bound, lambda: spark)
        log = complete(path, source.lsn)
    spark.conf.set(ZONE, "Europe/London")
    deltas = log_deltas(log, bound, start, source.lsn, lambda: spark)
    return (
        (rolled_up(truth.sums, names, measures), truth.skipped),
        (rolled_up(deltas.sums, names, measures), deltas.skipped),
    )


def test_moments_mean_the_same_in_every_session(
    database18: Database, tmp_path: Path, spark: SparkSession
) -> None:  # M4.6, M5.5, M5.6
    database18.run(
        "CREATE TABLE notifications (id int PRIMARY KEY, at timestamp, created_at timestamptz,"
        " seen timestamp[])"
    )
    counts = declared(
        dimensions={
            "hour": "hour(at)",
            "day": "to_date(at)",
            "utc_hour": "hour(created_at)",
            "bst_date": "to_date(from_utc_timestamp(created_at, 'Europe/London'))",
            "shifted": "to_date(to_utc_timestamp(at, 'Europe/London'))",
            "seen": "hour(seen[0])",
            "seconds": "unix_timestamp(created_at)",
            "at": "at",
            "second": "created_at",
        }
    )
    # The hour that London leaves out, the one it has twice, and the evening before a summer's day.
    moments = ("2026-03-29 01:30:00", "2026-10-25 01:30:00", "2026-07-01 23:30:00.123456")
    rows = [
        f"({number}, '{at}', '{at}+00', '{{\"{at}\"}}')" for number, at in enumerate(moments, 1)
    ]
    by_tables, by_log = both(
        database18,
        tmp_path,
        spark,
        counts,
        f"INSERT INTO notifications VALUES {', '.join(rows)}, (4, 'infinity', NULL, NULL),"
        " (5, NULL, NULL, '{NULL}')",
    )
    assert by_tables == by_log
    found, left_out = by_tables
    assert left_out == {"public.notifications: a at that Spark cannot hold": 1}
    with database18.connect() as connection:
        expected = connection.execute(
            "SELECT extract(hour FROM at)::int::text, at::date::text,"
            " extract(hour FROM created_at AT TIME ZONE 'UTC')::int::text,"
            " (created_at AT TIME ZONE 'Europe/London')::date::text,"
            " ((at AT TIME ZONE 'Europe/London') AT TIME ZONE 'UTC')::date::text,"
            " extract(hour FROM seen[1])::int::text,"
            " trunc(extract(epoch FROM created_at))::bigint::text"
            " FROM notifications WHERE id <> 4"
        ).fetchall()
    assert sorted(map(str, (key[:7] for key in found))) == sorted(map(str, expected))


def test_columns_of_several_tables_are_read_as_what_they_are(
    database18: Database, tmp_path: Path, spark: SparkSession
) -> None:  # M4.6, M5.2, M5.5
    """0.1 as a real is not 0.1 as a double."""
    columns = {
        "size": ("real", "double precision", "0.1"),
        "price": ("numeric(5,1)", "numeric(10,3)", "1.5"),
        "number": ("int", "bigint", "7"),
        "amount": ("smallint", "numeric(9,2)", "8"),
        "code": ("char(3)", "char(5)", "'a'"),
        "sizes": ("real[]", "double precision[]", "'{0.1,NULL}'"),
    }
    for place, table in enumerate(("notifications", "others")):
        typed = ", ".join(f"{name} {kinds[place]}" for name, kinds in columns.items())
        database18.run(f"CREATE TABLE {table} (id int PRIMARY KEY, {typed})")
    values = ", ".join(value for *_, value in columns.values())
    changes = [f"INSERT INTO {table} VALUES (1, {values})" for table in ("notifications", "others")]
    sources = ["notifications", "others"]
    measures = {"count": "count", "cost": "sum(amount)"}
    plain = declared(sources=sources, dimensions=list(columns)[:-1], measures=measures)
    dimensions = {name: f"{name} || ''" for name in columns if name != "sizes"}
    computed = declared(
        sources=sources, dimensions={**dimensions, "sizes": "sizes[0]"}, measures=measures
    )
    by_tables, by_log = both(database18, tmp_path, spark, computed, *changes)
    assert by_tables == by_log
    assert {key[0] for key in by_tables[0]} == {"0.1", "0.10000000149011612"}
    with snapshot(database18.dsn()) as source:
        tables = [each.table for each in plain.sources]
        bound = bind(plain, types_of(read_tables(source.connection, tables)), source.lsn)
        sums = true_sums(source.connection, bound, lambda: spark).sums
    by_server = rolled_up(sums, list(plain.dimensions), list(plain.measures))
    assert by_server == {key[:-1]: amounts for key, amounts in by_tables[0].items()}


# Issue 22, item 17.
def test_the_first_alias_that_is_not_null_counts_in_tables_and_in_the_log(
    database: Database, tmp_path: Path, spark: SparkSession
) -> None:  # M4.5, M4.6, M5.5
    columns = {
        "size": ("real", "double precision", "0.1", "0.1", "0.1::real"),
        "price": ("numeric(5,1)", "numeric(10,3)", "1.5", "1.500", "2"),
        "number": ("bigint", "int", "7", "7", "8"),
        "label": ("mood", "text", "'sad'", "'sad'", "'glad'"),
        "name": ('text COLLATE "C"', 'varchar(9) COLLATE "POSIX"', "'a'", "'a'", "'b '"),
        "code": ("char(3)", "char(3)", "'a'", "'a'", "'b'"),
        "word": ("text", "status", "''", "'x'", "'yes'"),
    }
    typed = ", ".join(
        f"{name}_{place} {kinds[place]}" for name, kinds in columns.items() for place in (0, 1)
    )
    database.run(
        "CREATE TYPE mood AS ENUM ('sad', 'glad')",
        "CREATE DOMAIN status AS varchar(5)",
        f"CREATE TABLE notifications (id int PRIMARY KEY, {typed})",
        "ALTER TABLE notifications REPLICA IDENTITY FULL",
    )
    changes = [
        f"INSERT INTO notifications (id, {', '.join(f'{name}_{place}' for name in columns)})"
        f" VALUES ({number}, {', '.join(values[kind] for values in columns.values())})"
        for number, (place, kind) in enumerate([(0, 2), (1, 3), (1, 4)])
    ]
    filled = ", ".join(
        f"{name}_0 = {name}_1" + ("::mood" if name == "label" else "") for name in columns
    )
    changes += [
        "INSERT INTO notifications (id) VALUES (3)",
        "INSERT INTO notifications (id) VALUES (4)",
        f"UPDATE notifications SET {filled} WHERE id = 2",
        "DELETE FROM notifications WHERE id = 3",
    ]
    source = {
        "table": "notifications",
        "aliases": {name: [f"{name}_0", "never", f"{name}_1"] for name in columns},
    }
    given: dict[str, Any] = {
        "sources": [source],
        "measures": {"count": "count", "cost": "sum(price)", "numbers": "sum(number)"},
    }
    computed = declared(**given, dimensions={name: f"{name} || ''" for name in columns})
    by_tables, by_log = both(database, tmp_path, spark, computed, *changes)
    assert by_tables == by_log
    found, left_out = by_tables
    assert left_out == {}
    # A real's 0.1 is another double, filled in or not.
    real, price = "0.10000000149011612", Decimal("1.500")
    assert found == {
        (real, "1.500", "7", "sad", "a", "a  ", ""): (1, price, 7),
        ("0.1", "1.500", "7", "sad", "a", "a  ", "x"): (1, price, 7),
        (real, "2.000", "8", "glad", "b ", "b  ", "yes"): (1, Decimal(2), 8),
        (None,) * len(columns): (1, 0, 0),
    }
    plain = declared(**given, dimensions=list(columns))
    with snapshot(database.dsn()) as now:
        tables = [each.table for each in plain.sources]
        bound = bind(plain, types_of(read_tables(now.connection, tables)), now.lsn)
        sums = true_sums(now.connection, bound, lambda: spark).sums
    assert rolled_up(sums, list(plain.dimensions), list(plain.measures)) == found


def test_dimensions_that_are_columns_come_through_beside_computed_ones(
    database18: Database, tmp_path: Path, spark: SparkSession
) -> None:  # M5.2, M5.5: Spark sees a number for what it only hands on
    database18.run(
        "CREATE TYPE mood AS ENUM ('sad', 'glad')",
        "CREATE TABLE notifications (id int PRIMARY KEY, service uuid, status text, mood mood,"
        " ratio double precision, at timestamp, price numeric(6,2), amount int)",
    )
    counts = declared(
        dimensions={
            **{name: name for name in ("service", "mood", "ratio", "at", "price")},
            "again": "status",
            "status": "status",
            "first": "left(status, 1)",
        },
        filter="status <> 'hidden' OR status IS NULL",
        measures={"count": "count", "sum": "sum(amount)"},
    )
    services = [f"md5('{n}')::uuid" for n in range(2)]
    rows = [
        f"({number}, {services[number % 2]}, {status}, {mood}, {ratio}, {at}, {price}, {amount})"
        for number, (status, mood, ratio, at, price, amount) in enumerate(
            [
                *[("'sent'", "'sad'", "0", "'2026-01-01 10:00'", "1.50", "1")] * 4,
                # Spark takes them for one; so does what is read of the tables.
                ("'sent'", "'sad'", "'-0'", "'2026-01-01 10:00'", "1.5", "2"),
                ("'sent'", "NULL", "'NaN'", "NULL", "NULL", "NULL"),
                ("NULL", "'glad'", "NULL", "'2026-01-01 10:00'", "-1", "3"),
                ("''", "'glad'", "0.1", "'0001-01-01'", "0", "4"),
                ("'hidden'", "'glad'", "0.1", "NULL", "0", "5"),
                ("'sent'", "'sad'", "0", "'infinity'", "1.50", "1"),
            ],
            1,
        )
    ]
    changes = f"INSERT INTO notifications VALUES {', '.join(rows)}"
    by_tables, by_log = both(database18, tmp_path, spark, counts, changes)
    assert by_tables == by_log
    found, left_out = by_tables
    assert sum(count for count, _ in found.values()) == 8
    assert sum(amount for _, amount in found.values()) == 1 * 4 + 2 + 3 + 4
    assert {key[5:] for key in found} == {("sent", "sent", "s"), (None,) * 3, ("", "", "")}
    assert left_out == {"public.notifications: a at that Spark cannot hold": 1}


def test_spark_computes_nothing_of_rows_that_are_left_out(
    database18: Database, tmp_path: Path, spark: SparkSession
) -> None:  # M4.6, M5.5: what fails for one of them fails nothing
    database18.run("CREATE TABLE notifications (id int PRIMARY KEY, at timestamptz, n int)")
    counts = declared(dimensions={"day": "to_date(at)", "share": "10 div n"})
    insert = "INSERT INTO notifications VALUES (1, 'infinity', 0), (2, '2026-01-01 00:00+00', 2)"
    by_tables, by_log = both(database18, tmp_path, spark, counts, insert)
    assert by_tables == by_log
    assert by_tables == (
        {("2026-01-01", "5"): (1,)},
        {"public.notifications: a at that Spark cannot hold": 1},
    )


def test_names_that_differ_in_capitals_only(
    database18: Database, tmp_path: Path, spark: SparkSession
) -> None:  # M5.2: of columns and of dimensions; Spark by itself takes them for one
    database18.run('CREATE TABLE notifications (id int PRIMARY KEY, status text, "Status" text)')
    counts = declared(
        dimensions={
            "status": "lower(status)",
            "Status": "upper(`Status`)",
            "both": "status || `Status`",
            "plain": "Status",
        }
    )
    insert = (
        "INSERT INTO notifications VALUES (1, 'Sent', 'Late'), (2, 'sENT', 'Late'), (3, NULL, NULL)"
    )
    by_tables, by_log = both(database18, tmp_path, spark, counts, insert)
    assert by_tables == by_log
    assert by_tables == (
        {
            ("sent", "LATE", "SentLate", "Late"): (1,),
            ("sent", "LATE", "sENTLate", "Late"): (1,),
            (None, None, None, None): (1,),
        },
        {},
    )


def test_a_row_larger_than_what_is_read_at_once_counts(
    database18: Database, spark: SparkSession
) -> None:  # M5.5
    database18.run(
        "CREATE TABLE notifications (id int PRIMARY KEY, body text)",
        "INSERT INTO notifications SELECT n, CASE n WHEN 2 THEN repeat(E'a\",\n', 2500000)"
        " ELSE 'short' END FROM generate_series(1, 3) AS n",
    )
    counts = declared(dimensions={"length": "length(body)"})
    with snapshot(database18.dsn()) as source:
        tables = [each.table for each in counts.sources]
        bound = bind(counts, types_of(read_tables(source.connection, tables)), source.lsn)
        sums = true_sums(source.connection, bound, lambda: spark).sums
    assert rolled_up(sums, ["length"], ["count"]) == {("5",): (2,), ("10000000",): (1,)}


def test_a_day_before_the_first_year_is_what_the_server_says(
    database18: Database, tmp_path: Path, spark: SparkSession
) -> None:  # M4.6: the zero of some languages' clocks, west of Greenwich
    database18.run("CREATE TABLE notifications (id int PRIMARY KEY, at timestamptz)")
    moved = "from_utc_timestamp(at, 'America/St_Johns')"
    counts = declared(dimensions={"day": f"to_date({moved})", "at": f"date_trunc('HOUR', {moved})"})
    insert = "INSERT INTO notifications VALUES (1, '0001-01-01 00:00+00')"
    by_tables, by_log = both(database18, tmp_path, spark, counts, insert)
    assert by_tables == by_log
    ((day, at),) = by_tables[0]
    with database18.connect() as connection:
        connection.execute("SET timezone = 'America/St_Johns'")
        same = "at::date = %s::date, date_trunc('hour', at AT TIME ZONE 'America/St_Johns')"
        found = connection.execute(
            f"SELECT {same} = %s::timestamptz AT TIME ZONE 'UTC' FROM notifications", [day, at]
        )
        assert found.fetchone() == (True, True)


def test_spark_computes_each_combination_of_what_it_sees_once(
    database18: Database, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:  # M5.5: moments of one minute are one, and other columns do not make them more
    database18.run(
        "CREATE TABLE notifications (id int PRIMARY KEY, service text, at timestamptz)",
        "INSERT INTO notifications SELECT n, 's' || n, '2026-01-01 00:00+00'::timestamptz"
        " + n * interval '1 second' FROM generate_series(0, 599) AS n",
    )
    counts = declared(
        dimensions={"service": "service", "hour": "hour(at)"}, filter="minute(at) <> 3"
    )
    given: list[int] = []
    compute = grouped_rows._computed

    def measured(*arguments: Any) -> Any:
        given.append(len(arguments[3]))
        return compute(*arguments)

    monkeypatch.setattr(grouped_rows, "_computed", measured)
    with snapshot(database18.dsn()) as source:
        tables = [each.table for each in counts.sources]
        bound = bind(counts, types_of(read_tables(source.connection, tables)), source.lsn)
        sums = true_sums(source.connection, bound, lambda: spark).sums
    assert given == [10]
    assert rolled_up(sums, ["service", "hour"], ["count"]) == {
        (f"s{n}", "0"): (1,) for n in range(600) if n // 60 != 3
    }


def test_rows_may_share_other_columns_than_those_before_them(
    database18: Database, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:  # M5.5: the server puts them together by what many have; the counts are those of all
    monkeypatch.setattr(pages, "_PAGES_AT_ONCE", 25)
    row = (
        "NULLIF(n % 3, 0), md5((n / 100)::text)::uuid, n % 2,"
        " '2026-01-01'::timestamptz + n * interval '1 min'"
    )
    database18.run(
        "CREATE TABLE notifications (id int PRIMARY KEY, service text, status int, job uuid,"
        " amount int, at timestamptz)",
        f"INSERT INTO notifications SELECT n, 's' || n % 20, {row}"
        " FROM generate_series(1, 6000) AS n",
        f"INSERT INTO notifications SELECT n, 'other ' || n, {row}"
        " FROM generate_series(6001, 12000) AS n",
        f"INSERT INTO notifications SELECT n, NULL, {row} FROM generate_series(12001, 18000) AS n",
        "UPDATE notifications SET at = 'infinity' WHERE id % 1000 = 0",
    )
    counts = declared(
        dimensions={"day": "to_date(at)", "job": "job", "status": "status", "service": "service"},
        measures={"count": "count", "sum": "sum(amount)"},
        filter="status IS NULL OR status < 2",
    )
    shared: set[frozenset[str]] = set()

    def watched(parts: Any, rows: Any, good: Any) -> Any:
        shared.add(frozenset(each.name for each in rows.shared))
        return numbered_rows(parts, rows, good)

    monkeypatch.setattr(grouped_by_spark, "numbered_rows", watched)
    with snapshot(database18.dsn()) as source:
        tables = [each.table for each in counts.sources]
        bound = bind(counts, types_of(read_tables(source.connection, tables)), source.lsn)
        truth = true_sums(source.connection, bound, lambda: spark)
    assert len(shared) > 2
    assert truth.skipped == {"public.notifications: a at that Spark cannot hold": 18}
    found = rolled_up(truth.sums, list(counts.dimensions), list(counts.measures))
    expected = database18.rows(
        "SELECT (at AT TIME ZONE 'UTC')::date::text, job::text, status::text, service, count(*),"
        " sum(amount) FROM notifications WHERE at < 'infinity' AND (status IS NULL OR status < 2)"
        " GROUP BY 1, 2, 3, 4"
    )
    assert found == {tuple(key): (count, total) for *key, count, total in expected}
