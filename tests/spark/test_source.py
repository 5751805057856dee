"""The Spark source on a log written here, through a real session."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, Row, SparkSession

from penstock.changelog.writer import LogWriter
from penstock.lsn import Lsn
from penstock.postgres.messages import Column, Delete, Insert, Message, Relation, Update
from support.logs import IDENTITY, append_transaction

NOTES = Relation(
    oid=16400,
    namespace="public",
    name="notes",
    replica_identity="i",
    columns=(
        Column(in_identity=True, name="id", type_oid=23, type_modifier=-1),
        Column(in_identity=True, name="status", type_oid=25, type_modifier=-1),
        Column(in_identity=False, name="body", type_oid=25, type_modifier=-1),
    ),
)
OTHER = Relation(16500, "public", "other", "d", (Column(True, "id", 23, -1),))


@pytest.fixture
def write(tmp_path: Path) -> Iterator[Callable[..., None]]:
    """Append one transaction of the given changes at an LSN and make it durable."""
    writer = LogWriter(tmp_path, replace(IDENTITY, start_lsn=Lsn(0x100)))

    def append(lsn: int, *messages: Message) -> None:
        append_transaction(writer, lsn, *messages)

    yield append
    writer.close()


def read_all(spark: SparkSession, path: Path, table: str = "notes") -> list[Row]:
    """Everything that is in the log now, in order, through a stream."""
    rows: list[Row] = []

    def collect(batch: DataFrame, _batch_id: int) -> None:
        rows.extend(batch.collect())

    changes = spark.readStream.format("penstock").option("path", str(path)).option("table", table)
    query = (
        changes.load()
        .writeStream.foreachBatch(collect)
        .option("checkpointLocation", str(path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return rows


def test_changes_arrive_in_order_with_their_metadata_and_no_register_call(
    spark: SparkSession, tmp_path: Path, write: Callable[..., None]
) -> None:  # M5.1
    write(0x200, NOTES, Insert(16400, (b"1", b"created", b"hello")))
    write(
        0x300,
        NOTES,
        Update(16400, (b"1", b"created", None), None, (b"1", b"sent", b"hello")),
        Delete(16400, (b"1", b"sent", None), None),
    )
    rows = [tuple(row) for row in read_all(spark, tmp_path)]
    assert rows == [
        ("1", "created", "hello", "insert", 0x200, 0),
        ("1", "created", None, "update_preimage", 0x300, 0),
        ("1", "sent", "hello", "update_postimage", 0x300, 0),
        ("1", "sent", None, "delete", 0x300, 1),
    ]


def test_an_update_without_an_old_image_keeps_its_identity(
    spark: SparkSession, tmp_path: Path, write: Callable[..., None]
) -> None:  # M4.5
    write(0x200, NOTES, Update(16400, None, None, (b"1", b"sent", b"new")))
    before, after = (tuple(row)[:4] for row in read_all(spark, tmp_path))
    assert before == ("1", "sent", None, "update_preimage")
    assert after == ("1", "sent", "new", "update_postimage")


def test_the_sequence_counts_changes_of_all_tables(
    spark: SparkSession, tmp_path: Path, write: Callable[..., None]
) -> None:
    row = (b"1", b"created", None)
    write(0x200, OTHER, Insert(16500, (b"9",)), NOTES, Insert(16400, row))
    assert [row["_seq"] for row in read_all(spark, tmp_path)] == [1]


def test_a_second_run_goes_on_where_the_checkpoint_stands(
    spark: SparkSession, tmp_path: Path, write: Callable[..., None]
) -> None:
    write(0x200, NOTES, Insert(16400, (b"1", b"a", None)))
    assert [row["id"] for row in read_all(spark, tmp_path)] == ["1"]
    write(0x300, NOTES, Insert(16400, (b"2", b"a", None)))
    assert [row["id"] for row in read_all(spark, tmp_path)] == ["2"]
    assert read_all(spark, tmp_path) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"table": "notes"}, "option 'path' is missing"),
        ({"path": "LOG"}, "option 'table' is missing"),
        ({"path": "LOG", "table": "no.such.table"}, "is not a table name"),
        ({"path": "LOG", "table": "notes", "tabel": "x"}, "unknown option 'tabel'"),
        ({"path": "/nowhere", "table": "notes"}, "there is no change log in /nowhere"),
        ({"path": "LOG", "table": "absent"}, "holds no change of public.absent yet"),
    ],
)
def test_bad_options_are_one_readable_sentence(
    spark: SparkSession,
    tmp_path: Path,
    write: Callable[..., None],
    options: dict[str, str],
    message: str,
) -> None:  # M7.3
    write(0x200, NOTES, Insert(16400, (b"1", b"a", None)))
    options = {name: str(tmp_path) if value == "LOG" else value for name, value in options.items()}
    with pytest.raises(AnalysisException, match=message):
        spark.readStream.format("penstock").options(**options).load()
