"""The log stays small: what is needed stays, what is not needed goes."""

from __future__ import annotations

import time
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

import pytest

from penstock.capture import pump
from penstock.changelog import consumers
from penstock.changelog.checking import check_log
from penstock.changelog.reader import LogReader
from penstock.changelog.storage import LocalStorage
from penstock.errors import ConsumerInvalidated, LogRetired
from penstock.lsn import Lsn
from support.capturing import capture_config, capturing
from support.database import Database
from support.oracle import Mirror
from support.waiting import eventually
from support.workload import SLOT, STREAMED_ROWS, insert_items, prepare

# Small segments, nothing kept for its age: everything that may go goes at the next look.
SMALL = {"segment_mib": 0.05, "min_age_h": 0}
BUDGET_MIB = 1.0
BUDGET = {**SMALL, "max_gib": BUDGET_MIB / 1024}


@pytest.fixture(autouse=True)
def _look_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pump, "_PRUNE_INTERVAL_S", 0.1)
    monkeypatch.setattr(pump, "_BUDGET_INTERVAL_S", 0.1)


def applied(log: Path, name: str, lsn: Lsn) -> None:
    storage = LocalStorage(log)
    consumers.register(storage, name, str(LogReader(log).identity.log_id), lsn)


def segments(log: Path) -> list[int]:
    return sorted(int(path.stem) for path in (log / "segments").iterdir())


def size(log: Path) -> int:
    return sum(path.stat().st_size for path in (log / "segments").iterdir())


def test_a_long_open_transaction_and_a_slow_consumer_keep_what_they_need(
    database: Database, tmp_path: Path
) -> None:
    # M3.2, M3.5: its early fragments are in the oldest segments when it commits at last.
    prepare(database)
    config = capture_config(database.dsn(), tmp_path, log=SMALL)
    slow = Mirror(tmp_path)
    with (
        capturing(config) as running,
        database.connect(autocommit=False) as long,
        database.connect() as connection,
    ):
        slow.must_equal(database)
        applied(tmp_path, "slow", slow.complete_lsn)
        insert_items(long, STREAMED_ROWS, writer=1)
        eventually(lambda: LogReader(tmp_path).head().open_segment, "it is streamed")
        first_needed = LogReader(tmp_path).head().open_segment

        def rolled_far() -> bool:
            # One at a time: many that come together go into one segment.
            insert_items(connection, 300, writer=2)
            return segments(tmp_path)[-1] > first_needed + 5

        eventually(rolled_far, "many segments", within_s=30)
        rolled = segments(tmp_path)[-1]

        slow.must_equal(database)  # without the open one
        applied(tmp_path, "slow", slow.complete_lsn)
        time.sleep(0.5)
        assert segments(tmp_path)[0] <= first_needed, "its first fragments stay"

        insert_items(long, 10, writer=1)
        long.commit()
        eventually(lambda: not LogReader(tmp_path).head().open_segment, "it has committed")
        time.sleep(0.5)
        assert segments(tmp_path)[0] <= first_needed, "the consumer has not applied it"
        slow.must_equal(database)
        assert len(slow.rows("items")) == database.value("SELECT count(*) FROM items")

        def applied_goes() -> bool:
            # The segment of its commit must be full, too, for the last one always stays readable.
            insert_items(connection, 100, writer=3)
            slow.read()
            applied(tmp_path, "slow", slow.complete_lsn)
            return segments(tmp_path)[0] > rolled

        eventually(applied_goes, "what everybody has applied goes", within_s=30)
        # The place where it stopped reading is gone, with all that it has applied: it goes on.
        slow.must_equal(database)
        assert running.connections == 1

        def removals() -> list[MutableMapping[str, Any]]:
            return [entry for entry in running.said if entry["event"] == "segments removed"]

        eventually(
            lambda: sum(entry["count"] for entry in removals()) == segments(tmp_path)[0] - 1,
            "each removal is told",
        )
        removed = removals()
        assert Lsn.parse(removed[-1]["up_to_lsn"]) <= slow.complete_lsn
        assert all(entry["freed_bytes"] > 0 for entry in removed)
    with pytest.raises(LogRetired):
        LogReader(tmp_path).locate(slow.commits[0])
    check_log(LogReader(tmp_path))


def test_at_the_budget_the_slowest_consumer_is_released_if_told_so(
    database18: Database, tmp_path: Path
) -> None:
    # M7.3
    prepare(database18)
    config = capture_config(database18.dsn(), tmp_path, log={**BUDGET, "on_full": "invalidate"})
    mirror = Mirror(tmp_path)
    with capturing(config) as running, database18.connect() as connection:
        mirror.must_equal(database18)
        start = mirror.complete_lsn
        applied(tmp_path, "slow", start)
        for _ in range(40):
            insert_items(connection, 1_000)
        written = database18.wal_position()
        eventually(lambda: database18.confirmed(SLOT) >= written, "capture goes on")
        eventually(lambda: size(tmp_path) < 2 * BUDGET_MIB * 2**20, "within the budget")
        released = [entry for entry in running.said if "released" in entry["event"]]
        assert [entry["consumer"] for entry in released] == ["slow"]
        with pytest.raises(ConsumerInvalidated, match="Seed its target again"):
            applied(tmp_path, "slow", start)
        with pytest.raises(LogRetired):
            mirror.read()
        assert running.connections == 1
