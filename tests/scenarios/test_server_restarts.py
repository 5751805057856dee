"""The server restarts or crashes while applications write: nothing is lost, nothing is doubled."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.postgres.embedded import EmbeddedPostgres, StopMode
from support.capturing import capture_config, capturing
from support.database import Database
from support.oracle import Mirror
from support.repeats import repeats
from support.workload import Writers, prepare


@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_capture_goes_on_after_the_server_comes_back(
    own_server: EmbeddedPostgres, tmp_path: Path, mode: StopMode
) -> None:
    # M1.8, M3.4
    mirror = Mirror(tmp_path)
    with Database(own_server, "app") as database:
        prepare(database)
        with capturing(capture_config(database.dsn(), tmp_path)) as running:
            for n in range(repeats(2, soak=20)):
                with Writers(database, seed=n) as writers:
                    writers.await_commits(20)
                    before = running.connections
                    own_server.restart(mode)
                    running.connected(before + 1)
                    writers.await_commits(10)
                mirror.must_equal(database)
        assert len(mirror.commits) > 60
