"""Declared aggregates over a test's own tables."""

from __future__ import annotations

from typing import Any

from penstock.config import Config
from penstock.declarations import AggregateConfig
from penstock.ops.doctor import diagnose
from penstock.ops.findings import Finding
from support.database import Database

NOTES = """
CREATE TYPE kind AS ENUM ('email', 'sms');
CREATE TABLE notes (
    id bigserial PRIMARY KEY,
    service_id uuid NOT NULL,
    status varchar(20) NOT NULL,
    kind kind,
    price numeric(10, 4),
    made_at timestamptz NOT NULL DEFAULT now()
);
ALTER TABLE notes REPLICA IDENTITY FULL;
"""


def declared(**changes: Any) -> dict[str, Any]:
    given = {
        "name": "counts",
        "sources": ["notes"],
        "dimensions": ["service_id", "status"],
        "targets": ["stats"],
    }
    return given | changes


def by_status(**changes: Any) -> AggregateConfig:
    return AggregateConfig.model_validate(declared(**{"dimensions": ["status"], **changes}))


def config_with(database: Database, *aggregates: dict[str, Any], **source: Any) -> Config:
    """Of the table `notes`, unless `tables` says otherwise."""
    return Config.model_validate(
        {
            "source": {"dsn": database.dsn(), "tables": ["notes"], **source},
            "aggregate": aggregates or [declared()],
        }
    )


def findings(database: Database, *aggregates: dict[str, Any], **source: Any) -> list[Finding]:
    """About aggregates and their targets."""
    found = diagnose(config_with(database, *aggregates, **source))
    return [one for one in found if one.check.startswith(("aggregate", "target", "bookkeeping"))]


def bad(found: list[Finding]) -> list[Finding]:
    return [one for one in found if one.level in ("warning", "error")]


def columns(database: Database, table: str) -> list[tuple[str, str, bool, str | None]]:
    return database.rows(
        "SELECT attname, format_type(atttypid, atttypmod), attnotnull, "
        "       (SELECT pg_get_expr(adbin, adrelid) FROM pg_attrdef "
        "         WHERE adrelid = attrelid AND adnum = attnum) "
        "  FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0 ORDER BY attnum",
        table,
    )
