"""An aggregate to seed from three rows, and what its target shows then."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from penstock.config import Config
from penstock.lsn import Lsn
from support.database import Database
from support.logs import begin_log
from support.targets import declared

STATS = "CREATE TABLE stats (service text, status text, count bigint, note text DEFAULT 'kept')"
SEEDED = declared()
EXPECTED = {("s", "a"): 2, (None, "b"): 1}


def config_of(database: Database, path: Path, start: Lsn | None = None) -> Config:
    begin_log(database, path, start or database.wal_position())
    return Config.model_validate(
        {
            "source": {"dsn": database.dsn(), "tables": ["notifications"]},
            "log": {"path": path},
            "aggregate": [SEEDED.model_dump(exclude={"target_dsn"})],
        }
    )


def shown(database: Database) -> dict[Any, int]:
    rows = database.rows("SELECT service, status, count FROM stats")
    assert len({row[:2] for row in rows}) == len(rows)
    return {row[:2]: row[2] for row in rows}


def state(database: Database) -> tuple[str, Lsn]:
    ((state, lsn),) = database.rows("SELECT state, applied_lsn::text FROM penstock.progress")
    return state, Lsn.parse(lsn)
