"""Which DDL means that counts of before and changes of now do not go together. M4.6"""

from __future__ import annotations

import pytest

from penstock.declarations import AggregateConfig
from penstock.decode.stops import Stop, StopCode
from penstock.names import TableName
from penstock.pipelines.alias_changes import alias_stop
from penstock.pipelines.source_marks import (
    Marks,
    marked_columns,
    marks_from_json,
    marks_of,
    marks_stop,
    marks_to_json,
)
from penstock.postgres.table_marks import read_marks
from penstock.postgres.tables import read_tables
from support.database import Database

TABLES = (
    "CREATE TYPE kind AS ENUM ('email', 'sms')",
    "CREATE DOMAIN word AS text",
    (
        "CREATE TABLE notes (id int PRIMARY KEY, status varchar(10), n int, kind kind,"
        " price numeric(10, 2), word word, unused int)"
    ),
    "INSERT INTO notes SELECT n, 'X' || n, n, 'sms', 1.5, 'w', n FROM generate_series(1, 9) AS n",
    "CREATE TABLE parted (id int, region text, status text, n int) PARTITION BY LIST (region)",
    "CREATE TABLE north PARTITION OF parted FOR VALUES IN ('n')",
    "CREATE TABLE south (status text, gone int, n int, region text, id int)",
    "ALTER TABLE south DROP gone",
    "ALTER TABLE parted ATTACH PARTITION south FOR VALUES IN ('s')",
    "INSERT INTO parted VALUES (1, 'n', 'A', 1), (2, 's', 'B', 2)",
)
AGGREGATE = AggregateConfig.model_validate(
    {
        "name": "counts",
        "sources": ["notes"],
        "dimensions": ["status", "n", "kind", "price", "word"],
        "targets": ["stats"],
    }
)
OF_PARTED = AggregateConfig.model_validate(
    {
        "name": "counts",
        "sources": [{"table": "parted", "aliases": {"state": ["state", "status"]}}],
        "dimensions": ["state", "n"],
        "targets": ["stats"],
    }
)


def marks(database: Database, aggregate: AggregateConfig) -> Marks:
    (source,) = aggregate.sources
    with database.connect() as connection:
        found = read_tables(connection, [source.table])
        read = read_marks(connection, found.values(), marked_columns(aggregate))
    return marks_from_json(marks_to_json(marks_of(aggregate, read)))


HARMLESS = [
    "VACUUM FULL notes",
    "CLUSTER notes USING notes_pkey",
    "TRUNCATE notes",  # which the stream tells
    "ANALYZE notes",
    "ALTER TABLE notes ADD more int",
    "ALTER TABLE notes ADD made float DEFAULT random()",
    "ALTER TABLE notes DROP unused",
    "ALTER TABLE notes ALTER status SET NOT NULL",
    "ALTER TABLE notes ALTER status SET DEFAULT 'x'",
    "ALTER TABLE notes ALTER status SET STATISTICS 50",
    "GRANT SELECT (status) ON notes TO public",
    "ALTER TABLE notes ALTER status TYPE varchar(20)",
    "ALTER TABLE notes ALTER status TYPE text",
    "ALTER TABLE notes ALTER word TYPE text",
    "ALTER TABLE notes ALTER price TYPE numeric(12, 2)",
    "ALTER TABLE notes ALTER unused TYPE bigint",
    "ALTER TYPE kind ADD VALUE 'letter' BEFORE 'sms'",
    "ALTER TABLE notes REPLICA IDENTITY FULL",
]


@pytest.mark.parametrize("statement", HARMLESS)
def test_what_gives_no_row_another_value_goes_on(database: Database, statement: str) -> None:
    database.run(*TABLES)
    before = marks(database, AGGREGATE)
    database.run(statement)
    assert marks_stop(before, marks(database, AGGREGATE)) is None


@pytest.mark.parametrize(
    ("statements", "code", "column"),
    [
        (
            ["ALTER TABLE notes ALTER status TYPE varchar(10) USING lower(status)"],
            StopCode.COLUMN_REWRITTEN,
            "status",
        ),
        (
            ["ALTER TABLE notes ALTER status TYPE text USING lower(status)"],
            StopCode.COLUMN_RETYPED,
            "status",
        ),
        (["ALTER TABLE notes ALTER n TYPE bigint"], StopCode.COLUMN_RETYPED, "n"),
        (["ALTER TABLE notes ALTER n TYPE bigint USING n * 10"], StopCode.COLUMN_RETYPED, "n"),
        (["ALTER TABLE notes ALTER n TYPE oid"], StopCode.COLUMN_RETYPED, "n"),
        (
            ["ALTER TABLE notes ALTER price TYPE numeric(12, 4)"],
            StopCode.COLUMN_RETYPED,
            "price",
        ),
        (["ALTER TYPE kind RENAME VALUE 'sms' TO 'text'"], StopCode.LABEL_RENAMED, "kind"),
        (
            ["ALTER TABLE notes DROP n", "ALTER TABLE notes ADD n int"],
            StopCode.COLUMN_REPLACED,
            "n",
        ),
        (
            [
                "ALTER TABLE notes RENAME n TO other",
                "ALTER TABLE notes RENAME unused TO n",
            ],
            StopCode.COLUMN_REPLACED,
            "n",
        ),
        (
            ["ALTER TABLE notes RENAME TO old", "CREATE TABLE notes (LIKE old)"],
            StopCode.TABLE_REPLACED,
            "",
        ),
        (
            [
                "CREATE TABLE other (LIKE notes)",
                "DROP TABLE notes",
                "ALTER TABLE other RENAME TO notes",
            ],
            StopCode.TABLE_REPLACED,
            "",
        ),
    ],
)
def test_what_gives_rows_other_values_stops(
    database: Database, statements: list[str], code: StopCode, column: str
) -> None:
    database.run(*TABLES)
    before = marks(database, AGGREGATE)
    database.run(*statements)
    stop = marks_stop(before, marks(database, AGGREGATE))
    assert stop is not None
    assert (stop.code, stop.table, stop.column) == (code, "public.notes", column)


def test_a_file_and_a_column_that_are_written_at_different_times_mean_nothing(
    database: Database,
) -> None:
    database.run(*TABLES)
    before = marks(database, AGGREGATE)
    for statement in ("VACUUM FULL notes", "ALTER TABLE notes ALTER n SET DEFAULT 1") * 2:
        database.run(statement)
        now = marks(database, AGGREGATE)
        assert marks_stop(before, now) is None
        assert before != now
        before = now


def test_a_rewrite_that_nobody_can_tell_from_one_of_the_values_stops(database: Database) -> None:
    database.run(
        *TABLES, "ALTER TABLE notes DROP word", "ALTER TABLE notes ADD word text DEFAULT 'w'"
    )
    before = marks(database, AGGREGATE)
    database.run("VACUUM FULL notes")
    stop = marks_stop(before, marks(database, AGGREGATE))
    assert stop is not None
    assert (stop.code, stop.column) == (StopCode.COLUMN_REWRITTEN, "word")


def test_partitions_come_and_go_and_what_is_rewritten_of_one_that_was_there_is_noticed(
    database: Database,
) -> None:
    database.run(*TABLES)
    before = marks(database, OF_PARTED)
    assert set(before) == {str(TableName("public", "parted"))}
    database.run(
        "CREATE TABLE east PARTITION OF parted FOR VALUES IN ('e')",
        "ALTER TABLE parted DETACH PARTITION north",
        "VACUUM FULL south",
        # As an alias allows.
        "ALTER TABLE parted RENAME status TO state",
    )
    now = marks(database, OF_PARTED)
    assert marks_stop(before, now) is None
    database.run("ALTER TABLE parted ALTER state TYPE text USING lower(state)")
    stop = marks_stop(now, marks(database, OF_PARTED))
    assert stop is not None
    assert (stop.code, stop.column) == (StopCode.COLUMN_REWRITTEN, "state")


def test_a_rewrite_during_a_look_is_noticed_by_the_next_one(database: Database) -> None:
    """The file and the columns' rows in the catalog are read at one moment."""
    database.run(*TABLES)
    before = marks(database, AGGREGATE)
    names = [source.table for source in AGGREGATE.sources]
    with database.connect() as looking:
        looking.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        tables = read_tables(looking, names)
        database.run("ALTER TABLE notes ALTER status TYPE varchar(10) USING lower(status)")
        read = read_marks(looking, tables.values(), marked_columns(AGGREGATE))
    during = marks_of(AGGREGATE, read)
    assert marks_stop(before, during) is None
    stop = marks_stop(during, marks(database, AGGREGATE))
    assert stop is not None
    assert (stop.code, stop.column) == (StopCode.COLUMN_REWRITTEN, "status")


def test_a_column_that_is_gone_at_a_look_stops_before_another_one_has_its_name(
    database: Database,
) -> None:
    database.run(*TABLES)
    before = marks(database, AGGREGATE)
    database.run("ALTER TABLE notes DROP status")
    now = marks(database, AGGREGATE)
    with database.connect() as connection:
        tables = read_tables(connection, [source.table for source in AGGREGATE.sources])
    assert marks_stop(before, now) is None
    stop = alias_stop(AGGREGATE, before, now, tables)
    assert stop == Stop(StopCode.COLUMN_GONE, "public.notes", "status")
