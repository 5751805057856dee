"""Two commits where the second's record starts exactly where the first's ends."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

from penstock.postgres.messages import Commit
from support.capturing import capture_config, capturing
from support.database import Database
from support.logs import begin_log
from support.oracle import Mirror
from support.replication import decode_all, payloads, read_until, replicating
from support.workload import SLOT, Writers, prepare

# Slots at the same place as capture's, for looking at what it looks at.
WATCHER, REPLAYED = "watcher", "replayed"


def commits_of(database: Database, slot: str, count: int) -> list[Commit]:
    """The server's own list of commits, read through another slot."""
    with replicating(database.dsn(), slot=slot) as connection:
        received = read_until(
            connection, lambda got: sum(p[:1] == b"C" for p in payloads(got)) >= count
        )
        return [m for m in decode_all(connection, received) if isinstance(m, Commit)]


def test_each_transaction_is_in_the_log_once(database: Database, tmp_path: Path) -> None:
    # M1.8
    prepare(database)
    for slot in (WATCHER, REPLAYED):
        database.rows("SELECT pg_copy_logical_replication_slot(%s, %s)", SLOT, slot)
    mirror = Mirror(tmp_path / "log")
    config = capture_config(database.dsn(), tmp_path / "log")
    with Writers(database, 6, small=True) as writers:
        for _ in range(3):
            with capturing(config) as running:
                running.connected()
                writers.await_commits(15)
    with capturing(config):
        mirror.must_equal(database)
    commits = commits_of(database, WATCHER, len(mirror.commits))
    assert [commit.end_lsn for commit in commits] == mirror.commits
    adjacent = [(a, b) for a, b in pairwise(commits) if b.lsn == a.end_lsn]
    assert len(adjacent) >= 5, "the situation occurs"

    # A log that ends with the first of such a pair goes on with the second.
    first, second = adjacent[len(adjacent) // 2]
    begin_log(database, tmp_path / "again", first.end_lsn, slot=REPLAYED)
    again = Mirror(tmp_path / "again")
    with capturing(capture_config(database.dsn(), tmp_path / "again", slot=REPLAYED)):
        again.await_marker(database)
    expected = [commit.end_lsn for commit in commits if commit.end_lsn > first.end_lsn]
    assert again.commits[: len(expected)] == expected
    assert expected[0] == second.end_lsn
