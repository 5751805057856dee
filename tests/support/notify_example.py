"""The notify example on a test's own database, from its files as a user gets them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from penstock import config
from penstock.config import Config
from penstock.init.dsn import OpenDsn
from penstock.notify.service import create
from penstock.notify.writing import write_example
from support.database import Database

_LOCAL = "(created_at AT TIME ZONE 'Europe/London')::date AS bst_date"
_ROWS = f"SELECT *, {_LOCAL} FROM (TABLE notifications UNION ALL TABLE notification_history) AS n"
TARGETS = {
    "ft_notification_status": (
        "bst_date, template_id, service_id, job_id, notification_type, key_type,"
        " notification_status"
    ),
    "ft_service_stats": "service_id, template_id, notification_type, notification_status",
    "ft_daily_stats": "bst_date, service_id, notification_type, notification_status",
}


def written(database: Database, folder: Path, **flags: Any) -> Config:
    """The files are in the folder and the tables in the database; `flags` are of [source]."""
    write_example(folder, OpenDsn(database.dsn()))
    with database.connect() as connection:
        create(connection)
    given = {f"source.{key}": value for key, value in flags.items()}
    return config.load(folder / "penstock.toml", flags=given, environ={})


def differing(database: Database, target: str) -> list[tuple[Any, ...]]:
    """Rows of a target that GROUP BY does not give, and the other way round."""
    keys = TARGETS[target]
    shown = f"SELECT {keys}, count FROM {target} WHERE count <> 0"
    truth = f"SELECT {keys}, count(*)::int AS count FROM ({_ROWS}) AS r GROUP BY {keys}"
    return database.rows(
        f"(({shown}) EXCEPT ALL ({truth})) UNION ALL (({truth}) EXCEPT ALL ({shown}))"
    )


def broken_keys(database: Database) -> list[str]:
    """Foreign keys that do not hold: each is checked anew by the server, as if just declared."""
    declared = database.rows(
        "SELECT conrelid::regclass::text, pg_get_constraintdef(oid) FROM pg_constraint"
        " WHERE contype = 'f' ORDER BY 1, 2"
    )
    assert len(declared) == 7
    broken = []
    with database.connect(autocommit=False) as connection:
        for table, definition in declared:
            try:
                with connection.transaction():
                    connection.execute(f"ALTER TABLE {table} ADD {definition}".encode())
            except Exception as error:  # noqa: BLE001 - whatever it is, it does not hold
                broken.append(f"{table} {definition}: {error}")
        connection.rollback()
    return broken
