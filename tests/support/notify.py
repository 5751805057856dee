"""A notification service in small: tables, declared aggregates, load, and what GROUP BY says.

`TARGETS` makes what a target's database needs, `SCHEMA` everything, for both in one.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import psycopg

from penstock.config import Config
from penstock.pipelines.bookkeeping import TABLES
from support.beside import beside
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
TARGETS = (
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
    (
        "CREATE TABLE ft_live (service_id uuid, notification_status text,"
        " count bigint NOT NULL DEFAULT 0,"
        " UNIQUE NULLS NOT DISTINCT (service_id, notification_status))"
    ),
    (
        "CREATE TABLE ft_normal (hour integer UNIQUE NULLS NOT DISTINCT,"
        " count bigint NOT NULL DEFAULT 0)"
    ),
)
SCHEMA = (
    f"CREATE TABLE notifications ({_COLUMNS})",
    f"CREATE TABLE notification_history ({_COLUMNS})",
    "ALTER TABLE notifications REPLICA IDENTITY FULL",
    "ALTER TABLE notification_history REPLICA IDENTITY FULL",
    "CREATE PUBLICATION penstock FOR TABLE notifications, notification_history",
    *TARGETS,
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
# Two that may be followed beside the first: a plain one, and one with a filter.
LIVE: dict[str, Any] = {
    "name": "live",
    "sources": ["notifications"],
    "dimensions": ["service_id", "notification_status"],
    "targets": ["ft_live"],
}
NORMAL: dict[str, Any] = {
    "name": "normal_by_hour",
    "sources": ["notifications"],
    "filter": "key_type = 'normal'",
    "dimensions": {"hour": "hour(created_at)"},
    "targets": ["ft_normal"],
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
    "ft_live": (
        "service_id, notification_status, count",
        "SELECT service_id, notification_status, count(*) FROM notifications GROUP BY 1, 2",
    ),
    "ft_normal": (
        "hour, count",
        (
            "SELECT extract(hour FROM created_at AT TIME ZONE 'UTC')::int, count(*)"
            " FROM notifications WHERE key_type = 'normal' GROUP BY 1"
        ),
    ),
}


def notify_settings(dsn: str, path: Path, *aggregates: dict[str, Any]) -> dict[str, Any]:
    """What the configuration file holds."""
    return {
        "source": {
            "dsn": dsn,
            "tables": ["notifications", "notification_history"],
            "keepalive_interval_s": 0.1,
        },
        "heartbeat": {"interval_min": 0},
        "log": {"path": path},
        "aggregate": list(aggregates),
    }


def notify_config(
    database: Database, path: Path, *aggregates: dict[str, Any], dsn: str | None = None
) -> Config:
    """`dsn`: another way to the database."""
    return Config.model_validate(notify_settings(dsn or database.dsn(), path, *aggregates))


def differences(
    connection: psycopg.Connection[Any],
    target: str,
    at: psycopg.Connection[Any] | None = None,
) -> int:
    """How many rows of a target are not what GROUP BY says; rows of zero do not count.

    `at`: to the database with the target, if it is another one. Nothing happens meanwhile.
    """
    columns, truth = _TRUTHS[target]
    shown = (at or connection).execute(f"SELECT {columns} FROM {target} WHERE count <> 0".encode())
    expected = connection.execute(truth.encode())
    different = Counter(shown.fetchall())
    different.subtract(expected.fetchall())
    return sum(map(abs, different.values()))


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


def working(database: Database, seed: int) -> AbstractContextManager[None]:
    """Random work beside the block, whatever happens to the server meanwhile."""

    def work(done: threading.Event) -> None:
        chance = random.Random(seed)
        while not done.is_set():
            try:
                with database.connect() as connection:
                    notifications = Notifications(connection, chance.randrange(2**32))
                    while not done.is_set():
                        notifications.work(1)
                        time.sleep(chance.uniform(0.0, 0.1))
            except (psycopg.OperationalError, psycopg.Rollback):
                # The server is down or was, perhaps while it rolled back: a client tries again.
                time.sleep(0.02)

    return beside(work)
