"""Seeding, applying and verifying run nothing that an unprivileged role has planted. M7.6"""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from penstock.config import Config
from penstock.ops.setup import setup
from support import hostile
from support.database import Database
from support.hostile_notes import (
    COMPUTED,
    PLAIN,
    SCHEMA,
    all_counted,
    application,
    must_not_have_run,
    settings,
    write_notes,
)
from support.jobs import captured, job
from support.waiting import eventually


def test_aggregates_run_nothing_that_was_planted(
    database18: Database, tmp_path: Path, spark: SparkSession
) -> None:
    database18.run(*SCHEMA)
    words = hostile.plant(database18)
    config = Config.model_validate(settings(database18, tmp_path / "log", *PLAIN, COMPUTED))
    with application(database18) as app:
        write_notes(app, 0)
        setup(config)
        with captured(config), job(config, spark) as running:

            def counted() -> bool:
                running.must_run()
                return all_counted(app)

            eventually(counted, "rows that were there are counted", within_s=120)
            write_notes(app, 1_000)
            eventually(counted, "changes are counted", within_s=120)
    must_not_have_run(database18, words)
