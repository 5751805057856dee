"""A slot of wal2json is polled: the log is what pgoutput would make, where documents can say it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock.config import Config
from penstock.errors import (
    ChangeDropped,
    OutputPluginNotAllowed,
    SlotWrongPlugin,
    TableMissing,
)
from penstock.lsn import Lsn
from penstock.postgres.embedded import EmbeddedPostgres
from support.capturing import capture_config, capturing
from support.changes import Change, changes, must_match_journal
from support.database import Database
from support.oracle import Mirror
from support.repeats import repeats
from support.versions import NEWEST
from support.waiting import eventually
from support.workload import SLOT, Writers, insert_items, prepare

# wal2json is there for Debian's server.
ON_15 = pytest.mark.parametrize("server", [15], ids=["pg15"], indirect=True)
FORMATS = pytest.mark.parametrize("form", [1, 2], ids=["format1", "format2"])
SHOW = "SHOW output_plugin_libraries"
TABLES = ["items", "others", "markers", "journal"]


def polling(dsn: str, path: Path, form: int, **given: Any) -> Config:
    poll = {"wal2json_format": form, **given.pop("poll", {})}
    tables = given.pop("tables", TABLES)
    return capture_config(
        dsn, path, mode="poll", plugin="wal2json", tables=tables, poll=poll, **given
    )


@ON_15
def test_the_same_workload_gives_the_same_log_by_every_way_in(
    database: Database, tmp_path: Path
) -> None:
    # M4.3: savepoints, aborts, several sessions, DDL, key changes, truncates.
    prepare(database, journal=True)
    for slot in ("form_1", "form_2"):
        database.create_slot(slot, "wal2json")
    streamed = capture_config(database.dsn(), tmp_path / "streamed", tables=TABLES)
    with Writers(database, 4, seed=7, journal=True) as writers:
        writers.await_commits(repeats(30, soak=300))
    with capturing(streamed):
        Mirror(tmp_path / "streamed").await_marker(database)
    truth = changes(tmp_path / "streamed")
    must_match_journal(truth, database)
    assert {"Insert", "Update", "Delete", "Truncate"} <= {change.kind for change in truth}
    for form in (1, 2):
        log = tmp_path / f"form_{form}"
        config = polling(database.dsn(), log, form, slot=f"form_{form}")
        with capturing(config) as running:
            end = truth[-1].commit_lsn
            session = running.session()
            eventually(lambda: session.durable_lsn >= end, "all of it", within_s=60)  # noqa: B023
        found = [change for change in changes(log) if change.commit_lsn <= truth[-1].commit_lsn]
        columns = {(change.commit_lsn, change.tables): change.columns for change in truth}
        assert told(found, form, columns) == told(truth, form, columns)


Columns = dict[tuple[Lsn, tuple[str, ...]], tuple[str, ...]]


def told(found: list[Change], form: int, columns: Columns) -> list[tuple[Any, ...]]:
    """What both can say. Format 1 has no truncates, so that it numbers changes otherwise; and
    wal2json knows no column lists of publications, so that it tells more columns.
    """
    return [
        (
            change.commit_lsn,
            change.seq if form == 2 else None,
            change.xid,
            change.committed_us,
            change.tables,
            change.kind,
            {
                name: value
                for name, value in change.new().items()
                if name in columns[change.commit_lsn, change.tables]
            },
        )
        for change in found
        if form == 2 or change.kind != "Truncate"
    ]


@ON_15
@FORMATS
def test_it_goes_on_after_it_was_stopped_and_advances_the_slot(
    database: Database, tmp_path: Path, form: int
) -> None:
    # M4.3, M1.2
    prepare(database)
    database.run(f"SELECT pg_drop_replication_slot('{SLOT}')")
    database.create_slot(SLOT, "wal2json")
    config = polling(database.dsn(), tmp_path, form, tables=["items", "markers"])
    mirror = Mirror(tmp_path)
    with Writers(database, 2, seed=form) as writers:
        for _ in range(3):
            with capturing(config):
                writers.await_commits(5)
                mirror.await_marker(database)
    with capturing(config):
        database.run("INSERT INTO unpublished (body) VALUES ('x')")
        written = database.wal_position()
        eventually(lambda: database.confirmed(SLOT) >= written, "advanced")
        if form == 2:  # in format 1 rows may be gone by a TRUNCATE that it does not tell
            mirror.must_equal(database)


@ON_15
def test_a_transaction_larger_than_the_cap_comes_in_portions(
    database: Database, tmp_path: Path
) -> None:
    # M4.3, M3.2
    prepare(database, slot=False)
    database.create_slot(SLOT, "wal2json")
    rows = repeats(5_000, soak=1_000_000)
    with database.connect() as connection:
        insert_items(connection, rows)
    mirror = Mirror(tmp_path)
    config = polling(
        database.dsn(), tmp_path, 2, tables=["items", "markers"], poll={"max_changes": 100}
    )
    with capturing(config) as running:
        session = running.session()
        eventually(lambda: session.half_received, "a part of it has come")
        mirror.await_marker(database, within_s=repeats(60, soak=600))
        assert len(mirror.rows("items")) == rows
        assert running.connections == 1


@ON_15
@FORMATS
def test_transactions_of_others_beyond_the_cap_do_not_stop_it(
    database: Database, tmp_path: Path, form: int
) -> None:
    # M1.2: they count as rows of a peek and bring no change.
    prepare(database, slot=False)
    database.create_slot(SLOT, "wal2json")
    with database.connect() as connection:
        for _ in range(100):
            connection.execute("INSERT INTO unpublished (body) VALUES ('x')")
    config = polling(
        database.dsn(), tmp_path, form, tables=["items", "markers"], poll={"max_changes": 10}
    )
    with capturing(config) as running:
        Mirror(tmp_path).must_equal(database)
        written = database.wal_position()
        eventually(lambda: database.confirmed(SLOT) >= written, "advanced")
        assert running.connections == 1


@ON_15
@FORMATS
def test_a_change_that_wal2json_leaves_out_stops_it(
    database: Database, tmp_path: Path, form: int
) -> None:
    prepare(database, slot=False)
    database.create_slot(SLOT, "wal2json")
    database.run("CREATE TABLE bare (id int)", "INSERT INTO bare VALUES (1)")
    config = polling(database.dsn(), tmp_path, form, tables=["bare"])
    with capturing(config) as running:
        running.connected()
        database.run("UPDATE bare SET id = 2")
        committed = database.wal_position()
        error = running.failure()
    assert isinstance(error, ChangeDropped)
    assert "bare" in error.problem
    assert database.confirmed(SLOT) < committed


@ON_15
def test_bad_input_is_named_and_nothing_is_confirmed(database: Database, tmp_path: Path) -> None:
    prepare(database)
    before = database.confirmed(SLOT)
    with capturing(polling(database.dsn(), tmp_path, 2, tables=["items"])) as running:
        error = running.failure()
    assert isinstance(error, SlotWrongPlugin)
    assert 'uses the output plugin "pgoutput", not "wal2json"' in error.problem
    database.create_slot("other", "wal2json")
    config = polling(database.dsn(), tmp_path, 2, tables=["no_such"], slot="other")
    with capturing(config) as running:
        error = running.failure()
    assert isinstance(error, TableMissing)
    assert database.confirmed(SLOT) == before


def test_a_server_that_no_longer_allows_wal2json_is_named(tmp_path: Path) -> None:
    # M4.4
    with EmbeddedPostgres(NEWEST[15]) as server, Database(server, "app") as database:
        prepare(database, slot=False)
        allow = "ALTER SYSTEM SET output_plugin_libraries = {}"
        database.run(allow.format("pgoutput, wal2json"), "SELECT pg_reload_conf()")
        eventually(lambda: "wal2json" in database.value(SHOW), "allowed")
        database.create_slot(SLOT, "wal2json")
        database.run(allow.format("pgoutput"), "SELECT pg_reload_conf()")
        eventually(lambda: "wal2json" not in database.value(SHOW), "not allowed")
        with capturing(polling(database.dsn(), tmp_path, 2, tables=["items"])) as running:
            error = running.failure()
        assert isinstance(error, OutputPluginNotAllowed)
