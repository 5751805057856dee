"""A log at its disk budget waits for aggregates, which wait for nothing that it holds back."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from penstock.changelog.reader import LogReader
from penstock.config import Config
from penstock.pipelines import seeding
from penstock.pipelines.job import Job
from penstock.pipelines.truth import true_sums
from support.capturing import RunningCapture
from support.database import Database
from support.jobs import captured, caught_up, job
from support.notify import LIVE, NORMAL, Notifications, differences, notify_config
from support.repeats import repeats
from support.waiting import eventually


def with_small_budget(config: Config) -> Config:
    small = {"segment_mib": 0.01, "max_gib": 0.0001, "min_age_h": 0.0, "on_full": "wait"}
    return config.model_copy(update={"log": config.log.model_copy(update=small)})


def waits_for_room(capture: RunningCapture) -> bool:
    return any("disk budget" in str(each.get("reason")) for each in capture.said)


def test_a_log_at_its_disk_budget_goes_on_when_the_aggregates_have_what_is_in_it(
    prepared: Database, tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:  # M2.5, M5.3
    config = with_small_budget(notify_config(prepared, tmp_path / "log", LIVE))
    with (
        prepared.connect() as connection,
        captured(config) as capture,
        job(config, spark) as running,
    ):
        work = Notifications(connection)
        caught_up(prepared, running)
        may_apply = threading.Event()
        as_it_is = Job._write

        def write(self: Job, result: Any) -> None:
            may_apply.wait(60)
            as_it_is(self, result)

        monkeypatch.setattr(Job, "_write", write)
        for _ in range(repeats(1, soak=8)):
            may_apply.clear()
            capture.said.clear()
            work.insert(2_000)
            work.work(20)
            eventually(lambda: waits_for_room(capture), "capture waits for room")
            may_apply.set()
            caught_up(prepared, running)
            assert differences(connection, "ft_live") == 0


def test_a_log_that_fills_up_during_a_seeding_goes_on_after_it(
    prepared: Database, tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:  # M2.5, M5.5
    config = with_small_budget(notify_config(prepared, tmp_path / "log", LIVE, NORMAL))
    may_seed = threading.Event()

    def slow(connection: Any, bound: Any, *more: Any) -> Any:
        if bound.config.name == NORMAL["name"]:
            assert may_seed.wait(60)
        return true_sums(connection, bound, *more)

    monkeypatch.setattr(seeding, "true_sums", slow)
    with (
        prepared.connect() as connection,
        captured(config) as capture,
        job(config, spark) as running,
    ):
        live = "SELECT FROM penstock.progress WHERE aggregate = 'live' AND state = 'live'"
        eventually(lambda: prepared.rows(live), "the first is followed", within_s=60)
        work = Notifications(connection)
        work.insert(2_000)
        work.work(20)
        eventually(lambda: waits_for_room(capture), "capture waits for room", within_s=30)
        # Nothing comes any more that could tell that it is seeded.
        end = LogReader(config.log.path).end().lsn
        applied = "SELECT applied_lsn::text FROM penstock.progress WHERE aggregate = 'live'"
        eventually(lambda: prepared.lsn(applied) >= end, "the first has all of it")
        may_seed.set()
        caught_up(prepared, running)
        for target in ("ft_live", "ft_normal"):
            assert differences(connection, target) == 0
