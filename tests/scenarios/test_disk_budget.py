"""A log at its disk budget: capture lets go of the server, and goes on when there is room."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from penstock.changelog import consumers
from penstock.changelog.reader import LogReader
from penstock.config import Config
from penstock.postgres.embedded import EmbeddedPostgres
from support.capturing import RunningCapture, capture_config, capturing
from support.database import Database
from support.oracle import Mirror
from support.waiting import eventually
from support.workload import SLOT, insert_items, prepare


def with_budget(database: Database, log: Path) -> Config:
    config = capture_config(database.dsn(), log)
    small = {"segment_mib": 0.02, "min_age_h": 0.0, "max_gib": 0.0002, "on_full": "wait"}
    return config.model_copy(update={"log": config.log.model_copy(update=small)})


def fill(database: Database, running: RunningCapture, log: Path) -> str:
    """Write until capture has reached the budget with a consumer that stands still."""
    running.connected()
    reader = LogReader(log)
    log_id = str(reader.identity.log_id)
    consumers.register(reader.storage, "slow", log_id, reader.start().lsn)
    with database.connect() as connection:
        for writer in range(50):
            insert_items(connection, 200, writer=writer)
    eventually(lambda: at_budget(running), "the budget is reached", within_s=30)
    return log_id


def at_budget(running: RunningCapture) -> bool:
    return any("disk budget" in str(entry.get("reason")) for entry in running.said)


@pytest.mark.parametrize("own_server", [18], indirect=True)
def test_a_server_can_shut_down_while_the_log_is_full(
    own_server: EmbeddedPostgres, tmp_path: Path
) -> None:
    # M1.6
    with Database(own_server, "app") as database:
        prepare(database)
        with capturing(with_budget(database, tmp_path)) as running:
            fill(database, running, tmp_path)
            started = time.monotonic()
            own_server.stop("fast")
            assert time.monotonic() - started < 10
        own_server.start()


@pytest.mark.parametrize("server", [18], indirect=True)
def test_it_goes_on_when_its_consumers_have_come_further(
    database: Database, tmp_path: Path
) -> None:
    # M2.5, M3.8
    prepare(database)
    with capturing(with_budget(database, tmp_path)) as running:
        log_id = fill(database, running, tmp_path)
        reader = LogReader(tmp_path)
        held = reader.end().lsn
        assert database.confirmed(SLOT) <= held
        mirror = Mirror(tmp_path)

        def caught_up() -> bool:
            # The consumer applies, and says so: only then may segments go.
            mirror.read()
            consumers.register(reader.storage, "slow", log_id, mirror.complete_lsn)
            return bool(len(mirror.rows("items")) == database.value("SELECT count(*) FROM items"))

        eventually(caught_up, "all items in the log", within_s=60)
        eventually(lambda: reader.head().first_segment > 1, "segments go", within_s=30)
