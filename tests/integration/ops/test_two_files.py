"""Two files with targets in one database: each aggregate has a name and tables of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from penstock.changelog.reader import LogReader
from penstock.config import Config
from penstock.declarations import AggregateConfig
from penstock.errors import TargetClash
from penstock.lsn import Lsn
from penstock.ops.doctor import diagnose
from penstock.ops.setup import setup
from penstock.ops.teardown import teardown
from penstock.pipelines.seeding import begin
from support.aggregates import config_with, declared
from support.database import Database
from support.logs import begin_log

STATE = "SELECT state FROM penstock.progress WHERE aggregate = 'counts'"


def config_of(database: Database, log: Path, slot: str, **changes: Any) -> Config:
    config = config_with(database, declared(**changes), slot=slot)
    return config.model_copy(update={"log": config.log.model_copy(update={"path": log})})


@pytest.fixture
def first(notes18: Database, tmp_path: Path) -> Config:
    """The one whose aggregate is there."""
    config = config_of(notes18, tmp_path / "first", "first")
    setup(config)
    begin_log(notes18, config.log.path, notes18.wal_position(), "first")
    log_id = str(LogReader(config.log.path).identity.log_id)
    with notes18.connect() as connection:
        begin(connection, config.aggregate[0], log_id, Lsn(1))
        connection.execute("UPDATE penstock.progress SET state = 'live'")
    return config


def test_a_target_that_another_s_aggregate_keeps_is_refused(notes18: Database) -> None:
    # M5.3: two would add their changes to each other's counts.
    setup(config_with(notes18, declared()))
    with notes18.connect() as connection:
        begin(connection, AggregateConfig.model_validate(declared()), str(uuid4()), Lsn(1))
    other = config_with(notes18, declared(name="again"))
    with pytest.raises(TargetClash, match="which aggregate counts keeps") as caught:
        setup(other)
    assert any("counts keeps" in f.what for f in diagnose(other) if f.level == "error")
    notes18.run(caught.value.remedy.partition("database: ")[2])
    setup(other)


@pytest.mark.parametrize("has_log", [False, True])
def test_a_name_that_another_s_aggregate_has_is_refused(
    notes18: Database, tmp_path: Path, first: Config, has_log: bool
) -> None:  # M5.3, M7.3: that one would be seeded anew
    other = config_of(notes18, tmp_path / "other", "other", targets=["others"])
    if has_log:
        setup(config_of(notes18, tmp_path / "other", "other", name="before", targets=["before"]))
        begin_log(notes18, other.log.path, notes18.wal_position(), "other")
    with pytest.raises(TargetClash, match=r"the name counts keeps public\.stats in") as caught:
        setup(other)
    assert "another name" in caught.value.remedy
    assert notes18.value(STATE) == "live"
    (told,) = (f for f in diagnose(other) if f.check in ("aggregate_name", "aggregate_progress"))
    assert (told.level, told.what, told.fix) == (
        "error",
        caught.value.problem,
        caught.value.remedy,
    )
    assert setup(first).steps == ()
    # As is advised, where the first is gone.
    notes18.run(caught.value.remedy.partition("database: ")[2])
    setup(other)
    assert "aggregate_name" not in {f.check for f in diagnose(other)}


def test_one_whose_targets_are_others_now_is_not_taken_for_another_s(
    notes18: Database, tmp_path: Path, first: Config
) -> None:  # M5.3
    moved = config_of(notes18, tmp_path / "first", "first", targets=["moved"])
    setup(moved)
    assert notes18.value(STATE) == "seeding"
    # Also where the log cannot be seen.
    notes18.run("DROP TABLE moved", "UPDATE penstock.progress SET state = 'live'")
    setup(config_of(notes18, tmp_path / "elsewhere", "first", targets=["moved"]))
    assert notes18.value(STATE) == "seeding"


def test_one_with_a_new_log_is_not_taken_for_another_s(
    notes18: Database, tmp_path: Path, first: Config
) -> None:  # M3.9, M5.5
    more = config_of(notes18, tmp_path / "first", "first", targets=["stats", "more"])
    teardown(first)
    first.log.path.rename(tmp_path / "old")
    notes18.run("DROP TABLE stats")
    setup(more)
    begin_log(notes18, first.log.path, notes18.wal_position(), "first")
    assert setup(more).steps == ()
    assert "aggregate_name" not in {f.check for f in diagnose(more)}
