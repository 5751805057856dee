"""Tables change while a query reads them: as docs/spark.md says. Real server, real capture."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from penstock.changelog.reader import LogReader
from penstock.lsn import Lsn
from penstock.spark.errors import explain
from support.capturing import capture_config, capturing
from support.database import Database
from support.waiting import eventually
from support.workload import PUBLICATION, SLOT, prepare

# A stream on a busy machine.
_WITHIN_S = 60


class Things:
    """Table `things`, its log, and a stream over it that keeps its place."""

    def __init__(self, spark: SparkSession, database: Database, directory: Path) -> None:
        self.database = database
        self.log = directory / "log"
        self._checkpoint = directory / "checkpoint"
        self._spark = spark

    def sql(self, *statements: str) -> None:
        """Run them, and wait until all of it is in the log."""
        self.database.run(*statements)
        end = self.database.wal_position()
        eventually(
            lambda: (self.log / "head").exists() and LogReader(self.log).end().lsn >= end,
            f"{end} in the log",
        )

    def lsn(self) -> Lsn:
        """Of the newest commit."""
        reader = LogReader(self.log)
        return [commit.lsn for commit in reader.commits(reader.start(), reader.end())][-1]

    def batch(self, **options: str) -> list[Row]:
        given = {"path": str(self.log), "table": "things", **options}
        if "tables" in options:
            del given["table"]
        rows = self._spark.read.format("penstock").options(**given).load().collect()
        return sorted(rows, key=lambda row: (row["_commit_version"], row["_seq"]))

    def start(self, found: list[Row], *, once: bool = False) -> StreamingQuery:
        def collect(frame: DataFrame, _batch_id: int) -> None:
            rows = frame.collect()
            found.extend(sorted(rows, key=lambda row: (row["_commit_version"], row["_seq"])))

        writer = (
            self._spark.readStream.format("penstock")
            .options(path=str(self.log), table="things")
            .load()
            .writeStream.foreachBatch(collect)
            .option("checkpointLocation", str(self._checkpoint))
        )
        return (writer.trigger(availableNow=True) if once else writer).start()

    def follow(self, statement: str) -> tuple[StreamingQuery, list[Row]]:
        """Run it, and start a query that has found its one row; the rows go on to come."""
        self.sql(statement)
        found: list[Row] = []
        query = self.start(found)
        arrives(found, 1)
        return query, found

    def stops(self, query: StreamingQuery, reason: str) -> None:
        """The query ends at the newest commit, says why, and what to do."""
        said = stopped(query)
        assert reason in said
        assert f"commits at {self.lsn()}. Start the query again" in said

    def stream(self) -> list[Row]:
        """All that came since the last time."""
        found: list[Row] = []
        self.start(found, once=True).awaitTermination()
        return found


@pytest.fixture
def things(spark: SparkSession, database18: Database, tmp_path: Path) -> Iterator[Things]:
    prepare(database18, slot=False)
    database18.run(
        "CREATE TABLE things (id int PRIMARY KEY, a int, note text)",
        f"ALTER PUBLICATION {PUBLICATION} ADD TABLE things",
    )
    database18.create_slot(SLOT)
    with capturing(capture_config(database18.dsn(), tmp_path / "log")):
        yield Things(spark, database18, tmp_path)


def shown(rows: list[Row], *names: str) -> list[tuple[Any, ...]]:
    return [tuple(row[name] for name in names) for row in rows]


def arrives(found: list[Row], count: int) -> None:
    eventually(lambda: len(found) == count, f"{count} rows", within_s=_WITHIN_S)


def stopped(query: StreamingQuery) -> str:
    """The sentence with which a query ends."""
    with pytest.raises(StreamingQueryException) as caught:
        query.awaitTermination(_WITHIN_S)
    return explain(caught.value) or ""


def test_an_added_column_leaves_a_query_alone_and_a_renamed_one_stops_it(
    things: Things,
) -> None:  # M4.6
    query, found = things.follow("INSERT INTO things VALUES (1, 10)")
    things.sql(
        "ALTER TABLE things ADD COLUMN more int DEFAULT 5",
        "INSERT INTO things VALUES (2, 20, NULL, 200)",
    )
    arrives(found, 2)
    assert "more" not in found[1].asDict()
    things.sql(
        "ALTER TABLE things RENAME COLUMN a TO b",
        "INSERT INTO things VALUES (3, 30, NULL, 300), (4, 40, NULL, NULL)",
    )
    things.stops(query, "column a of public.things is gone: dropped or renamed")
    assert len(found) == 2
    assert shown(things.stream(), "id", "b", "more", "_absent") == [
        (3, 30, 300, []),
        (4, 40, None, []),
    ]
    # From the start: what a change does not know is not the same as NULL.
    assert shown(things.batch(), "id", "b", "more", "_absent") == [
        (1, None, None, ["b", "more"]),
        (2, None, 200, ["b"]),
        (3, 30, 300, []),
        (4, 40, None, []),
    ]


def test_a_column_added_in_the_midst_of_a_transaction_is_absent_before(things: Things) -> None:
    # M4.6
    with things.database.connect(autocommit=False) as connection:
        connection.execute("INSERT INTO things VALUES (1, 10)")
        connection.execute("ALTER TABLE things ADD COLUMN more int")
        connection.execute("INSERT INTO things VALUES (2, 20, NULL, 200)")
    things.sql()
    expected = [(1, None, ["more"], 0), (2, 200, [], 1)]
    assert shown(things.batch(), "id", "more", "_absent", "_seq") == expected


def test_a_dropped_and_a_retyped_column_stop_a_query_and_a_restart_goes_on(
    things: Things,
) -> None:  # M4.6
    query, found = things.follow("INSERT INTO things VALUES (1, 10, 'x')")
    things.sql("ALTER TABLE things DROP COLUMN note", "INSERT INTO things VALUES (2, 20)")
    things.stops(query, "column note of public.things is gone: dropped or renamed")

    query = things.start(found)
    arrives(found, 2)
    assert "note" not in found[1].asDict()
    things.sql(
        "ALTER TABLE things ALTER COLUMN a TYPE bigint",
        "INSERT INTO things VALUES (3, 3000000000)",
    )
    things.stops(query, "column a of public.things is bigint and not integer")
    assert shown(things.stream(), "id", "a") == [(3, 3_000_000_000)]
    # From the start: what was an int is a bigint now.
    assert shown(things.batch(), "a") == [(10,), (20,), (3_000_000_000,)]


def test_changes_from_before_a_retype_are_read_if_their_values_fit(things: Things) -> None:
    # M4.6
    things.sql(
        "INSERT INTO things VALUES (1, 10, '7')",
        "ALTER TABLE things ALTER COLUMN a TYPE text",
        "INSERT INTO things VALUES (2, 'twenty', '8')",
    )
    assert shown(things.batch(), "a") == [("10",), ("twenty",)], "anything is text"
    before = things.lsn()
    things.sql(
        "ALTER TABLE things ALTER COLUMN note TYPE int USING note::int",
        "INSERT INTO things VALUES (3, 'thirty', 9)",
    )
    with pytest.raises(PySparkException) as caught:
        things.batch()
    said = explain(caught.value) or ""
    assert "column note of public.things is text and not integer" in said
    assert "by the option columns, or as JSON, by the option tables" in said
    assert shown(things.batch(columns="id"), "id") == [(1,), (2,), (3,)]
    assert shown(things.batch(startingPosition=str(before)), "note") == [(9,)]
    rows = things.batch(tables="things")
    assert [json.loads(row["after"])["note"] for row in rows] == ["7", "8", 9]


def test_a_table_that_is_rewritten_gives_no_changes(things: Things) -> None:  # M4.6
    things.sql("INSERT INTO things SELECT n, n FROM generate_series(1, 100) AS n")
    things.sql(
        "VACUUM FULL things",
        "CLUSTER things USING things_pkey",
        "ALTER TABLE things ALTER COLUMN a TYPE bigint",
        "ALTER TABLE things ADD COLUMN made timestamptz DEFAULT clock_timestamp()",
        "UPDATE things SET a = 0 WHERE id = 50",
    )
    rows = things.batch(preimages="false")
    assert shown(rows[:100], "id", "a") == [(n, n) for n in range(1, 101)]
    assert shown(rows[100:], "id", "a", "_change_type") == [(50, 0, "update_postimage")]


def test_values_that_were_not_in_the_wal_are_told_apart_from_null(things: Things) -> None:
    # M4.6
    long = "".join(f"{n:08x}" for n in range(1_000))
    things.sql(
        "ALTER TABLE things ALTER COLUMN note SET STORAGE EXTERNAL",
        f"INSERT INTO things VALUES (1, 10, '{long}')",
        "UPDATE things SET a = 11",
        "UPDATE things SET id = 2",
        "UPDATE things SET note = NULL",
        f"UPDATE things SET note = '{long}'",
        "ALTER TABLE things REPLICA IDENTITY FULL",
        "UPDATE things SET a = 12",
        "ALTER TABLE things REPLICA IDENTITY DEFAULT",
        "DELETE FROM things",
    )
    found = shown(things.batch(), "_change_type", "id", "a", "note", "_unchanged", "_absent")
    unknown = ["a", "note"]
    assert found == [
        ("insert", 1, 10, long, [], []),
        # Only the identity is known of the row before, and TOAST was not written again.
        ("update_preimage", 1, None, None, [], unknown),
        ("update_postimage", 1, 11, None, ["note"], []),
        ("update_preimage", 1, None, None, [], unknown),
        ("update_postimage", 2, 11, None, ["note"], []),
        ("update_preimage", 2, None, None, [], unknown),
        ("update_postimage", 2, 11, None, [], []),
        ("update_preimage", 2, None, None, [], unknown),
        ("update_postimage", 2, 11, long, [], []),
        # With FULL the old row has it, and so the new one.
        ("update_preimage", 2, 11, long, [], []),
        ("update_postimage", 2, 12, long, [], []),
        ("delete", 2, None, None, [], unknown),
    ]


def test_a_renamed_table_is_read_by_the_name_that_it_had(things: Things) -> None:  # M4.6
    things.sql("INSERT INTO things VALUES (1, 10)")
    things.sql("ALTER TABLE things RENAME TO stuff", "INSERT INTO stuff VALUES (2, 20)")
    assert shown(things.batch(), "id") == [(1,)]
    assert shown(things.batch(table="stuff"), "id") == [(2,)]
    with pytest.raises(PySparkException, match=r"no change of public\.thinks.*under its old name"):
        things.batch(table="thinks")
    assert shown(things.stream(), "id") == [(1,)]
    things.sql("INSERT INTO stuff VALUES (3, 30)")
    assert things.stream() == [], "which is not an error"
