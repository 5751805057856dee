"""The table that the benchmarks fill: the nine columns of the notify example, and nothing else.

No foreign keys and no indexes but its identity: what is measured is the pipe, not the checks that
the server makes for an application. Changes here change every figure.
"""

from __future__ import annotations

from importlib import resources

import psycopg

# %(count)s rows at a time. Random ids spread over 20 services with 5 templates each.
_INSERT = """
INSERT INTO notifications
SELECT gen_random_uuid(), md5('service' || s)::uuid, md5('template' || s || t)::uuid, NULL,
       (ARRAY['email', 'sms', 'letter'])[1 + t %% 3], 'normal', 'created', now(), NULL
  FROM (SELECT floor(random() * 20)::int AS s, floor(random() * 5)::int AS t
          FROM generate_series(1, %(count)s)) AS drawn
"""


def create_table(connection: psycopg.Connection) -> None:
    connection.execute(resources.files(__package__).joinpath("notifications.sql").read_bytes())


def insert(connection: psycopg.Connection, count: int) -> None:
    connection.execute(_INSERT, {"count": count})
