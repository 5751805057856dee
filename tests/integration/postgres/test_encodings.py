"""Texts that are not UTF-8, which a database without an encoding may hold."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest
from psycopg import pq

from penstock.changelog.reader import LogReader
from penstock.errors import NotUtf8
from penstock.pipelines.binding import bind, types_of
from penstock.pipelines.log_deltas import log_deltas
from penstock.pipelines.seeding import seed
from penstock.postgres.connection import ReplicationConnection
from penstock.postgres.embedded import EmbeddedPostgres
from penstock.postgres.tables import read_tables
from support.capturing import capture_config
from support.database import Database
from support.jobs import captured
from support.replication import payloads, read_until, replicating
from support.seeding import SEEDED, STATS, config_of
from support.targets import declared, with_tables
from support.truth import NOTIFICATIONS, no_spark
from support.waiting import eventually
from support.workload import prepare

# An é of LATIN1, twice.
BYTES = b"\xe9\xe9"
TEXT = f"convert_from('\\x{BYTES.hex()}', 'SQL_ASCII')"


@pytest.fixture
def any_text(server: EmbeddedPostgres) -> Iterator[Database]:
    with Database(server, "t_any_text", "SQL_ASCII") as database:
        yield database


def test_texts_of_any_encoding_come_as_they_are(any_text: Database) -> None:
    # M4.6: asked for UTF-8, the server would end replication here, and at each try again
    prepare(any_text)
    with replicating(any_text.dsn()) as connection:
        any_text.run(
            f"INSERT INTO items (writer, seq, body) VALUES (1, 1, {TEXT})",
            "INSERT INTO items (writer, seq, body) VALUES (1, 2, 'h\u00e9llo')",
        )
        received = read_until(
            connection, lambda got: sum(each[:1] == b"C" for each in payloads(got)) == 2
        )
    inserts = [each for each in payloads(received) if each[:1] == b"I"]
    assert [BYTES in each for each in inserts] == [True, False]
    assert "h\u00e9llo".encode() in inserts[1]


def test_an_aggregate_skips_what_it_cannot_read_and_counts_the_rest(
    any_text: Database, tmp_path: Path
) -> None:  # M4.5, M4.6
    prepare(any_text)
    config = declared(sources=["items"], dimensions=["body"])
    with captured(capture_config(any_text.dsn(), tmp_path / "log")):
        any_text.run(
            f"INSERT INTO items (writer, seq, body) VALUES (1, 1, {TEXT}), (1, 2, 'h\u00e9llo')"
        )
        eventually(
            lambda: LogReader(tmp_path / "log").end().lsn >= any_text.wal_position(), "captured"
        )
    log = LogReader(tmp_path / "log")
    with any_text.connect() as connection:
        types = types_of(read_tables(connection, [each.table for each in config.sources]))
    start, end = log.identity.start_lsn, log.end().lsn
    found = log_deltas(log, bind(config, types, start), start, end, no_spark)
    assert found.sums.to_pylist() == [{"body": "h\u00e9llo", "count": 1}]
    assert list(found.skipped.values()) == [1]


def test_the_end_of_replication_for_a_text_needs_a_person(database18: Database) -> None:
    # M7.3: as of encodings with characters that UTF-8 lacks. The server's own words show the text.
    prepare(database18)
    fields = {
        pq.DiagnosticField.SQLSTATE: b"22P05",
        pq.DiagnosticField.MESSAGE_PRIMARY: b"character with byte sequence 0xe9 0xe9 has none",
    }
    ended = Mock(status=pq.ExecStatus.FATAL_ERROR, error_field=fields.get)
    with ReplicationConnection(database18.dsn()) as connection:
        connection._session.next_result = Mock(return_value=ended)  # type: ignore[method-assign]
        error = connection._explain_end()
    assert isinstance(error, NotUtf8)
    assert "0xe9" not in str(error)
    assert "start a new log" in error.remedy


def test_seeding_says_what_to_do_with_such_a_text(any_text: Database, tmp_path: Path) -> None:
    # M7.3
    any_text.run(*NOTIFICATIONS, f"INSERT INTO notifications VALUES (1, 's', {TEXT}, 1)")
    with_tables(any_text, STATS)
    config = config_of(any_text, tmp_path)
    with pytest.raises(NotUtf8, match="notifications: a text has no place in UTF-8") as told:
        seed(config, SEEDED, no_spark)
    assert "0xe9" not in str(told.value)
    advised = told.value.remedy.rpartition("by: ")[2].replace("column", "status")
    any_text.run(f"UPDATE notifications SET status = {advised}")
    seed(config, SEEDED, no_spark)
    assert any_text.rows("SELECT status FROM stats") == [("\u00e9\u00e9",)]
