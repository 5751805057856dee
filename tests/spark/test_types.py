"""Every type, from a real server through capture and Spark: what Postgres prints is the oracle."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import ArrayType, DataType, FloatType

from penstock.changelog.reader import LogReader
from penstock.changelog.runs import Share, runs
from penstock.decode.changes import TableChanges
from penstock.errors import ValueUnrepresentable
from penstock.names import TableName
from penstock.spark.errors import explain
from penstock.spark.options import SourceOptions
from penstock.spark.schema import wanted_of
from support.capturing import capture_config, capturing
from support.database import Database
from support.oracle import Mirror
from support.workload import PUBLICATION, SLOT, prepare

OLD_AND_NEW = pytest.mark.parametrize("server", [15, 18], ids=["pg15", "pg18"], indirect=True)

USER_TYPES = (
    "CREATE TYPE mood AS ENUM ('sad', 'so so', 'ha\"ppy')",
    "CREATE DOMAIN age AS int CHECK (VALUE >= 0)",
    "CREATE DOMAIN word AS varchar(20)",
    "CREATE DOMAIN price AS numeric(10,2)",
    "CREATE DOMAIN mood_now AS mood",
    "CREATE DOMAIN ages AS int[]",
    "CREATE TYPE pair AS (a int, b text)",
    "CREATE TYPE floats AS RANGE (subtype = float8)",
    # A base type of a user's own; its name is also that of one of the server's types.
    "CREATE TYPE public.int4",
    *(
        f"CREATE FUNCTION int4_{way}({takes}) RETURNS {gives}"
        f" LANGUAGE internal IMMUTABLE STRICT AS 'text{way}'"
        for way, takes, gives in (
            ("in", "cstring", "public.int4"),
            ("out", "public.int4", "cstring"),
        )
    ),
    "CREATE TYPE public.int4 (INPUT = int4_in, OUTPUT = int4_out, LIKE = text)",
)

# Column: its type in Postgres, its type in Spark, and values that it must bring over.
KINDS: dict[str, tuple[str, str, list[str]]] = {
    "small": ("smallint", "smallint", ["-32768", "32767", "0"]),
    "whole": ("int", "int", ["-2147483648", "2147483647"]),
    "big": ("bigint", "bigint", ["-9223372036854775808", "9223372036854775807"]),
    "truth": ("boolean", "boolean", ["t", "f"]),
    "single": (
        "real",
        "float",
        ["NaN", "Infinity", "-Infinity", "-0", "0.1", "3.4028235e+38", "1e-45", "-16777216"],
    ),
    "double": (
        "float8",
        "double",
        ["NaN", "Infinity", "-Infinity", "-0", "0.1", "1.7976931348623157e+308", "5e-324"],
    ),
    "exact": ("numeric(10,2)", "decimal(10,2)", ["0", "-99999999.99", "1.5", "99999999.99"]),
    "exact_wide": (
        "numeric(38,10)",
        "decimal(38,10)",
        ["9999999999999999999999999999.9999999999", "-0.0000000001"],
    ),
    "exact_small": ("numeric(2,5)", "decimal(5,5)", ["0.00099", "-0.00001"]),
    "hundreds": ("numeric(3,-2)", "decimal(5,0)", ["99900", "-100", "149", "0"]),
    "exact_50": ("numeric(50,2)", "string", ["9" * 48 + ".99", "NaN"]),
    "free": (
        "numeric",
        "string",
        ["NaN", "Infinity", "-Infinity", "1234567890" * 5, "0." + "0" * 49 + "1", "1.000"],
    ),
    "words": (
        "text",
        "string",
        ["", "a", "twelve chars", "thirteen char", "ä🐘\n\t\"'\\", "x" * 99],
    ),
    "short": ("varchar(9)", "string", ["", "nine char"]),
    "padded": ("char(5)", "string", ["ab", "abcde", ""]),
    "letter": ('"char"', "string", ["a", ""]),
    "label": ("name", "string", ["pg_class"]),
    "octets": ("bytea", "binary", ["\\x", "\\x00ff5c", "\\x" + "ab" * 40]),
    "day": ("date", "date", ["2026-11-16", "0001-01-01", "9999-12-31", "1582-10-10", "1969-12-31"]),
    "hour": ("time", "string", ["00:00:00", "24:00:00", "12:34:56.789012"]),
    "hour_tz": ("timetz", "string", ["12:34:56+05:30", "00:00:00-15:59:59"]),
    "moment": (
        "timestamp",
        "timestamp_ntz",
        [
            *("2026-11-16 12:34:56.789012", "0001-01-01 00:00:00", "1900-01-01 00:00:00.1"),
            *("9999-12-31 23:59:59.999999", "1969-12-31 23:59:59.5"),
        ],
    ),
    "moment_s": ("timestamp(0)", "timestamp_ntz", ["2026-11-16 12:34:56"]),
    "moment_tz": (
        "timestamptz",
        "timestamp",
        [
            *("2026-11-16 12:34:56.789012+05:30", "0001-01-01 00:00:00+00", "1582-10-10 00:00+00"),
            *("9999-12-31 23:59:59.999999+00", "1969-12-31 23:59:59-03"),
        ],
    ),
    "span": ("interval", "string", ["1 year -2 mons 3 days 04:05:06.7", "0", "-1 days"]),
    "identifier": ("uuid", "string", ["f81d4fae-7dec-11d0-a765-00a0c91e6bf6"]),
    "document": ("json", "string", ['{"b":1, "a": [null]}', "null"]),
    "document_b": ("jsonb", "string", ['{"b":1, "a": [null, 1.50]}', '"x"']),
    "path": ("jsonpath", "string", ["$.a[*] ? (@ > 1)"]),
    "address": ("inet", "string", ["192.168.0.1", "10.0.0.1/8", "::1"]),
    "network": ("cidr", "string", ["10.0.0.0/8", "2001:db8::/32"]),
    "hardware": ("macaddr", "string", ["08:00:2b:01:02:03"]),
    "hardware8": ("macaddr8", "string", ["08:00:2b:01:02:03:04:05"]),
    "bits": ("bit(5)", "string", ["10110", "00000"]),
    "some_bits": ("varbit", "string", ["", "1", "0110" * 9]),
    "feeling": ("mood", "string", ["sad", "so so", 'ha"ppy']),
    "years": ("age", "int", ["0", "2147483647"]),
    "a_word": ("word", "string", ["", "domain"]),
    "standard_number": ("information_schema.cardinal_number", "int", ["0", "7"]),
    "standard_moment": (
        "information_schema.time_stamp",
        "timestamp",
        ["2026-11-16 12:34:56.79+00"],
    ),
    "standard_name": ("information_schema.sql_identifier", "string", ["a"]),
    # The server does not say which modifier a domain has.
    "cost": ("price", "string", ["1.5", "-99999999.99"]),
    "feeling_now": ("mood_now", "string", ["sad"]),
    "many_years": ("ages", "array<int>", ["{1,NULL,3}", "{}"]),
    "wholes": ("int[]", "array<int>", ["{1,NULL,-3}", "{}", "{7}", "{NULL}"]),
    "truths": ("bool[]", "array<boolean>", ["{t,NULL,f}", "{}"]),
    "doubles": ("float8[]", "array<double>", ["{NaN,Infinity,-0,NULL,0.1}"]),
    "exacts": ("numeric(5,1)[]", "array<decimal(5,1)>", ["{1.5,NULL,-9999.9}", "{}"]),
    "texts": (
        "text[]",
        "array<string>",
        ['{"",NULL,"NULL",plain}', r'{"a\"b","c\\d","e,f","{}","g h"}', "{ä🐘}", '{"\n"}', "{}"],
    ),
    "plain_texts": ("varchar[]", "array<string>", ["{a,bc}", "{NULL}", "{}"]),
    "octets_list": ("bytea[]", "array<binary>", [r'{"\\x00ff",NULL}', "{}"]),
    "days": ("date[]", "array<date>", ["{2026-11-16,NULL}"]),
    "moments": ("timestamptz[]", "array<timestamp>", ['{"2026-11-16 12:34:56.5+00",NULL}']),
    "identifiers": ("uuid[]", "array<string>", ["{f81d4fae-7dec-11d0-a765-00a0c91e6bf6}"]),
    "documents": ("jsonb[]", "array<string>", [r'{"{\"a\": [1, 2]}",NULL}']),
    "ranges": ("int4range[]", "array<string>", ['{"[1,5)",empty}']),
    "points": ("point[]", "array<string>", ['{"(1,2)","(3,4)"}']),
    "boxes": ("box[]", "string", ["{(1,1),(0,0);(2,2),(1,1)}"]),
    "feelings": ("mood[]", "string", ['{sad,"so so",NULL,"ha\\"ppy"}', "{}"]),
    "age_list": ("age[]", "string", ["{1,NULL}"]),
    "pairs": ("pair[]", "string", [r'{"(1,\"a b\")","(,)"}']),
    "between": ("int4range", "string", ["[1,5)", "empty", "(,)"]),
    "between_times": ("tstzrange", "string", ['["2026-11-16 00:00:00+00",infinity)']),
    "betweens": ("int4multirange", "string", ["{[1,3),[5,8)}", "{}"]),
    "between_floats": ("floats", "string", ["[0.1,Infinity)"]),
    "couple": ("pair", "string", ['(1,"a ""b"" \\\\")', "(,)"]),
    "money": ("money", "string", ["1234.56", "-0.01"]),
    "vector": ("tsvector", "string", ["'a':1A 'cat':2,3 'it''s'"]),
    "question": ("tsquery", "string", ["'a' & !'b'"]),
    "object_id": ("oid", "bigint", ["0", "4294967295"]),
    "object_ids": ("oid[]", "array<bigint>", ["{0,4294967295}"]),
    "transaction": ("xid", "bigint", ["4294967295"]),
    "transaction8": ("xid8", "string", ["18446744073709551615"]),
    "command": ("cid", "bigint", ["4294967295"]),
    "row_place": ("tid", "string", ["(0,1)"]),
    "relation": ("regclass", "string", ["public.items", "pg_class", "0"]),
    "type_name": ("regtype", "string", ["integer", "public.mood"]),
    "position": ("pg_lsn", "string", ["16/B374D848"]),
    "place": ("point", "string", ["(1.5,-0)"]),
    "area": ("polygon", "string", ["((0,0),(1,1),(1,0))"]),
    "own_type": ("public.int4", "string", ["not a number", "7"]),
}
# PostgreSQL 17 and newer.
ENDLESS = {"endless": ("interval", "string", ["infinity", "-infinity"])}
# Our PostgreSQL 18 was built without it.
MARKUP = {"markup": ("xml", "string", ["<a>b &amp; c</a>", "text<b/>"])}

# Values that have no place in the Spark type, each with one beside it that has.
ODD: dict[str, tuple[str, list[str]]] = {
    "day": ("date", ["infinity", "-infinity", "0044-03-15 BC", "10000-01-01"]),
    "moment": (
        "timestamp",
        ["infinity", "-infinity", "0044-03-15 01:02:03.5 BC", "294276-12-31 23:59:59"],
    ),
    "moment_tz": (
        "timestamptz",
        ["infinity", "-infinity", "0044-03-15 01:02:03+00 BC", "10000-01-01 00:00:00+00"],
    ),
    "exact": ("numeric(10,2)", ["NaN"]),
    "nested": ("int[]", ["{{1,2},{3,4}}", "[0:1]={1,2}"]),
    "exacts": ("numeric(5,1)[]", ["{1.5,NaN}"]),
    "days": ("date[]", ["{2026-11-16,infinity}", '{"0044-03-15 BC"}']),
    "texts": ("text[]", ['{{a,"b c"}}']),
}
FITTING = {
    "day": "2026-11-16",
    "moment": "2026-11-16 12:00:00",
    "moment_tz": "2026-11-16 12:00:00+00",
    "exact": "1.50",
    "nested": "{1}",
    "exacts": "{1.5}",
    "days": "{2026-11-16}",
    "texts": "{a}",
}


# --- from Spark's value back to text ------------------------------------------------------------


def text_of(value: Any, kind: DataType) -> str | None:
    """As Postgres would print what Spark holds."""
    match value:
        case None | str():
            return value
        case bool():
            return "t" if value else "f"
        case int():
            return str(value)
        case float():
            return _float_text(value, single=isinstance(kind, FloatType))
        case Decimal():
            return f"{value:f}"
        case bytes():
            return "\\x" + value.hex()
        case datetime():
            zone = "+00" if value.tzinfo else ""
            plain = value.astimezone(UTC).replace(tzinfo=None) if zone else value
            text = plain.isoformat(" ")
            return (text.rstrip("0") if "." in text else text) + zone
        case date():
            return value.isoformat()
        case list():
            assert isinstance(kind, ArrayType)
            return "{" + ",".join(_element(text_of(e, kind.elementType)) for e in value) + "}"
    raise AssertionError(type(value))


def _float_text(value: float, *, single: bool) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    text = str(np.float32(value)) if single else repr(value)
    if single and abs(value) >= 1e6 and "e" not in text:  # where Postgres begins with exponents
        text = np.format_float_scientific(np.float32(value), trim="-", exp_digits=2)
    return text.removesuffix(".0")


def _element(text: str | None) -> str:
    if text is None:
        return "NULL"
    if text and text.upper() != "NULL" and not re.search(r'[\s{},"\\]', text):
        return text
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def in_order(frame: DataFrame) -> list[dict[str, Any]]:
    """Rows by position, each column as text; through Arrow, which has no time zone of its own."""
    kinds = {field.name: field.dataType for field in frame.schema}
    rows = frame.toArrow().to_pylist()
    rows.sort(key=lambda row: (row["_commit_version"], row["_seq"]))  # stable: old before new
    return [
        {
            name: value if name.startswith("_") else text_of(value, kinds[name])
            for name, value in row.items()
        }
        for row in rows
    ]


# --- the server's side --------------------------------------------------------------------------


def printed(database: Database, query: str) -> list[dict[str, str | None]]:
    """What the server itself prints, value by value."""
    with database.connect() as connection:
        for setting in (
            *("datestyle = 'ISO'", "timezone = 'UTC'", "bytea_output = 'hex'"),
            *("extra_float_digits = 3", "intervalstyle = 'postgres'", "lc_monetary = 'C'"),
            "search_path = 'pg_catalog'",
        ):
            connection.execute(f"SET {setting}".encode())
        cursor = psycopg.Cursor(connection).execute(query.encode())
        assert cursor.pgresult is not None
        assert cursor.description is not None
        values = [
            [cursor.pgresult.get_value(row, column) for column in range(len(cursor.description))]
            for row in range(cursor.pgresult.ntuples)
        ]
    names = [column.name for column in cursor.description]
    return [
        {
            name: None if value is None else value.decode()
            for name, value in zip(names, row, strict=True)
        }
        for row in values
    ]


@contextmanager
def captured(database: Database, log: Path, *tables: str) -> Iterator[None]:
    """Publish tables that exist, and capture what the block does until it is in the log."""
    database.run(f"ALTER PUBLICATION {PUBLICATION} ADD TABLE {', '.join(tables)}")
    database.create_slot(SLOT)
    with capturing(capture_config(database.dsn(), log)):
        yield
        Mirror(log).await_marker(database)


def make(database: Database, table: str, kinds: dict[str, tuple[str, list[str]]]) -> None:
    """A table, and `<table>_pool` with rows to put into it, the last of them all NULL."""
    columns = ", ".join(f"{name} {kind}" for name, (kind, _) in kinds.items())
    count = max(len(values) for _, values in kinds.values())
    rows = [
        [(values[row % len(values)] if row < count else None) for _, values in kinds.values()]
        for row in range(count + 1)
    ]
    with database.connect() as connection:
        for name in (table, f"{table}_pool"):
            connection.execute(f"CREATE TABLE {name} (id int, {columns})".encode())
        connection.execute(f"ALTER TABLE {table} REPLICA IDENTITY FULL".encode())
        marks = ", ".join(f"%s::{kind}" for kind, _ in kinds.values())
        for row, values in enumerate(rows):
            insert = f"INSERT INTO {table}_pool VALUES ({row}, {marks})"
            connection.execute(insert.encode(), values)


def read(spark: SparkSession, log: Path, **options: str) -> DataFrame:
    return spark.read.format("penstock").options(path=str(log), **options).load()


# --- tests --------------------------------------------------------------------------------------


@OLD_AND_NEW
def test_every_type_comes_out_as_postgres_prints_it(
    spark: SparkSession, database: Database, tmp_path: Path
) -> None:  # M4.6
    version = database.server.version
    kinds = {**KINDS, **(ENDLESS if version >= 17 else MARKUP)}
    prepare(database, slot=False)
    database.run(*USER_TYPES)
    make(database, "kinds", {name: (kind, values) for name, (kind, _, values) in kinds.items()})
    names = ", ".join(kinds)
    count = database.value("SELECT count(*) FROM kinds_pool")
    with captured(database, tmp_path / "log", "kinds"):
        database.run(
            "INSERT INTO kinds SELECT * FROM kinds_pool ORDER BY id",
            f"UPDATE kinds SET ({names}) = (SELECT {names} FROM kinds_pool AS other"
            f" WHERE other.id = (kinds.id + 1) % {count})",
            "DELETE FROM kinds",
        )
    pool = printed(database, f"SELECT {names} FROM public.kinds_pool ORDER BY id")
    new = [pool[(row + 1) % count] for row in range(count)]

    frame = read(spark, tmp_path / "log", table="kinds")
    found_types = {field.name: field.dataType.simpleString() for field in frame.schema}
    assert {name: found_types[name] for name in kinds} == {n: k for n, (_, k, _) in kinds.items()}

    images = {"insert": pool, "update_preimage": pool, "update_postimage": new, "delete": new}
    changes = [
        *(["insert"] * count),
        *(["update_preimage", "update_postimage"] * count),
        *(["delete"] * count),
    ]
    for options in ({}, {"onUnrepresentable": "string"}):
        found = in_order(read(spark, tmp_path / "log", table="kinds", **options))
        assert [row["_change_type"] for row in found] == changes
        for row in found:
            expected = images[row["_change_type"]][int(row["id"])]
            assert {name: row[name] for name in kinds} == expected, row["_change_type"]
            assert (row["_absent"], row["_unchanged"]) == ([], [])

    # As JSON, each number with the digits that Postgres prints.
    sides = {"insert": (None, pool), "update": (pool, new), "delete": (new, None)}
    for change in read(spark, tmp_path / "log", tables="kinds").collect():
        for name, side in zip(("before", "after"), sides[change["_change_type"]], strict=True):
            assert (change[name] is None) == (side is None)
            if side is not None:
                known = texts_of_json(change[name])
                assert known == {"id": known["id"], **side[int(known["id"])]}


def texts_of_json(text: str) -> dict[str, Any]:
    row = json.loads(text, parse_int=str, parse_float=str, parse_constant=pytest.fail)
    return {n: {True: "t", False: "f"}[v] if isinstance(v, bool) else v for n, v in row.items()}


@OLD_AND_NEW
def test_what_has_no_place_in_spark_is_an_error_null_or_text(
    spark: SparkSession, database: Database, tmp_path: Path
) -> None:  # M4.6
    prepare(database, slot=False)
    make(database, "odd", {name: (kind, [FITTING[name], *v]) for name, (kind, v) in ODD.items()})
    with captured(database, tmp_path, "odd"):
        # One row in each transaction, so that the position in the message says which.
        for row in range(database.value("SELECT count(*) FROM odd_pool")):
            database.run(f"INSERT INTO odd SELECT * FROM odd_pool WHERE id = {row}")
    pool = printed(database, "SELECT * FROM public.odd_pool ORDER BY id")

    found = in_order(read(spark, tmp_path, table="odd", onUnrepresentable="string"))
    assert [{name: row[name] for name in pool[0]} for row in found] == pool
    lsns = [row["_commit_version"] for row in found]

    special = {name: {*values} for name, (_, values) in ODD.items()}
    nulled = [{n: None if v in special.get(n, ()) else v for n, v in row.items()} for row in pool]
    found = in_order(read(spark, tmp_path, table="odd", onUnrepresentable="null"))
    assert [{name: row[name] for name in pool[0]} for row in found] == nulled
    assert all(any(row[name] is None for row in nulled[:-1]) for name in ODD)

    with pytest.raises(PySparkException) as caught:
        read(spark, tmp_path, table="odd", columns="id,day").collect()
    said = explain(caught.value) or ""
    assert "column day of public.odd holds a value at 0/" in said
    assert "onUnrepresentable" in said
    # The same for each column, without a Spark job for each.
    for name in ODD:
        error = refused(tmp_path, "odd", name)
        assert (error.column, error.lsn) == (name, lsns[1])  # type: ignore[attr-defined]
        assert f"column {name} of public.odd holds a value at {error.lsn}" in str(error)  # type: ignore[attr-defined]
        # Of a numeric there is little that it can be but NaN.
        assert not [value for value in special[name] - {"NaN"} if value in str(error)]


def refused(log: Path, table: str, column: str) -> ValueUnrepresentable:
    """What decoding one column says."""
    reader = LogReader(log)
    options = SourceOptions.parse({"path": str(log), "table": table, "columns": column})
    decoder = TableChanges(wanted_of(reader, options, TableName("public", table)))
    (run,) = runs(reader, Share(reader.start(), reader.end()))
    with pytest.raises(ValueUnrepresentable) as caught:
        decoder.batch(run)
    return caught.value
