"""The Spark source on a log written here, through a real session."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException, PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from penstock.changelog import consumers
from penstock.changelog.maintenance import prune
from penstock.changelog.planning import shares
from penstock.changelog.reader import LogReader, Position
from penstock.changelog.settings import LogSettings, RetentionSettings
from penstock.changelog.storage import LocalStorage
from penstock.lsn import Lsn
from penstock.postgres.fragments import Fragmenter
from penstock.postgres.messages import Column, Delete, Insert, Truncate, Update
from penstock.spark.errors import explain
from penstock.spark.reading import Part, PenstockStreamReader
from penstock.spark.source import PenstockDataSource
from support import wire
from support.logs import IDENTITY, apply
from support.source_log import NOTES, OTHER, Log


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    log = Log(tmp_path / "log")
    yield log
    log.writer.close()


def batch(spark: SparkSession, log: Log, **options: str) -> DataFrame:
    given = {"path": str(log.path), "table": "notes", **options}
    return spark.read.format("penstock").options(**given).load()


def stream(
    spark: SparkSession,
    log: Log,
    checkpoint: str = "checkpoint",
    source: str = "penstock",
    killed: bool = False,
    **options: str,
) -> list[list[Row]]:
    """What there is now, through a stream that stops when it has read it: batch by batch.

    `killed`: in its first batch.
    """
    batches: list[list[Row]] = []

    def collect(frame: DataFrame, _batch_id: int) -> None:
        if killed:
            raise RuntimeError("killed")
        batches.append(sorted(frame.collect(), key=lambda r: (r["_commit_version"], r["_seq"])))

    given = {"path": str(log.path), "table": "notes", **options}
    given = {name: value for name, value in given.items() if value}
    query = (
        spark.readStream.format(source)
        .options(**given)
        .load()
        .writeStream.foreachBatch(collect)
        .option("checkpointLocation", str(log.path.parent / checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return batches


def ids(batches: list[list[Row]]) -> list[list[int]]:
    return [[row["id"] for row in rows] for rows in batches]


def test_changes_arrive_in_order_with_their_metadata_and_no_register_call(
    spark: SparkSession, log: Log
) -> None:  # M5.1
    log.append(0x200, NOTES, Insert(16400, (b"1", b"created", b"hello")))
    log.append(
        0x300,
        OTHER,
        Insert(16500, (b"9",)),
        NOTES,
        Update(16400, (b"1", b"created", None), None, (b"1", b"sent", b"hello")),
        Update(16400, None, None, (b"1", b"sent", b"bye")),
        Delete(16400, (b"1", b"sent", None), None),
    )
    expected = [
        (1, "created", "hello", "insert", 0x200, 0, []),
        (1, "created", None, "update_preimage", 0x300, 1, ["body"]),
        (1, "sent", "hello", "update_postimage", 0x300, 1, []),
        (1, "sent", None, "update_preimage", 0x300, 2, ["body"]),
        (1, "sent", "bye", "update_postimage", 0x300, 2, []),
        (1, "sent", None, "delete", 0x300, 3, ["body"]),
    ]
    names = ("id", "status", "body", "_change_type", "_commit_version", "_seq", "_absent")

    def shown(rows: list[Row]) -> list[tuple[Any, ...]]:
        return [tuple(row[name] for name in names) for row in rows]

    (streamed,) = stream(spark, log)
    assert shown(streamed) == expected
    read = batch(spark, log)
    assert shown(read.collect()) == expected, "a batch of a range equals the stream over it"
    assert read.schema.simpleString() == (
        "struct<id:int,status:string,body:string,_change_type:string,_commit_version:bigint,"
        "_commit_timestamp:timestamp,_seq:bigint,_xid:bigint,_unchanged:array<string>,"
        "_absent:array<string>>"
    )


def test_a_second_run_goes_on_where_the_checkpoint_stands(spark: SparkSession, log: Log) -> None:
    log.insert(0x200, 1)
    assert ids(stream(spark, log)) == [[1]]
    log.insert(0x300, 2)
    assert ids(stream(spark, log)) == [[2]]
    assert stream(spark, log) == []
    assert ids(stream(spark, log, "another")) == [[1, 2]], "a second reader has its own position"


def test_batches_hold_whole_transactions_that_fit_and_a_large_one_alone(
    spark: SparkSession, log: Log
) -> None:  # M5.1
    for number in range(4):
        log.insert(0x200 + 16 * number, 2 * number, 2 * number + 1)
    log.insert(0x300, *range(10, 19))
    log.insert(0x310, 20)
    found = ids(stream(spark, log, maxRowsPerTrigger="5"))
    assert found == [[0, 1, 2, 3], [4, 5, 6, 7], list(range(10, 19)), [20]]
    sizes = ids(stream(spark, log, "by bytes", maxBytesPerTrigger="1"))
    assert [len(rows) for rows in sizes] == [2, 2, 2, 2, 9, 1]


def test_a_stream_in_small_steps_and_shares_gives_each_change_once(
    spark: SparkSession, tmp_path: Path
) -> None:  # M5.1
    # Frames of many commits, batches that end within them, and tasks that end where batches do.
    log = Log(tmp_path / "log")
    fragmenter = Fragmenter(log.writer.complete_lsn)
    lsns = [Lsn(0x200 + 16 * number) for number in range(12)]
    for number, lsn in enumerate(lsns):
        rows = [Insert(16400, (str(2 * number + n).encode(), b"new", None)) for n in range(2)]
        changes = [wire.xlog(NOTES), *map(wire.xlog, rows)]
        run = [wire.begin(lsn - 8), *changes, wire.commit(lsn)]
        apply(log.writer, fragmenter, [memoryview(message) for message in run])
        if number % 5 == 4:
            log.writer.flush(lsn)
    log.writer.flush(lsns[-1])

    # Local, so that Spark sends the classes and not their names.
    class SmallReader(PenstockStreamReader):
        def _parts(self, log: LogReader, after: Position, up_to: Position) -> list[InputPartition]:
            return [Part((share,)) for share in shares(log, after, up_to, share_bytes=600)]

    class SmallShares(PenstockDataSource):
        @classmethod
        def name(cls) -> str:
            return "penstock-small"

        def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's
            usual = super().streamReader(schema)
            assert isinstance(usual, PenstockStreamReader)
            return SmallReader(usual._options, usual._decoding)

    spark.dataSource.register(SmallShares)
    expected = list(range(2 * len(lsns)))
    batches = ids(stream(spark, log, source="penstock-small", maxRowsPerTrigger="6"))
    assert batches == [expected[at : at + 6] for at in range(0, len(expected), 6)]
    middle = batch(spark, log, startingPosition=str(lsns[2]), endingPosition=str(lsns[6]))
    assert ids([middle.collect()]) == [expected[6:14]]
    log.writer.close()


def test_positions_choose_a_range(spark: SparkSession, log: Log) -> None:  # M5.1
    for number in range(1, 6):
        log.insert(0x200 + 16 * number, number)

    def between(**options: str) -> list[int]:
        return [row["id"] for row in batch(spark, log, **options).collect()]

    assert between(startingPosition="0/220") == [3, 4, 5]
    assert between(endingPosition="0/220") == [1, 2]
    assert between(startingPosition="0/220", endingPosition="0/240") == [3, 4]
    assert between(startingPosition="latest") == []
    assert between(startingPosition="0/220", endingPosition="0/220") == []
    # The tests' commits all happen at the start of Postgres's calendar.
    assert between(startingPosition="1999-01-01T00:00:00") == [1, 2, 3, 4, 5]
    assert between(startingPosition="2001-01-01") == []
    assert ids(stream(spark, log, startingPosition="0/230")) == [[4, 5]]


def test_columns_preimages_and_prefix_are_the_readers_choice(spark: SparkSession, log: Log) -> None:
    log.append(0x200, NOTES, Update(16400, (b"1", b"a", None), None, (b"1", b"b", b"x")))
    read = batch(spark, log, columns="body, status", preimages="false", metadataPrefix="p_")
    assert read.columns[:3] == ["body", "status", "p_change_type"]
    (row,) = read.collect()
    assert tuple(row)[:3] == ("x", "b", "update_postimage")


def test_a_column_with_the_name_of_our_metadata_asks_for_a_prefix(
    spark: SparkSession, log: Log
) -> None:
    odd = replace(OTHER, columns=(Column(True, "_SEQ", 23, -1),))
    log.append(0x200, odd, Insert(16500, (b"1",)))
    with pytest.raises(AnalysisException, match="metadataPrefix"):
        batch(spark, log, table="other")
    assert batch(spark, log, table="other", metadataPrefix="x_").first()["_SEQ"] == 1  # type: ignore[index]


def test_a_truncate_stops_is_skipped_or_is_a_row(spark: SparkSession, log: Log) -> None:  # M4.6
    log.insert(0x200, 1)
    log.append(0x300, NOTES, Truncate(False, False, (16400,)))
    log.insert(0x400, 2)
    with pytest.raises(PySparkException) as caught:
        batch(spark, log).collect()
    assert "public.notes was truncated at 0/300" in (explain(caught.value) or "")
    kinds = [r["_change_type"] for r in batch(spark, log, onTruncate="emit").collect()]
    assert kinds == ["insert", "truncate", "insert"]
    assert ids([batch(spark, log, onTruncate="skip").collect()]) == [[1, 2]]


def test_what_spark_cannot_hold_follows_the_option(spark: SparkSession, log: Log) -> None:  # M4.6
    days = replace(OTHER, columns=(Column(True, "day", 1082, -1),))
    log.append(0x200, days, Insert(16500, (b"infinity",)), Insert(16500, (b"2026-11-16",)))

    def read(**options: str) -> list[str]:
        rows = batch(spark, log, table="other", **options).collect()
        return [str(row["day"]) for row in rows]

    with pytest.raises(PySparkException) as caught:
        read()
    assert "column day of public.other holds a value at 0/200" in (explain(caught.value) or "")
    assert read(onUnrepresentable="null") == ["None", "2026-11-16"]
    assert read(onUnrepresentable="string") == ["infinity", "2026-11-16"]


def test_many_tables_come_as_json(spark: SparkSession, log: Log) -> None:
    log.append(0x200, OTHER, Insert(16500, (b"9",)), NOTES, Insert(16400, (b"1", b"a", None)))
    log.append(0x300, Delete(16500, (b"9",), None))
    rows = read_all(spark, log, "*")
    assert [(r["table"], r["_change_type"]) for r in rows] == [
        ("public.other", "insert"),
        ("public.notes", "insert"),
        ("public.other", "delete"),
    ]
    assert json.loads(rows[1]["after"]) == {"id": 1, "status": "a", "body": None}
    assert json.loads(rows[2]["key"]) == {"id": 9}
    assert [r["table"] for r in read_all(spark, log, "notes, absent")] == ["public.notes"]


def read_all(spark: SparkSession, log: Log, tables: str) -> list[Row]:
    return spark.read.format("penstock").options(path=str(log.path), tables=tables).load().collect()


def test_a_batch_knows_its_range_although_it_holds_no_row(spark: SparkSession, log: Log) -> None:
    # M5.3
    log.insert(0x200, 1)
    stream(spark, log, batchRange="true")
    log.append(0x300, OTHER, Insert(16500, (b"9",)))
    ((row,),) = stream(spark, log, batchRange="true")
    assert (row["_change_type"], row["_seq"], row["_commit_version"]) == (
        "batch_range",
        0x200,
        0x300,
    )


def test_a_consumer_keeps_what_it_has_not_applied(spark: SparkSession, tmp_path: Path) -> None:
    log = Log(tmp_path / "log", LogSettings(segment_bytes=100))
    storage = LocalStorage(log.path)
    log.insert(0x200, 1)
    stream(spark, log, consumer="mine")
    (known,) = consumers.consumers(storage)
    assert (known.name, known.applied_lsn) == ("mine", 0x100), "Spark tells one batch late"
    log.insert(0x300, 2)
    stream(spark, log, consumer="mine")
    (known,) = consumers.consumers(storage)
    assert known.applied_lsn == 0x200
    prune(log.writer, RetentionSettings(min_age_s=0))
    assert ids([batch(spark, log, startingPosition="0/200").collect()]) == [[2]]
    log.writer.close()


def test_retention_that_overtakes_a_reader_is_an_error_and_not_a_gap(
    spark: SparkSession, tmp_path: Path
) -> None:
    log = Log(tmp_path / "log", LogSettings(segment_bytes=100))
    log.insert(0x200, 1)
    stream(spark, log)
    for number in range(5):
        log.insert(0x300 + 16 * number, number)
    prune(log.writer, RetentionSettings(min_age_s=0))
    with pytest.raises(StreamingQueryException) as caught:
        stream(spark, log)
    assert "no longer goes back to 0/200" in (explain(caught.value) or "")
    log.writer.close()


def test_a_checkpoint_of_another_log_is_refused(
    spark: SparkSession, log: Log, tmp_path: Path
) -> None:  # M3.9
    log.insert(0x200, 1)
    stream(spark, log)
    other = Log(tmp_path / "other", identity=replace(IDENTITY, log_id=uuid.uuid4()))
    other.insert(0x2000, 1)
    with pytest.raises(StreamingQueryException) as caught:
        stream(spark, other)
    assert "a position of log" in (explain(caught.value) or "")
    other.writer.close()


def test_a_log_that_ends_before_the_checkpoint_is_refused(spark: SparkSession, log: Log) -> None:
    # M3.9: Spark itself would go back in silence.
    log.insert(0x200, 1)
    stream(spark, log)
    offsets = sorted((log.path.parent / "checkpoint" / "offsets").glob("[0-9]*"))
    text = offsets[-1].read_text()
    offsets[-1].write_text(text.replace('"lsn":512', '"lsn":51200').replace(": 512", ": 51200"))
    (offsets[-1].parent / f".{offsets[-1].name}.crc").unlink(missing_ok=True)
    with pytest.raises(StreamingQueryException) as caught:
        stream(spark, log)
    assert "beyond the end of the change log" in (explain(caught.value) or "")


def test_a_log_of_thousands_of_small_frames_is_read_whole(spark: SparkSession, log: Log) -> None:
    for number in range(3_000):
        log.insert(0x1000 + 16 * number, number)
    frame = batch(spark, log, columns="id")
    assert frame.agg({"id": "sum", "_seq": "max"}).first() == (sum(range(3_000)), 0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"path": ""}, "option 'path'"),
        ({"table": ""}, "option 'table'"),
        ({"tables": "a"}, "either 'table'"),
        ({"table": "no.such.table"}, "is not a table name"),
        ({"tabel": "x"}, "unknown option 'tabel'.*The options are: path, table"),
        ({"path": "/nowhere"}, "there is no change log in /nowhere"),
        ({"table": "absent"}, "holds no change of public.absent yet"),
        ({"columns": "id,nope"}, "public.notes has no column nope.*id, status, body"),
        ({"columns": "id,id"}, "a column is named twice"),
        ({"columns": "nonsense.id"}, "'nonsense.id' is not a column name"),
        ({"columns": "id,2nd"}, "'2nd' is not a column name"),
        ({"consumer": "a b"}, "'a b' is not a name of up to 100 letters"),
        ({"startingPosition": "soon"}, "'soon' is none of: earliest, latest"),
        ({"startingPosition": "0/FFFFFF"}, "beyond the end of the change log"),
        ({"maxRowsPerTrigger": "0"}, "'0' is not a whole number above 0"),
        ({"maxBytesPerTrigger": "much"}, "'much' is not a size"),
        ({"preimages": "perhaps"}, "'perhaps' is none of: true, false"),
        ({"onTruncate": "ignore"}, "'ignore' is none of: error, skip, emit"),
        ({"onUnrepresentable": "x"}, "'x' is none of: error, null, string"),
        ({"consumer": "mine"}, "it has no 'consumer'"),
        ({"startingPosition": "0/200", "endingPosition": "0/180"}, "behind endingPosition"),
    ],
)
def test_bad_options_are_one_readable_sentence(
    spark: SparkSession, log: Log, options: dict[str, str], message: str
) -> None:  # M7.3
    log.insert(0x200, 1)
    with pytest.raises(PySparkException, match=message) as caught:
        batch(spark, log, **options).collect()
    assert "\n" not in (explain(caught.value) or "\n")


def test_a_stream_refuses_an_end(spark: SparkSession, log: Log) -> None:  # M7.3
    log.insert(0x200, 1)
    with pytest.raises(PySparkException) as caught:
        stream(spark, log, endingPosition="0/200")
    assert "a stream has no end" in (explain(caught.value) or "")


def test_columns_are_those_of_load_whatever_comes_before_the_action(
    spark: SparkSession, log: Log
) -> None:  # M4.6
    log.insert(0x200, 1)
    loaded = batch(spark, log)
    streamed = spark.readStream.format("penstock").options(path=str(log.path), table="notes").load()
    wider = replace(NOTES, columns=(*NOTES.columns, Column(False, "more", 25, -1)))
    log.append(0x300, wider, Insert(16400, (b"2", b"new", None, b"x")))
    assert [row.asDict().get("more") for row in loaded.collect()] == [None, None]
    query = streamed.writeStream.format("memory").queryName("as_loaded")
    query.trigger(availableNow=True).start().awaitTermination()
    assert [row["id"] for row in spark.table("as_loaded").orderBy("id").collect()] == [1, 2]
    loaded = batch(spark, log)
    assert "more" in loaded.columns
    narrow = replace(NOTES, columns=NOTES.columns[:1])
    log.append(0x400, narrow, Insert(16400, (b"3",)))
    with pytest.raises(PySparkException) as caught:
        loaded.collect()
    assert "column status of public.notes is gone" in (explain(caught.value) or "")


@pytest.mark.parametrize("starting", ["earliest", "latest"])
def test_retention_between_a_kill_in_the_first_batch_and_the_restart_is_an_error(
    spark: SparkSession, tmp_path: Path, starting: str
) -> None:  # M5.3
    log = Log(tmp_path / "log", LogSettings(segment_bytes=100))
    log.insert(0x200, 1)
    log.insert(0x300, 2)
    with pytest.raises(StreamingQueryException, match="killed"):
        stream(spark, log, killed=True, startingPosition=starting)
    for number in range(5):
        log.insert(0x400 + 16 * number, number)
    prune(log.writer, RetentionSettings(min_age_s=0))
    with pytest.raises(StreamingQueryException) as caught:
        stream(spark, log, startingPosition=starting)
    at = "0/100" if starting == "earliest" else "0/300"
    assert f"no longer goes back to {at}" in (explain(caught.value) or "")
    log.writer.close()


def test_a_restart_in_the_first_batch_repeats_it(spark: SparkSession, log: Log) -> None:  # M5.3
    log.insert(0x200, 1)
    with pytest.raises(StreamingQueryException, match="killed"):
        stream(spark, log, killed=True, startingPosition="latest")
    log.insert(0x300, 2)
    found = ids(stream(spark, log, startingPosition="latest"))
    assert [number for batch in found for number in batch] == [2]
