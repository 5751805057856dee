"""How batches of a stream are planned and read, step by step as Spark asks, without a session."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit
from pyspark.sql.types import StructType

from penstock.changelog import consumers
from penstock.changelog.maintenance import prune
from penstock.changelog.settings import LogSettings, RetentionSettings
from penstock.changelog.storage import LocalStorage
from penstock.errors import BadOption, LogForeignPosition, LogRetired, SchemaMismatch
from penstock.lsn import Lsn
from penstock.postgres.messages import Delete, Insert, Update
from penstock.spark import reading
from penstock.spark.reading import PenstockReader, PenstockStreamReader
from penstock.spark.source import PenstockDataSource
from support.source_log import NOTES, OTHER, Log
from support.waiting import eventually


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    log = Log(tmp_path / "log")
    yield log
    log.writer.close()


class Planning:
    """The process in which Spark plans the batches of one run; offsets travel as JSON."""

    def __init__(self, log: Log, **options: str) -> None:
        given = {"path": str(log.path), "table": "notes", **options}
        source = PenstockDataSource({name: value for name, value in given.items() if value})
        reader = source.streamReader(source.schema())
        assert isinstance(reader, PenstockStreamReader)
        self._reader = reader

    def initial(self) -> dict[str, Any]:
        return through_json(self._reader.initialOffset())

    def latest(self, start: dict[str, Any], limit: ReadLimit | None = None) -> dict[str, Any]:
        limit = limit or self._reader.getDefaultReadLimit()
        return through_json(self._reader.latestOffset(start, limit))

    def batches(self, start: dict[str, Any], end: dict[str, Any]) -> Iterator[pa.RecordBatch]:
        """Planned now, read as they are asked for."""
        parts = self._reader.partitions(start, end)
        return (batch for part in parts for batch in self._reader.read(part))

    def rows(self, start: dict[str, Any], end: dict[str, Any]) -> list[dict[str, Any]]:
        return [row for batch in self.batches(start, end) for row in batch.to_pylist()]

    def ids(self, start: dict[str, Any], end: dict[str, Any]) -> list[int]:
        return [row["id"] for row in self.rows(start, end)]


def through_json(offset: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(json.dumps(offset))
    return found


def test_a_schema_that_is_not_the_tables_is_refused(log: Log) -> None:  # M7.3
    log.insert(0x200, 1)
    source = PenstockDataSource({"path": str(log.path), "table": "notes"})
    with pytest.raises(SchemaMismatch, match=r"not that of public\.notes.*Give no schema"):
        source.reader(StructType())
    schema = PenstockDataSource(source.options).schema()
    assert isinstance(source.reader(schema), PenstockReader)


def test_a_stream_does_not_begin_in_the_future(log: Log) -> None:  # M7.3
    log.insert(0x200, 1)
    with pytest.raises(BadOption, match=r"2999-01-01T00:00:00\+00:00 is in the future"):
        Planning(log, startingPosition="2999-01-01").initial()


def test_a_position_of_another_version_is_refused_as_such(log: Log) -> None:  # M7.3
    log.insert(0x200, 1)
    planning = Planning(log)
    with pytest.raises(LogForeignPosition, match="version 2, and this Penstock reads version 1"):
        planning.latest({**planning.initial(), "v": 2})


@pytest.mark.parametrize("limit", [None, ReadAllAvailable()])
def test_what_commits_while_a_stream_from_the_end_starts_is_delivered(
    log: Log, limit: ReadLimit | None
) -> None:  # M5.3
    log.insert(0x200, 1)
    planning = Planning(log, startingPosition="latest", consumer="mine", batchRange="true")
    start = planning.initial()
    log.insert(0x300, 2)
    end = planning.latest(start, limit)
    log.insert(0x400, 3)
    later = planning.initial()
    (known,) = consumers.consumers(LocalStorage(log.path))
    assert known.applied_lsn == 0x200, "what is still to be read is kept"
    changed, covered = planning.rows(later, end)
    assert changed["id"] == 2
    assert (covered["_seq"], covered["_commit_version"]) == (0x200, 0x300)
    following = planning.latest(end)
    assert planning.ids(end, following)[0] == 3

    # Killed in the first batch: it comes again as it was, whatever `latest` is by then.
    again = Planning(log, startingPosition="latest", consumer="mine")
    assert again.ids(again.initial(), end) == [2]
    (known,) = consumers.consumers(LocalStorage(log.path))
    assert known.applied_lsn == 0x200
    following = again.latest(end)
    assert again.ids(end, following) == [3]
    assert again.latest(following) == following, "nothing is new"


def test_a_first_batch_without_changes_keeps_its_place_too(log: Log) -> None:  # M5.3
    log.insert(0x200, 1)
    planning = Planning(log, startingPosition="latest")
    end = planning.latest(planning.initial())
    assert planning.ids(planning.initial(), end) == []
    log.insert(0x300, 2)
    again = Planning(log, startingPosition="latest")
    assert again.ids(again.initial(), end) == []
    assert again.ids(end, again.latest(end)) == [2]


def test_a_batch_that_ends_before_it_begins_is_refused(log: Log) -> None:
    log.insert(0x200, 1)
    planning = Planning(log)
    start = planning.initial()
    end = planning.latest(start)
    with pytest.raises(LogForeignPosition, match="from 0/200 to 0/100, before its start"):
        planning.ids(end, start)


def test_a_consumer_is_known_from_the_first_batch_on_although_there_is_a_checkpoint(
    log: Log,
) -> None:  # M3.9
    log.insert(0x200, 1)
    first = Planning(log)
    end = first.latest(first.initial())
    log.insert(0x300, 2)
    following = first.latest(end)
    storage = LocalStorage(log.path)

    def registered() -> Lsn:
        (known,) = consumers.consumers(storage)
        consumers.forget(storage, "mine")
        return known.applied_lsn

    assert Planning(log, consumer="mine").ids(end, following) == [2]
    assert registered() == 0x200
    Planning(log, consumer="mine").latest(end)
    assert registered() == 0x200


def test_a_consumer_to_whom_nothing_comes_is_soon_where_it_is(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:  # M2.5
    monkeypatch.setattr(reading, "_LONG_POLL_S", 0.01)
    log.insert(0x200, 1)
    planning = Planning(log, consumer="mine")

    def told() -> Lsn:
        (known,) = consumers.consumers(LocalStorage(log.path))
        return known.applied_lsn

    end = planning.latest(planning.initial())
    for _ in range(3):
        assert planning.latest(end) == end
    assert told() == 0x100, "Spark may not have written down yet that it is done"
    monkeypatch.setattr(reading, "_AT_REST_S", 0.1)
    eventually(lambda: planning.latest(end) == end and told() == 0x200, "it is told")
    # With the next batch that has to begin again.
    log.insert(0x300, 2)
    following = planning.latest(end)
    planning.latest(following)
    assert told() == 0x200
    eventually(lambda: planning.latest(following) and told() == 0x300, "it is told")


def test_retention_between_planning_and_reading_is_an_error_and_not_a_gap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # M5.3
    monkeypatch.setattr("penstock.changelog.runs._RUN_BYTES", 1)
    log = Log(tmp_path / "log", LogSettings(segment_bytes=100))
    for number in range(10):
        log.insert(0x200 + 16 * number, number)
    planning = Planning(log)
    start = planning.initial()
    end = planning.latest(start)
    untouched, begun = planning.batches(start, end), planning.batches(start, end)
    assert next(begun).to_pylist()[0]["id"] == 0
    prune(log.writer, RetentionSettings(min_age_s=0))
    for batches in (untouched, begun):
        with pytest.raises(LogRetired, match=r"no longer goes back to|retention has removed it"):
            list(batches)
    log.writer.close()


def test_a_quiet_log_moves_on_now_and_then(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    # M5.3
    monkeypatch.setattr(reading, "_LONG_POLL_S", 0.05)
    monkeypatch.setattr(reading, "_EMPTY_RANGE_S", 0.5)
    log.insert(0x200, 1)
    planning = Planning(log, batchRange="true")
    end = planning.latest(planning.initial())
    # Of other tables: there is something to pass on at once.
    log.append(0x300, OTHER, Insert(16500, (b"9",)))
    following = planning.latest(end)
    (row,) = planning.rows(end, following)
    assert (row["_change_type"], row["_commit_version"]) == ("batch_range", 0x300)
    # Nothing at all: only now and then.
    log.writer.flush(Lsn(0x400))
    asked = time.monotonic()
    assert planning.latest(following) == following
    found = following

    def has_moved_on() -> bool:
        nonlocal found
        found = planning.latest(following)
        return found != following

    eventually(has_moved_on, "news")
    assert time.monotonic() - asked > 0.3
    assert found["lsn"] == 0x400


def test_the_question_for_news_waits_for_them(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    # M5.3
    monkeypatch.setattr(reading, "_LONG_POLL_S", 60.0)
    log.insert(0x200, 1)
    planning = Planning(log)
    end = planning.latest(planning.initial())
    writing = threading.Timer(0.3, log.insert, (0x300, 2))
    asked = time.monotonic()
    writing.start()
    following = planning.latest(end)
    assert 0.2 < time.monotonic() - asked < 30
    writing.join()
    assert planning.ids(end, following) == [2]


def test_where_much_is_written_more_is_gathered_and_little_waits_for_nothing(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:  # M5.3
    monkeypatch.setattr(reading, "_GATHER_S", {1_000: 0.6, 50_000: 60.0})
    monkeypatch.setattr(reading, "_STILL_S", 0.4)
    log.insert(0x200, 1)
    planning = Planning(log)
    first = planning.latest(planning.initial())
    # Little of it, however much else the server wrote.
    log.insert(2**30, 2)
    asked = time.monotonic()
    second = planning.latest(first)
    assert time.monotonic() - asked < 0.3
    much = [list(range(start, start + 100)) for start in (100, 200, 300)]
    log.insert(2**30 + 0x100, *much[0])
    writing = threading.Timer(0.2, log.insert, (2**30 + 0x200, *much[1]))
    writing.start()
    third = planning.latest(second)
    writing.join()
    assert planning.ids(second, third) == much[0] + much[1], "it did not come alone"
    # A batch that took longer than that has let enough gather.
    log.insert(2**30 + 0x300, *much[2])
    time.sleep(0.6)
    asked = time.monotonic()
    fourth = planning.latest(third)
    assert planning.ids(third, fourth) == much[2]
    assert time.monotonic() - asked < 0.3
    # Very much would wait for a minute, if more came.
    very_much = list(range(1_000, 5_000))
    log.insert(2**30 + 0x400, *very_much)
    asked = time.monotonic()
    assert planning.ids(fourth, planning.latest(fourth)) == very_much
    assert 0.3 < time.monotonic() - asked < 30


def test_a_change_has_one_identity_whatever_the_options(log: Log) -> None:  # M5.3
    log.append(
        0x200,
        *(NOTES, Insert(16400, (b"1", b"a", None)), OTHER, Insert(16500, (b"9",))),
        Update(16400, (b"1", b"a", None), None, (b"1", b"b", b"x")),
        Delete(16400, (b"1", b"b", None), None),
    )
    log.insert(0x300, 2, 3)

    def identities(**options: str) -> list[tuple[int, int, str]]:
        planning = Planning(log, **options)
        start = planning.initial()
        rows = planning.rows(start, planning.latest(start))
        return [
            (row["_commit_version"], row["_seq"], row["_change_type"].partition("_")[0])
            for row in rows
        ]

    expected = [
        *((0x200, 0, "insert"), (0x200, 2, "update"), (0x200, 3, "delete")),
        *((0x300, 0, "insert"), (0x300, 1, "insert")),
    ]
    assert identities(preimages="false") == expected
    assert identities(table="", tables="notes") == expected
    for options in ({}, {"columns": "body"}, {"maxRowsPerTrigger": "100"}):
        # Both rows of an update have the same.
        assert list(dict.fromkeys(identities(**options))) == expected
    assert (0x200, 1, "insert") in identities(table="", tables="*")


def test_what_is_wrong_is_also_said_to_standard_error(
    log: Log, capsys: pytest.CaptureFixture[str]
) -> None:  # M7.3
    log.insert(0x200, 1)
    with pytest.raises(SchemaMismatch):
        PenstockDataSource({"path": str(log.path), "table": "absent"}).schema()
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(
        f"penstock: the change log in {log.path} holds no change of public.absent"
    )
