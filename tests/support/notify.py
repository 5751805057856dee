"""A notification service in small: tables, declared aggregates, load, and what GROUP BY says."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import psycopg

from penstock.config import Config
from penstock.pipelines.bookkeeping import TABLES
from support.database import Database

_COLUMNS = """
    id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    service_id uuid NOT NULL,
    template_id uuid NOT NULL,
    job_id uuid,
    notification_type text NOT NULL,
    key_type text NOT NULL,
    notification_status text NOT NULL,
    created_at timestamptz NOT NULL,
    price numeric(10, 4)
"""
SCHEMA = (
    f"CREATE TABLE notifications ({_COLUMNS})",
    f"CREATE TABLE notification_history ({_COLUMNS})",
    "ALTER TABLE notifications REPLICA IDENTITY FULL",
    "ALTER TABLE notification_history REPLICA IDENTITY FULL",
    "CREATE PUBLICATION penstock FOR TABLE notifications, notification_history",
    "CREATE SCHEMA penstock",
    *TABLES.values(),
    (
        "CREATE TABLE ft_all (bst_date date, template_id uuid, service_id uuid, job_id uuid,"
        " notification_type text, key_type text, notification_status text,"
        " count integer NOT NULL DEFAULT 0, cost numeric NOT NULL DEFAULT 0,"
        " UNIQUE NULLS NOT DISTINCT (bst_date, template_id, service_id, job_id,"
        " notification_type, key_type, notification_status))"
    ),
    # As a migration of the user's own might make it.
    (
        "CREATE TABLE ft_service_stats (id uuid PRIMARY KEY DEFAULT gen_random_uuid(),"
        " service_id uuid NOT NULL, template_id uuid NOT NULL, notification_type text NOT NULL,"
        " notification_status text NOT NULL, count integer NOT NULL DEFAULT 0 CHECK (count >= 0),"
        " UNIQUE (service_id, template_id, notification_type, notification_status))"
    ),
    (
        "CREATE TABLE ft_by_date (bst_date date UNIQUE NULLS NOT DISTINCT,"
        " count bigint NOT NULL DEFAULT 0, cost numeric NOT NULL DEFAULT 0)"
    ),
)
LOCAL_DATE = "to_date(from_utc_timestamp(created_at, 'Europe/London'))"
STATUSES = ("created", "sending", "sent", "delivered", "failed")
# One pass: the finest grouping, rolled up to two coarser tables.
AGGREGATE: dict[str, Any] = {
    "name": "notification_counts",
    "sources": ["notifications", "notification_history"],
    "dimensions": {
        "bst_date": LOCAL_DATE,
        **{
            name: name
            for name in (
                *("template_id", "service_id", "job_id"),
                *("notification_type", "key_type", "notification_status"),
            )
        },
    },
    "measures": {"count": "count", "cost": "sum(price)"},
    "targets": [
        "ft_all",
        {
            "table": "ft_service_stats",
            "dimensions": [
                *("service_id", "template_id", "notification_type", "notification_status"),
            ],
            "measures": ["count"],
        },
        {"table": "ft_by_date", "dimensions": ["bst_date"]},
    ],
}
# Postgres groups it by itself.
PLAIN: dict[str, Any] = {
    "name": "service_stats",
    "sources": ["notifications"],
    "dimensions": ["service_id", "template_id", "notification_type", "notification_status"],
    "targets": ["ft_service_stats"],
}
# What each target should be.
_LOCAL = "(created_at AT TIME ZONE 'Europe/London')::date"
_BOTH = "(TABLE notifications UNION ALL TABLE notification_history)"
_TRUTHS = {
    "ft_all": (
        (
            "bst_date, template_id, service_id, job_id, notification_type, key_type,"
            " notification_status, count, cost"
        ),
        (
            f"SELECT {_LOCAL}, template_id, service_id, job_id, notification_type, key_type,"
            f" notification_status, count(*), coalesce(sum(price), 0) FROM {_BOTH} AS n"
            " GROUP BY 1, 2, 3, 4, 5, 6, 7"
        ),
    ),
    "ft_service_stats": (
        "service_id, template_id, notification_type, notification_status, count",
        (
            "SELECT service_id, template_id, notification_type, notification_status, count(*)"
            f" FROM {_BOTH} AS n GROUP BY 1, 2, 3, 4"
        ),
    ),
    "ft_by_date": (
        "bst_date, count, cost",
        f"SELECT {_LOCAL}, count(*), coalesce(sum(price), 0) FROM {_BOTH} AS n GROUP BY 1",
    ),
}


def notify_config(database: Database, path: Path, *aggregates: dict[str, Any]) -> Config:
    return Config.model_validate(
        {
            "source": {
                "dsn": database.dsn(),
                "tables": ["notifications", "notification_history"],
                "keepalive_interval_s": 0.1,
            },
            "heartbeat": {"interval_min": 0},
            "log": {"path": path},
            "aggregate": list(aggregates),
        }
    )


def differences(connection: psycopg.Connection[Any], target: str) -> int:
    """How many rows of a target are not what GROUP BY says; rows of zero do not count."""
    columns, truth = _TRUTHS[target]
    shown = f"SELECT {columns} FROM {target} WHERE count <> 0"
    row = connection.execute(
        f"SELECT count(*) FROM ((({shown}) EXCEPT ({truth})) UNION ALL"
        f" (({truth}) EXCEPT ({shown}))) AS different".encode()
    ).fetchone()
    assert row is not None
    return int(row[0])


class Notifications:
    """Random work on the tables, in transactions of all sizes, some rolled back."""

    def __init__(self, connection: psycopg.Connection[Any], seed: int = 1) -> None:
        self._connection = connection
        self._chance = random.Random(seed)

    def work(self, transactions: int) -> None:
        for _ in range(transactions):
            self._transaction()

    def _transaction(self) -> None:
        chance = self._chance
        with self._connection.transaction() as transaction:
            for _ in range(chance.randrange(1, 4)):
                chance.choice((self.insert, self.insert, self._move, self._move, self._archive))(
                    chance.choice((1, 3, 20))
                )
            if chance.random() < 0.1:
                raise psycopg.Rollback(transaction)

    def insert(self, count: int) -> None:
        self._connection.execute(
            "INSERT INTO notifications (service_id, template_id, job_id, notification_type,"
            " key_type, notification_status, created_at, price)"
            " SELECT md5('s' || s)::uuid, md5('t' || s || t)::uuid,"
            " CASE WHEN random() < 0.5 THEN md5('j' || s)::uuid END,"
            " (ARRAY['email', 'sms', 'letter'])[1 + t %% 3],"
            " CASE WHEN random() < 0.8 THEN 'normal' ELSE 'test' END, 'created',"
            # Around the change of the clocks, where the local date is not that of UTC.
            " timestamptz '2026-03-28 22:00+00' + random() * interval '3 days',"
            " CASE WHEN random() < 0.7 THEN round((random() * 10)::numeric, 4) END"
            " FROM (SELECT floor(random() * 4)::int AS s, floor(random() * 3)::int AS t"
            " FROM generate_series(1, %s)) AS drawn",
            [count],
        )

    def _move(self, count: int) -> None:
        self._connection.execute(
            "UPDATE notifications SET notification_status = %s WHERE id IN"
            " (SELECT id FROM notifications ORDER BY random() LIMIT %s)",
            [self._chance.choice(STATUSES), count],
        )

    def _archive(self, count: int) -> None:
        """Moved to the history, of which the oldest are purged."""
        self._connection.execute(
            "WITH old AS (DELETE FROM notifications WHERE id IN"
            " (SELECT id FROM notifications ORDER BY random() LIMIT %s) RETURNING *)"
            " INSERT INTO notification_history SELECT * FROM old",
            [count],
        )
        self._connection.execute(
            "DELETE FROM notification_history WHERE id IN"
            " (SELECT id FROM notification_history ORDER BY random() LIMIT %s)",
            [count // 3],
        )
