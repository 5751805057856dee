"""A log that cannot be continued: what its error advises leads to right counts again."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from penstock.config import Config
from penstock.errors import SlotAheadOfLog
from penstock.ops.setup import setup
from penstock.ops.teardown import teardown
from penstock.pipelines.seeding import seed
from penstock.pipelines.verifying import verify
from support.capturing import capture_config, capturing
from support.database import Database
from support.targets import declared
from support.truth import NOTIFICATIONS, no_spark
from support.workload import SLOT

COUNTS = declared()


@pytest.fixture
def config(database18: Database, tmp_path: Path) -> Config:
    database18.run(*NOTIFICATIONS, "INSERT INTO notifications VALUES (1, 's', 'a', 1)")
    config = capture_config(database18.dsn(), tmp_path / "its log", tables=["notifications"])
    return config.model_copy(update={"aggregate": (COUNTS,)})


def test_the_steps_to_a_new_log(database18: Database, config: Config) -> None:  # M1.8, M7.3
    setup(config)
    with capturing(config) as running:
        running.connected()
        seed(config, COUNTS, no_spark)
    database18.run("INSERT INTO notifications VALUES (2, 's', 'a', 1)")  # that nobody captures
    database18.rows("SELECT pg_replication_slot_advance(%s, pg_current_wal_lsn())", SLOT)
    with capturing(config) as running:
        error = running.failure()
    assert isinstance(error, SlotAheadOfLog)
    steps = error.remedy.partition("Start a new log: ")[2]
    place = f"{config.log.path}"
    move = f"mv '{place}' '{place}.old'"
    assert steps == (
        f"stop `penstock run`, run `penstock teardown`, move {place} away ({move}), run `penstock "
        "setup`, start `penstock run`, and seed the targets again: `penstock reset NAME` for each "
        "aggregate"
    )
    teardown(config)
    subprocess.run(move, shell=True, check=True)
    setup(config)
    with capturing(config) as running:
        running.connected()
        seed(config, COUNTS, no_spark)
        assert verify(config, COUNTS, no_spark).differences == ()
    assert database18.rows("SELECT count FROM stats") == [(2,)]
