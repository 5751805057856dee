"""A slot that is polled: peek, make durable, advance. The log is what replication would make."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

import psycopg
import pytest

from penstock.changelog.checking import check_log
from penstock.changelog.reader import LogReader
from penstock.config import Config
from penstock.errors import (
    PollerRunning,
    PrivilegeMissing,
    PublicationMissing,
    SlotAheadOfLog,
    SlotInUse,
    SlotInvalidated,
    SlotMissing,
)
from penstock.lsn import Lsn
from penstock.ops.teardown import teardown
from penstock.postgres.embedded import EmbeddedPostgres
from penstock.postgres.polling.plugins import Pgoutput
from support.capturing import capture_config, capturing
from support.changes import changes, commits_of_server, must_match_journal
from support.database import Database
from support.oracle import Mirror
from support.processes import capture_process
from support.proxy import Proxy
from support.repeats import repeats
from support.replication import replicating
from support.waiting import eventually
from support.workload import PUBLICATION, SCHEMA, SLOT, Writers, insert_items, prepare

KILLS = repeats(4, soak=30)
ROWS = repeats(20_000, soak=1_000_000)


def polling(dsn: str, path: Path, **poll: Any) -> Config:
    return capture_config(dsn, path, mode="poll", poll=poll)


@pytest.mark.every_version
def test_the_slot_follows_what_is_durable_and_other_wal_too(
    database: Database, tmp_path: Path
) -> None:
    # M4.3, M1.2, M3.8: by a role that may replicate and nothing else, on an idle database too.
    prepare(database)
    database.run("DROP ROLE IF EXISTS only_polls", "CREATE ROLE only_polls LOGIN REPLICATION")
    mirror = Mirror(tmp_path)
    with capturing(polling(database.dsn("only_polls"), tmp_path)) as running:
        for _ in range(3):
            with database.connect() as connection:
                insert_items(connection, 10)
            mirror.must_equal(database)
            database.run("INSERT INTO unpublished (body) VALUES ('x')")
            written = database.wal_position()
            eventually(lambda: database.confirmed(SLOT) >= written, "advanced")  # noqa: B023
            assert mirror.complete_lsn >= database.confirmed(SLOT), "durable before it is advanced"
        assert running.connections == 1
    database.run("DROP ROLE only_polls")


def test_a_flood_on_an_unpublished_table_is_released_and_not_decoded_again(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # M4.3, M1.2: "advance only after a commit of ours" would decode it again in each run.
    peeks: list[Lsn] = []
    peek = Pgoutput.peek

    def counted(plugin: Pgoutput, slot: str, wal_end: Lsn, most: int) -> str:
        peeks.append(wal_end)
        return peek(plugin, slot, wal_end, most)

    monkeypatch.setattr(Pgoutput, "peek", counted)
    prepare(database)
    interval_s = 0.2
    with capturing(polling(database.dsn(), tmp_path, interval_s=interval_s)) as running:
        running.connected()
        database.run(
            "INSERT INTO unpublished (body) SELECT repeat('x', 900) FROM generate_series(1, 40000)"
        )
        written = database.wal_position()
        eventually(lambda: database.confirmed(SLOT) >= written, "released")
        first = next(number for number, wal_end in enumerate(peeks) if wal_end >= written)
        assert len(peeks) - first <= 2, "in the run that saw its end, or the one after it"
        runs, idle = len(peeks), time.monotonic() + 8 * interval_s
        eventually(lambda: time.monotonic() > idle, "eight more runs")
        assert len(peeks) <= runs + 2, "runs that find no new WAL peek at nothing"
        assert running.connections == 1
    assert Mirror(tmp_path).read().commits == []


def test_a_transaction_that_is_open_beside_idle_runs_is_not_skipped(
    database: Database, tmp_path: Path
) -> None:
    # M4.3: runs that find nothing advance the slot past its changes, never past its commit.
    prepare(database)
    mirror = Mirror(tmp_path)
    with (
        capturing(polling(database.dsn(), tmp_path)) as running,
        database.connect(autocommit=False) as long_one,
    ):
        running.connected()
        insert_items(long_one, 1000)
        for _ in range(3):
            database.run("INSERT INTO unpublished (body) VALUES ('x')")
            written = database.wal_position()
            eventually(lambda: database.confirmed(SLOT) >= written, "advanced")  # noqa: B023
        assert mirror.read().commits == []
        long_one.commit()
        mirror.await_marker(database)
        assert len(mirror.rows("items")) == 1000
    with capturing(polling(database.dsn(), tmp_path)):
        mirror.must_equal(database)
    assert len(mirror.commits) == 3, "the transaction, once, and two markers"


def test_a_transaction_larger_than_the_cap_comes_whole_and_in_portions(
    database: Database, tmp_path: Path
) -> None:
    # M4.3, M3.2
    prepare(database)
    mirror = Mirror(tmp_path)
    with database.connect() as connection:
        insert_items(connection, ROWS)
    with capturing(polling(database.dsn(), tmp_path, max_changes=100)) as running:
        session = running.session()
        eventually(lambda: session.half_received, "a part of it has come")
        assert mirror.read().commits == []
        mirror.await_marker(database, within_s=repeats(60, soak=600))
        assert len(mirror.rows("items")) == ROWS
        assert running.connections == 1
    assert len(mirror.commits) == 2


def test_one_worker_polls_at_a_time_and_the_other_leaves_at_once(
    database: Database, tmp_path: Path
) -> None:
    # M4.3
    prepare(database)
    first, second = (polling(database.dsn(), tmp_path / name) for name in ("first", "second"))
    with capturing(first) as running:
        running.connected()
        with capturing(second) as other:
            error = other.failure(within_s=5)
        assert isinstance(error, PollerRunning)
        assert "penstock poll" in error.problem, "it says who has the lock"
        assert not (tmp_path / "second" / "log.json").exists(), "and has made no log"
        Mirror(tmp_path / "first").must_equal(database)
        assert running.connections == 1


def test_the_lock_of_a_worker_that_was_killed_is_free(database: Database, tmp_path: Path) -> None:
    # M4.3
    prepare(database)
    mirror = Mirror(tmp_path / "log")
    config = polling(database.dsn(), tmp_path / "log")
    with capture_process(config, tmp_path) as process:
        mirror.must_equal(database)
        process.kill()
        process.start()
        with database.connect() as connection:
            insert_items(connection, 10)
        mirror.must_equal(database)
        process.stop()


def test_the_log_equals_what_committed_after_kills_crashes_and_cuts(
    own_server: EmbeddedPostgres, tmp_path: Path
) -> None:
    # M1.8, M3.3, M4.3: between peek and fsync, between fsync and advance, wherever it may be; the
    # server forgets advances when it crashes.
    chance = random.Random(own_server.version)
    mirror = Mirror(tmp_path / "log")
    with Database(own_server, "app") as database, Proxy(own_server.port) as proxy:
        prepare(database, journal=True)
        database.rows("SELECT pg_copy_logical_replication_slot(%s, 'watcher')", SLOT)
        config = polling(proxy.through(database.dsn()), tmp_path / "log", interval_s=0.02)
        with capture_process(config, tmp_path) as process:
            with Writers(database, 3, seed=own_server.version, journal=True) as writers:
                for number in range(KILLS):
                    writers.await_commits(3)
                    mirror.await_marker(database, within_s=60)
                    time.sleep(chance.uniform(0.0, 0.3))
                    match number % 4:
                        case 2:
                            own_server.restart("immediate")
                        case 3:
                            cuts = proxy.cuts
                            proxy.cut_after(chance.randrange(20_000))
                            eventually(lambda: proxy.cuts > cuts, "cut", within_s=60)  # noqa: B023
                        case _:
                            process.kill()
                            process.start()
            mirror.must_equal(database, "items", ("id", "writer", "seq", "body"))
            process.stop()
        found = changes(tmp_path / "log")
        must_match_journal(found, database)
        commits = sorted({change.commit_lsn for change in found})
        assert commits == commits_of_server(database, "watcher")
        assert check_log(LogReader(tmp_path / "log")).transactions == len(commits)
        assert database.confirmed(SLOT) <= mirror.complete_lsn


def test_a_slot_that_went_back_brings_nothing_twice(
    own_server: EmbeddedPostgres, tmp_path: Path
) -> None:
    # M1.8, M4.3: an advance is lost in a crash until a checkpoint comes.
    mirror = Mirror(tmp_path)
    with Database(own_server, "app") as database:
        prepare(database)
        config = polling(database.dsn(), tmp_path)
        with capturing(config), database.connect() as connection:
            for n in range(5):
                insert_items(connection, 10, writer=n)
            mirror.must_equal(database)
        commits, ours = list(mirror.commits), mirror.complete_lsn
        own_server.crash()
        own_server.start()
        assert database.confirmed(SLOT) < commits[0], "the slot went back before the first commit"
        with capturing(config), database.connect() as connection:
            insert_items(connection, 10)
            mirror.must_equal(database)
        assert mirror.commits[: len(commits)] == commits
        assert database.confirmed(SLOT) > ours


MOVES = {
    "advanced": "SELECT count(*) FROM pg_logical_slot_get_binary_changes('penstock', NULL, NULL,"
    " 'proto_version', '1', 'publication_names', 'penstock')",
    "made again": "SELECT pg_drop_replication_slot('penstock');"
    " SELECT pg_create_logical_replication_slot('penstock', 'pgoutput')",
}


@pytest.mark.parametrize("move", MOVES)
def test_a_slot_that_somebody_moved_between_two_runs_refuses_the_log_for_good(
    database: Database, tmp_path: Path, move: str
) -> None:
    # M1.8: nobody holds the slot between two runs, and what was taken from it is lost to the log.
    prepare(database)
    config = polling(database.dsn(), tmp_path, interval_s=2.0)
    mirror = Mirror(tmp_path)
    with capturing(config) as running, database.connect() as connection:
        mirror.must_equal(database)
        written = database.wal_position()
        eventually(lambda: database.confirmed(SLOT) >= written, "the run is over")
        insert_items(connection, 1)
        for statement in MOVES[move].split("; "):
            eventually(lambda: _is_done(database, statement), "moved")  # noqa: B023
        assert isinstance(running.failure(), SlotAheadOfLog)
    with capturing(config) as running:
        assert isinstance(running.failure(), SlotAheadOfLog), "and it does not lapse"
    assert mirror.read().rows("items") == {}


def _is_done(database: Database, statement: str) -> bool:
    """Unless a run has the slot at this moment."""
    try:
        database.rows(statement)
    except psycopg.errors.ObjectInUse:
        return False
    return True


def test_teardown_sees_the_worker_between_two_runs(database: Database, tmp_path: Path) -> None:
    # M4.1
    prepare(database)
    config = polling(database.dsn(), tmp_path, interval_s=2.0)
    with capturing(config) as running:
        running.connected()
        Mirror(tmp_path).must_equal(database)
        with pytest.raises(SlotInUse, match="penstock poll"):
            teardown(config)
        assert database.value("SELECT count(*) FROM pg_replication_slots") == 1


def test_messages_of_others_beyond_the_cap_do_not_stop_it(
    database: Database, tmp_path: Path
) -> None:
    # M7.6: any role may emit them; they count as changes of a peek.
    prepare(database)
    config = polling(database.dsn(), tmp_path, max_changes=10)
    beating = config.model_copy(
        update={"heartbeat": config.heartbeat.model_copy(update={"interval_min": 5.0})}
    )
    database.rows(
        "SELECT count(pg_logical_emit_message(false, 'x', 'y')) FROM generate_series(1, 500)"
    )
    with capturing(beating) as running:
        Mirror(tmp_path).must_equal(database)
        written = database.wal_position()
        eventually(lambda: database.confirmed(SLOT) >= written, "advanced")
        assert running.connections == 1


@pytest.mark.parametrize("rows", [300, 20_000, 75_000])
def test_large_transactions_between_small_ones_are_read_once(
    database18: Database, tmp_path: Path, rows: int
) -> None:
    # M4.3: the large one becomes durable in several flushes while the slot is advanced.
    prepare(database18)
    mirror = Mirror(tmp_path)
    with database18.connect() as connection:
        for count in (1, rows, 1):
            insert_items(connection, count)
    with capturing(polling(database18.dsn(), tmp_path, max_changes=100)) as running:
        mirror.await_marker(database18, within_s=60)
        assert len(mirror.rows("items")) == rows + 2
        written = database18.wal_position()
        eventually(lambda: database18.confirmed(SLOT) >= written, "advanced")
        assert running.connections == 1


@pytest.mark.every_version
def test_a_publication_that_was_made_again_needs_a_person_too(
    database: Database, tmp_path: Path
) -> None:
    # M3.7: to create it again does not bring back changes.
    prepare(database)
    mirror = Mirror(tmp_path)
    with capturing(polling(database.dsn(), tmp_path, interval_s=1.0)) as running:
        mirror.must_equal(database)
        with database.connect() as connection:
            connection.execute(f"DROP PUBLICATION {PUBLICATION}")
            insert_items(connection, 3)
            connection.execute(SCHEMA[-1])
        assert isinstance(running.failure(), PublicationMissing)


@pytest.mark.every_version
def test_a_publication_that_is_dropped_stops_it_and_nothing_is_released(
    database: Database, tmp_path: Path
) -> None:
    # M3.7
    prepare(database)
    mirror = Mirror(tmp_path)
    with (
        capturing(polling(database.dsn(), tmp_path)) as running,
        database.connect() as connection,
    ):
        insert_items(connection, 3)
        mirror.must_equal(database)
        connection.execute(f"DROP PUBLICATION {PUBLICATION}")
        insert_items(connection, 3)
        committed = database.wal_position()
        assert isinstance(running.failure(), PublicationMissing)
    assert database.confirmed(SLOT) < committed
    assert mirror.complete_lsn < committed


@pytest.mark.every_version
def test_a_slot_that_the_server_gave_up_or_somebody_dropped_is_named(
    own_server: EmbeddedPostgres, tmp_path: Path
) -> None:
    # M1.7
    with Database(own_server, "app") as database:
        prepare(database)
        mirror = Mirror(tmp_path)
        database.run("ALTER SYSTEM SET max_slot_wal_keep_size = '1MB'", "SELECT pg_reload_conf()")
        with (
            capturing(polling(database.dsn(), tmp_path)) as running,
            database.connect(autocommit=False) as open_transaction,
        ):
            insert_items(open_transaction, 10)
            mirror.await_marker(database)
            for _ in range(3):
                database.run(
                    "INSERT INTO unpublished (body) VALUES ('x')", "SELECT pg_switch_wal()"
                )
            database.run("CHECKPOINT")
            assert isinstance(running.failure(), SlotInvalidated)
        database.run(f"SELECT pg_drop_replication_slot('{SLOT}')")
        with capturing(polling(database.dsn(), tmp_path)) as running:
            error = running.failure()
        assert isinstance(error, SlotMissing)
        assert f"move {tmp_path} away" in error.remedy


def test_a_slot_that_a_replication_connection_reads_is_in_use(
    database: Database, tmp_path: Path
) -> None:
    prepare(database)
    with replicating(database.dsn()), capturing(polling(database.dsn(), tmp_path)) as running:
        eventually(lambda: running.reasons() != [], "an attempt failed")
        assert "is in use by process" in running.reasons()[0]


@pytest.mark.every_version
def test_a_role_that_may_not_replicate_is_named_with_the_remedy(
    database: Database, tmp_path: Path
) -> None:
    prepare(database)
    database.run("DROP ROLE IF EXISTS may_nothing", "CREATE ROLE may_nothing LOGIN")
    with capturing(polling(database.dsn("may_nothing"), tmp_path)) as running:
        error = running.failure()
    assert isinstance(error, PrivilegeMissing)
    database.run(error.remedy.partition(": ")[2])
    with capturing(polling(database.dsn("may_nothing"), tmp_path)):
        Mirror(tmp_path).must_equal(database)
    database.run("DROP ROLE may_nothing")


def test_the_same_log_goes_on_from_polling_to_replication_and_back(
    database: Database, tmp_path: Path
) -> None:
    # One slot and one plugin: positions and bytes are the same.
    prepare(database)
    mirror = Mirror(tmp_path)
    with Writers(database, 2, seed=1) as writers:
        for config in (
            polling(database.dsn(), tmp_path),
            capture_config(database.dsn(), tmp_path),
            polling(database.dsn(), tmp_path),
        ):
            with capturing(config):
                writers.await_commits(5)
                mirror.await_marker(database)
    with capturing(polling(database.dsn(), tmp_path)):
        mirror.must_equal(database)
