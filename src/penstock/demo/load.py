"""A steady load on `notifications`: sent, delivered or failed, and purged in the end."""

from __future__ import annotations

import threading
from importlib import resources

import psycopg

_TICK_S = 0.1

# %(count)s rows at a time. Random ids spread over 20 services with 5 templates each.
_INSERT = """
INSERT INTO notifications
SELECT gen_random_uuid(), md5('service' || s)::uuid, md5('template' || s || t)::uuid, NULL,
       (ARRAY['email', 'sms', 'letter'])[1 + t %% 3], 'normal', 'created', now(), NULL
  FROM (SELECT floor(random() * 20)::int AS s, floor(random() * 5)::int AS t
          FROM generate_series(1, %(count)s)) AS drawn
"""
_MOVE = """
UPDATE notifications SET notification_status = %(to)s, updated_at = now()
 WHERE id IN (SELECT id FROM notifications
               WHERE notification_status = %(from)s LIMIT %(count)s)
"""
_PURGE = """
DELETE FROM notifications
 WHERE id IN (SELECT id FROM notifications
               WHERE notification_status IN ('delivered', 'failed') LIMIT %(count)s)
"""


def create_table(connection: psycopg.Connection) -> None:
    connection.execute(resources.files(__package__).joinpath("notifications.sql").read_bytes())


def insert(connection: psycopg.Connection, count: int) -> None:
    connection.execute(_INSERT, {"count": count})


def run_load(dsn: str, *, rate: int, stop: threading.Event) -> None:
    """About `rate` changes a second until `stop`, in small transactions.

    Of ten changes four are new rows, three are sent, two reach their end, one is purged.
    """
    tenth = max(1, round(rate * _TICK_S / 10))
    with psycopg.connect(dsn, autocommit=True, application_name="penstock demo load") as connection:
        while not stop.wait(_TICK_S):
            insert(connection, 4 * tenth)
            for was, becomes, count in (
                ("created", "sending", 3 * tenth),
                ("sending", "delivered", tenth),
                ("sending", "failed", tenth),
            ):
                connection.execute(_MOVE, {"from": was, "to": becomes, "count": count})
            connection.execute(_PURGE, {"count": tenth})
