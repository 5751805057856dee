"""`penstock aggregate` is started before capture has made its log: it waits, and says so."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock.config import Config
from support.capturing import capturing
from support.database import Database
from support.notify import LIVE, SCHEMA, notify_config
from support.processes import PenstockProcess, started
from support.waiting import eventually


@contextmanager
def waiting(config: Config, directory: Path) -> Iterator[PenstockProcess]:
    process = PenstockProcess("aggregate", config, directory)
    with started(process):
        eventually(lambda: process.has_ended or "waiting" in process.all_said(), "it waits")
        yield process


def test_it_goes_on_when_the_log_is_there(database18: Database, tmp_path: Path) -> None:  # M7.1
    database18.run(*SCHEMA)
    database18.create_slot("penstock")
    # What is looked at next, before Spark is started.
    database18.run("DROP TABLE ft_live")
    config = notify_config(database18, tmp_path / "log", LIVE)
    with waiting(config, tmp_path) as aggregate:
        said = aggregate.all_said()
        assert "waiting for capture to make its log" in said
        assert f"there is no change log in {tmp_path / 'log'}" in said
        assert "that capture has been started" in said
        with capturing(config) as running:
            running.connected()
            assert "ft_live" in aggregate.failure()


def test_it_can_be_stopped_meanwhile(database18: Database, tmp_path: Path) -> None:  # M7.1
    database18.run(*SCHEMA)
    with waiting(notify_config(database18, tmp_path / "log", LIVE), tmp_path) as aggregate:
        aggregate.stop()
    assert "Traceback" not in aggregate.all_said()
