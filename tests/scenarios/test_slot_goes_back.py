"""After a crash the slot has forgotten what was confirmed: our own position counts."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.postgres.embedded import EmbeddedPostgres
from support.capturing import capture_config, capturing
from support.database import Database
from support.oracle import Mirror
from support.waiting import eventually
from support.workload import SLOT, insert_items, prepare

pytestmark = pytest.mark.every_version


def test_capture_starts_at_its_own_position_and_nothing_is_doubled(
    own_server: EmbeddedPostgres, tmp_path: Path
) -> None:
    # M1.8
    mirror = Mirror(tmp_path)
    with Database(own_server, "app") as database:
        prepare(database)
        config = capture_config(database.dsn(), tmp_path)
        with capturing(config):
            with database.connect() as connection:
                for n in range(5):
                    insert_items(connection, 10, writer=n)
            mirror.must_equal(database)
            database.run("INSERT INTO unpublished (body) VALUES ('x')")
            written = database.wal_position()
            eventually(lambda: database.confirmed(SLOT) >= written, "confirmed by a keepalive")
        ours, commits = mirror.complete_lsn, list(mirror.commits)
        assert database.confirmed(SLOT) == ours
        own_server.crash()
        own_server.start()
        assert database.confirmed(SLOT) < commits[0], "the slot went back before the first commit"

        database.run("ALTER SYSTEM SET log_replication_commands = on", "SELECT pg_reload_conf()")
        eventually(lambda: database.value("SHOW log_replication_commands") == "on", "in force")
        with capturing(config) as running:
            session = running.session()
            assert session.confirmed_lsn >= ours
            with database.connect() as connection:
                insert_items(connection, 10)
            mirror.must_equal(database)
        assert f'START_REPLICATION SLOT "{SLOT}" LOGICAL {ours} ' in own_server.log_file.read_text()
        assert mirror.commits[: len(commits)] == commits
        assert database.confirmed(SLOT) > ours
