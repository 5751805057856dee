"""A failover slot of PostgreSQL 17 and newer: the standby has the slot, and capture follows it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from psycopg import conninfo

from conftest import make_server
from penstock.ops.doctor import diagnose
from penstock.ops.setup import setup
from penstock.postgres.embedded import EmbeddedPostgres
from penstock.postgres.installations import Version
from support.capturing import capture_config, capturing
from support.database import Database
from support.oracle import Mirror
from support.versions import version_id
from support.waiting import eventually
from support.workload import SLOT, STREAMED_ROWS, Writers, insert_items, prepare

_STANDBY_SLOT = "standby"
_SYNCED = (
    "SELECT count(*) FROM pg_replication_slots WHERE slot_name = %s"
    " AND synced AND failover AND NOT temporary AND invalidation_reason IS NULL"
)


@dataclass(frozen=True)
class Pair:
    primary: Database
    standby: Database

    def dsn(self) -> str:
        """Leads to whichever of the two is the primary, as an application's would."""
        found = [conninfo.conninfo_to_dict(each.dsn()) for each in (self.primary, self.standby)]
        both = {key: ",".join(str(each[key]) for each in found) for key in ("host", "port")}
        return conninfo.make_conninfo(
            "", **{**found[0], **both, "target_session_attrs": "read-write"}
        )


@pytest.fixture(params=[17, 18], ids=version_id)
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Pair]:
    """A primary with tables and publication, and a standby that follows it."""
    version: Version = request.param
    with ExitStack() as stack:
        primary = stack.enter_context(make_server(version))
        database = Database(primary, "app")
        database.__enter__()
        prepare(database, slot=False)
        setup(capture_config(database.dsn(), tmp_path / "log", failover=True))
        database.run(
            f"SELECT pg_create_physical_replication_slot('{_STANDBY_SLOT}', true)",
            # Nothing reaches capture that the standby does not have.
            f"ALTER SYSTEM SET synchronized_standby_slots = '{_STANDBY_SLOT}'",
        )
        standby = stack.enter_context(standby_of(primary, version))
        pair = Pair(database, Database(standby, "app"))
        yield pair
        for each in (pair.primary, pair.standby):
            if each._asking is not None:
                each._asking.close()


def standby_of(primary: EmbeddedPostgres, version: Version) -> EmbeddedPostgres:
    """A copy of the primary, which is started again; the copy is not started yet."""
    standby = make_server(version)
    primary.stop()
    # As pg_basebackup has it: without the slots.
    slots = shutil.ignore_patterns("penstock", _STANDBY_SLOT)
    shutil.copytree(primary.data_dir, standby.data_dir, ignore=slots)
    shutil.copy(primary.passfile, standby.passfile)
    primary.start()
    settings = {
        "primary_conninfo": primary.dsn("app"),
        "primary_slot_name": _STANDBY_SLOT,
        "hot_standby_feedback": "on",
        "sync_replication_slots": "on",
        "synchronized_standby_slots": "",
    }
    with (standby.data_dir / "postgresql.auto.conf").open("a") as file:
        file.writelines(f"{name} = '{value}'\n" for name, value in settings.items())
    (standby.data_dir / "standby.signal").touch()
    return standby


def await_slot(pair: Pair) -> None:
    """The standby takes the slot over once somebody reads it on the primary."""

    def is_there() -> bool:
        pair.primary.run("INSERT INTO markers DEFAULT VALUES", "SELECT pg_log_standby_snapshot()")
        return bool(pair.standby.value(_SYNCED, SLOT))

    eventually(is_there, "the standby has the slot", within_s=90)


def promote(database: Database) -> None:
    database.run("SELECT pg_promote()")
    eventually(lambda: not database.value("SELECT pg_is_in_recovery()"), "it is promoted")


@pytest.mark.parametrize("stop", ["immediate", "fast"])
def test_capture_follows_the_slot_to_the_standby_that_was_promoted(
    pair: Pair, tmp_path: Path, stop: str
) -> None:
    # M7.3, M1.8: nothing is lost and nothing repeated, with commits up to the end and one open.
    log = tmp_path / "log"
    mirror = Mirror(log)
    config = capture_config(pair.dsn(), log)
    with capturing(config) as running:
        with pair.primary.connect() as connection:
            insert_items(connection, STREAMED_ROWS)
        mirror.must_equal(pair.primary)
        await_slot(pair)
        log_id = json.loads((log / "log.json").read_bytes())["id"]
        with Writers(pair.primary, 2) as writers:
            writers.await_commits(50)
            pair.primary.server.stop(stop)  # type: ignore[arg-type]
        promote(pair.standby)
        with pair.standby.connect() as connection:
            insert_items(connection, STREAMED_ROWS)
        mirror.must_equal(pair.standby)
        assert running.running
        assert json.loads((log / "log.json").read_bytes())["id"] == log_id
        assert json.loads((log / "log.json").read_bytes())["timeline"] == 2
        eventually(lambda: pair.standby.confirmed(SLOT) >= mirror.commits[-1], "the slot follows")
        active = "SELECT active FROM pg_replication_slots WHERE slot_name = %s"
        assert pair.standby.value(active, SLOT)
    # And again, after a restart of capture.
    with capturing(config):
        with pair.standby.connect() as connection:
            insert_items(connection, 10)
        mirror.must_equal(pair.standby)


def test_doctor_is_content_with_it(pair: Pair, tmp_path: Path) -> None:
    findings = diagnose(capture_config(pair.dsn(), tmp_path / "log", failover=True))
    assert not [each for each in findings if each.check == "slot_failover"]
