"""Logical messages that any role may emit, of any bytes and size: none stops capture."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest

from penstock.changelog.reader import LogReader
from penstock.config import Config
from penstock.postgres.embedded import EmbeddedPostgres
from support.capturing import capture_config, capturing
from support.database import Database
from support.waiting import eventually
from support.workload import SLOT, prepare

_LARGE_BYTES = 64 * 2**20
# A prefix that is no text, much content, and what looks like a heartbeat of ours.
HOSTILE = (
    "SELECT pg_logical_emit_message({}, convert_from('\\xfffe', 'SQL_ASCII'), 'x')",
    f"SELECT pg_logical_emit_message({{}}, 'large', repeat('x', {_LARGE_BYTES}))",
    f"SELECT pg_logical_emit_message({{}}, 'penstock.heartbeat', repeat('x', {_LARGE_BYTES}))",
    f"SELECT pg_logical_emit_message({{}}, 'penstock.heartbeat', '{SLOT} \u00b2')",
    f"SELECT pg_logical_emit_message({{}}, 'penstock.heartbeat', '{SLOT} {'9' * 900}')",
    "SELECT pg_logical_emit_message({}, 'penstock.heartbeat', '\\xff20ff'::bytea)",
)


@pytest.fixture
def database(server: EmbeddedPostgres) -> Database:
    """A database without an encoding, in which a prefix may hold any bytes."""
    return Database(server, "t_foreign_messages", "SQL_ASCII")


def with_heartbeats(config: Config, interval_s: float) -> Config:
    heartbeat = config.heartbeat.model_copy(update={"interval_min": interval_s / 60})
    return config.model_copy(update={"heartbeat": heartbeat})


# M7.6, M1.5
@pytest.mark.parametrize("interval_s", [0, 0.2], ids=["heartbeats_off", "heartbeats_on"])
def test_messages_of_another_role_do_not_stop_capture(
    database: Database, tmp_path: Path, interval_s: float
) -> None:
    with database:
        prepare(database)
        database.run("DROP ROLE IF EXISTS anybody", "CREATE ROLE anybody LOGIN")
        try:
            config = with_heartbeats(capture_config(database.dsn(), tmp_path), interval_s)
            with capturing(config) as running:
                running.connected()
                _emit_all(database)
                database.run("INSERT INTO items (writer, seq) VALUES (1, 1)")
                now = database.wal_position()
                eventually(lambda: database.confirmed(SLOT) >= now, "the slot follows")
                if interval_s:
                    eventually(lambda: running.capture.heartbeat.latency_s, "a heartbeat")
                assert running.connections == 1
            reader = LogReader(tmp_path)
            commits = list(reader.commits(reader.start(), reader.end()))
            assert len(commits) == 1
        finally:
            database.run("DROP ROLE anybody")


def _emit_all(database: Database) -> None:
    with psycopg.connect(database.dsn("anybody"), client_encoding="sql_ascii") as connection:
        for statement in HOSTILE:
            for transactional in ("false", "true"):
                connection.execute(statement.format(transactional).encode())
                connection.commit()
