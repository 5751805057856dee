"""A flood of WAL on a table that is not published."""

from __future__ import annotations

import time
from pathlib import Path

from penstock.changelog.reader import LogReader
from support.capturing import capture_config, capturing
from support.database import Database
from support.oracle import Mirror
from support.repeats import repeats
from support.waiting import eventually
from support.workload import SLOT, prepare

STALE_S = 2.5
FLOOD_BYTES = repeats(100_000_000, soak=1_000_000_000)
# What the slot may lag behind, seconds after the flood has ended.
LAG_BYTES = 1_000_000
CATCH_UP_S = 5.0
_ROWS = "INSERT INTO unpublished (body) SELECT repeat('x', 900) FROM generate_series(1, 5000)"


def test_the_session_is_healthy_and_the_slot_catches_up(database: Database, tmp_path: Path) -> None:
    # M1.1, M1.2, M1.4, M3.8: longer than the time after which a silent connection is stale.
    prepare(database)
    config = capture_config(
        database.dsn(), tmp_path, stale_timeout_s=STALE_S, wal_sender_timeout_s=4.0
    )
    with capturing(config) as running:
        running.connected()
        before, started = database.wal_position(), time.monotonic()
        with database.connect() as connection:
            while (
                database.wal_position() < before + FLOOD_BYTES
                or time.monotonic() < started + STALE_S
            ):
                connection.execute(_ROWS.encode())
        eventually(
            lambda: unconfirmed(database) < LAG_BYTES,
            "the slot has caught up",
            within_s=repeats(CATCH_UP_S, soak=15.0),
        )
        written = database.wal_position()
        eventually(lambda: database.confirmed(SLOT) >= written, "all of it is confirmed")
        assert LogReader(tmp_path).end().lsn >= written, "and the log says so"
        assert running.connections == 1
        assert running.pauses() == []
        Mirror(tmp_path).must_equal(database)


def unconfirmed(database: Database) -> int:
    """Bytes of WAL that the server has flushed and we have not confirmed."""
    return database.wal_position() - database.confirmed(SLOT)
