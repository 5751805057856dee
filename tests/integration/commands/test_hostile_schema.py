"""A role that may create functions gets none of them run by us, whatever it plants. M7.6

The Spark side of it is in tests/spark/test_hostile_schema.py.
"""

from __future__ import annotations

from pathlib import Path

from penstock.config import Config
from support import hostile
from support.commands import penstock
from support.database import Database
from support.hostile_notes import (
    PLAIN,
    SCHEMA,
    application,
    must_not_have_run,
    settings,
    write_notes,
)
from support.processes import capture_process
from support.toml import write_toml
from support.waiting import eventually


def test_no_command_runs_what_an_unprivileged_role_has_planted(
    database: Database, tmp_path: Path
) -> None:
    database.run(*SCHEMA)
    words = hostile.plant(database)
    given = settings(database, tmp_path / "log", *PLAIN)
    file = write_toml(tmp_path / "penstock.toml", given)

    def command(*arguments: str, ends_with: int = 0, config: Path = file) -> None:
        done = penstock(*arguments, "--config", str(config))
        must_not_have_run(database, words)
        assert done.returncode == ends_with, (arguments, done.stderr, done.stdout)

    with application(database) as app:
        write_notes(app, 0)
        command("setup", "--dry-run")
        command("init", "--dsn", database.dsn(), config=tmp_path / "suggested.toml")
        command("doctor", ends_with=2)
        command("setup")
        command("doctor")
        with capture_process(Config.model_validate(given), tmp_path) as capture:
            eventually(lambda: "following" in capture.all_said(), "it follows", within_s=60)
            for name in ("moods", "kinds"):
                command("reset", name)
            # As if it had been counted twice.
            app.execute("UPDATE moods SET count = count + 1 WHERE place = 'place 1'")
            command("verify", ends_with=1)
            command("verify", "--repair")
            write_notes(app, 1_000)
            said = "SELECT 1 FROM pg_stat_replication WHERE flush_lsn >= %s::text::pg_lsn"
            end = app.execute("SELECT pg_current_wal_flush_lsn()::text").fetchone()
            eventually(lambda: app.execute(said, end).fetchone(), "all is captured", within_s=60)
            capture.stop(within_s=60)
        must_not_have_run(database, words)
        command("log", "check")
        command("teardown")
