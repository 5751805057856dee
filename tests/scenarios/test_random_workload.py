"""Random transactions of many sessions, with DDL in between: the log equals what committed."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from penstock.config import Config
from penstock.lsn import Lsn
from support.capturing import RunningCapture, capture_config, capturing
from support.changes import Change, changes, commits_of_server, must_match_journal
from support.database import Database
from support.oracle import Mirror
from support.proxy import Proxy
from support.repeats import repeats
from support.waiting import eventually
from support.workload import SLOT, Writers, prepare

pytestmark = pytest.mark.every_version

# Columns that DDL leaves alone.
STABLE = {"items": ("id", "writer", "seq", "body"), "others": ("id", "writer", "seq")}
WHOLE = "-c logical_decoding_work_mem=1GB"


def must_equal(mirror: Mirror, database: Database) -> None:
    for table, columns in STABLE.items():
        mirror.must_equal(database, table, columns)


def test_the_log_equals_what_committed_however_the_server_sent_it(
    database: Database, tmp_path: Path
) -> None:
    # M3.3, M3.5, M1.8, M6.1: slots over the same WAL, one followed live, the others later; streamed
    # and whole, at once and interrupted at other moments. Every change has one identity.
    prepare(database, journal=True)
    for slot in ("watcher", "streamed", "whole", "polled", "interrupted"):
        database.rows("SELECT pg_copy_logical_replication_slot(%s, %s)", SLOT, slot)

    live = Mirror(tmp_path / "live")
    with capturing(capture_config(database.dsn(), tmp_path / "live")) as running:
        running.connected()
        with Writers(database, 4, seed=database.server.version, journal=True) as writers:
            writers.await_commits(repeats(30, soak=300))
        must_equal(live, database)
    truth = changes(tmp_path / "live")
    must_match_journal(truth, database)
    assert sorted({change.commit_lsn for change in truth}) == commits_of_server(database, "watcher")
    assert {"Insert", "Update", "Delete"} < {change.kind for change in truth}

    whole = database.dsn(options=WHOLE)
    for slot, dsn in (("streamed", database.dsn()), ("whole", whole)):
        log = tmp_path / slot
        with capturing(capture_config(dsn, log, slot=slot)):
            Mirror(log).await_marker(database)
        must_be_the_same(log, truth)
    # M4.3: in runs that end behind the first transaction, and all at once.
    log = tmp_path / "polled"
    for most in (1, 10_000):
        poll = {"max_changes": most}
        with capturing(capture_config(database.dsn(), log, slot="polled", mode="poll", poll=poll)):
            Mirror(log).await_marker(database)
    must_be_the_same(log, truth)
    chance = random.Random(database.server.version)
    with Proxy(database.server.port) as proxy:
        log = tmp_path / "interrupted"

        def config() -> Config:
            """In one form or the other, from connection to connection."""
            dsn = proxy.through(chance.choice((database.dsn(), whole)))
            return capture_config(dsn, log, slot="interrupted")

        for _ in range(repeats(4, soak=40)):
            with capturing(config()) as running:
                interrupt(running, proxy, chance, truth[-1].commit_lsn)
        with capturing(config()):
            Mirror(log).await_marker(database)
    must_be_the_same(log, truth)
    streamed = "SELECT stream_txns FROM pg_stat_replication_slots WHERE slot_name = %s"
    eventually(lambda: database.value(streamed, "streamed") > 0, "streaming happened")
    assert database.value(streamed, "whole") == 0


def must_be_the_same(log: Path, truth: list[Change]) -> None:
    assert changes(log)[: len(truth)] == truth


def interrupt(running: RunningCapture, proxy: Proxy, chance: random.Random, end: Lsn) -> None:
    """Cut it off after a part of what there is, unless that is all; it is stopped then."""
    session, cuts = running.session(), proxy.cuts
    proxy.cut_after(chance.randrange(200_000))
    eventually(lambda: proxy.cuts > cuts or session.durable_lsn >= end, "the cut")
