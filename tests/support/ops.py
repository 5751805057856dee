"""Set-up and doctor against a test's own database, by function and by the real command."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from penstock.config import Config
from penstock.ops.setup import Patience, setup
from penstock.ops.steps import Plan
from penstock.postgres.connect import connect
from support.database import Database

# For a test that uses `database` and does not depend on the version.
on_18 = pytest.mark.parametrize("server", [18], indirect=True)

QUICK = Patience(lock_timeout_s=0.4, lock_attempts=2, pause_s=0.05, slot_deadline_s=1.0)


def config_for(database: Database, *tables: Any, **source: Any) -> Config:
    return Config.model_validate(
        {"source": {"dsn": database.dsn(), "tables": tables or ["orders"], **source}}
    )


def do(database: Database, *tables: Any, **source: Any) -> Plan:
    """Set up."""
    return setup(config_for(database, *tables, **source), patience=QUICK)


@contextmanager
def reader(database: Database, slot: str, user: str = "postgres") -> Iterator[psycopg.Connection]:
    """Another program that reads from the slot."""
    connection = connect(database.dsn(user), replication="database", application_name="somebody")
    try:
        command = f"START_REPLICATION SLOT {slot} LOGICAL 0/0 "
        command += "(proto_version '1', publication_names 'penstock')"
        result = connection.pgconn.exec_(command.encode())
        assert result.status == psycopg.pq.ExecStatus.COPY_BOTH, result.error_message
        yield connection
    finally:
        connection.close()


def replica_identities(database: Database) -> dict[str, str]:
    return dict(
        database.rows(
            "SELECT relname, relreplident::text FROM pg_class "
            "WHERE relkind IN ('r', 'p') AND relnamespace::regnamespace::text NOT LIKE 'pg%%'"
            "  AND relnamespace::regnamespace::text <> 'information_schema'"
        )
    )


def slots(database: Database) -> list[str]:
    return [
        name
        for (name,) in database.rows(
            "SELECT slot_name FROM pg_replication_slots WHERE database = current_database()"
        )
    ]
