"""Tables in a schema of their own, aggregates over them, and an application whose search path has
nothing that was planted: what runs of it, somebody else ran.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import psycopg

from support.database import Database

SCHEMA = (
    "CREATE SCHEMA app",
    "CREATE TYPE app.mood AS ENUM ('good', 'bad')",
    "CREATE DOMAIN app.place AS varchar(20)",
    (
        "CREATE TABLE app.notes (id bigint PRIMARY KEY, mood app.mood, place app.place, kind text,"
        " made_at timestamptz NOT NULL DEFAULT now(), price numeric(10, 2), tags text[])"
    ),
    "CREATE TABLE app.parted (id int PRIMARY KEY, kind text) PARTITION BY RANGE (id)",
    "CREATE TABLE app.parted_low PARTITION OF app.parted FOR VALUES FROM (0) TO (100)",
    "CREATE TABLE app.unrelated (body text)",
    *(
        f"ALTER TABLE app.{name} REPLICA IDENTITY FULL"
        for name in ("notes", "parted", "parted_low")
    ),
)
# Postgres groups these when they are seeded and verified.
PLAIN: list[dict[str, Any]] = [
    {
        "name": "moods",
        "sources": ["app.notes"],
        "dimensions": ["mood", "place"],
        "measures": {"count": "count", "total": "sum(price)"},
        "targets": ["app.moods"],
    },
    {
        "name": "kinds",
        "sources": ["app.parted"],
        "dimensions": ["kind"],
        "targets": ["app.kinds"],
    },
]
_LOCAL_DATE = "to_date(from_utc_timestamp(made_at, 'Europe/London'))"
# Spark groups it.
COMPUTED: dict[str, Any] = {
    "name": "days",
    "sources": ["app.notes"],
    "dimensions": {"day": {"expression": _LOCAL_DATE, "type": "date"}},
    "targets": ["app.days"],
}


def settings(database: Database, log: Path, *aggregates: dict[str, Any]) -> dict[str, Any]:
    return {
        "source": {
            "dsn": database.dsn(),
            "tables": ["app.notes", "app.parted"],
            "keepalive_interval_s": 0.1,
        },
        "heartbeat": {"interval_min": 0.01},
        "log": {"path": log},
        "aggregate": list(aggregates),
    }


def application(database: Database) -> psycopg.Connection:
    connection = database.connect()
    connection.execute("SET search_path = pg_catalog, app")
    return connection


def write_notes(connection: psycopg.Connection, start: int, count: int = 500) -> None:
    connection.execute(
        "INSERT INTO notes SELECT i, CASE i %% 3 WHEN 0 THEN 'good' WHEN 1 THEN 'bad' END::mood,"
        " 'place ' || i, 'kind', now() - i * interval '1 hour', i, ARRAY['x']"
        " FROM generate_series(%s::int, %s::int) AS i",
        [start, start + count - 1],
    )
    connection.execute("UPDATE notes SET price = price + 1, mood = 'bad' WHERE id % 7 = 0")
    connection.execute("DELETE FROM notes WHERE id % 11 = 0")
    connection.execute("INSERT INTO parted VALUES (%s, 'some')", [start % 97])


def all_counted(connection: psycopg.Connection) -> bool:
    there = connection.execute("SELECT count(*), sum(price) FROM notes").fetchone()
    moods = connection.execute("SELECT sum(count), sum(total) FROM moods").fetchone()
    days = connection.execute("SELECT sum(count) FROM days").fetchone()
    parted = connection.execute("SELECT count(*) FROM parted").fetchone()
    kinds = connection.execute("SELECT sum(count) FROM kinds").fetchone()
    assert there is not None
    return (there, there[:1], parted) == (moods, days, kinds)


def must_not_have_run(database: Database, words: str) -> None:
    ran = re.findall(f"{words}: .*", database.server.log_file.read_text())
    assert not ran, ran[:5]
