"""What a notification service does all day, as the example's load and the demo need it.

`create` makes its tables. `bulk` adds many rows of the last seven days. `steady` is daily life:
messages are created, go out, arrive or fail, move to the history and are deleted there. Several may
run at once.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import psycopg

from penstock.postgres.connect import connect

_HERE = Path(__file__).parent
_TICK_S = 0.1
# A transaction of `bulk`. Long enough to be quick, short enough for progress to be seen.
_ROWS_AT_ONCE = 100_000
OnCount = Callable[[int], None]

# Twenty services with five templates each, of all types. The same each time, so they are made once.
_SERVICES = """
INSERT INTO public.services (id, name)
SELECT md5('service ' || s)::uuid, 'Service ' || s FROM generate_series(1, 20) AS s
ON CONFLICT DO NOTHING
"""
_TEMPLATES = """
INSERT INTO public.templates (id, service_id, notification_type, name)
SELECT md5('template ' || s || '.' || t)::uuid, md5('service ' || s)::uuid,
       (ARRAY['email', 'sms', 'letter'])[1 + (s + t) % 3], 'Template ' || s || '.' || t
  FROM generate_series(1, 20) AS s, generate_series(1, 5) AS t
ON CONFLICT DO NOTHING
"""

# New rows. Each takes its service and its type from its template, drawn by its number; about a
# third came with a job, of which each template has one a day. Ids begin with the time, as those of
# UUID version 7 do: new ones are neighbours in the index, which makes them quicker to add.
_INSERT = """
WITH drawn AS (
    SELECT floor(random() * %(templates)s) AS template, random() AS job, random() AS key,
           random() AS age, random() AS status,
           %(until)s::timestamptz - %(span_s)s * interval '1 s' * (1 - n::float8 / %(total)s)
               AS created_at
      FROM generate_series(%(first)s::bigint, %(last)s::bigint) AS n
), numbered AS MATERIALIZED (
    SELECT row_number() OVER (ORDER BY id) - 1 AS number, id, service_id, notification_type
      FROM (SELECT * FROM public.templates {lock}) AS held
), placed AS (
    SELECT drawn.*, numbered.*,
           CASE WHEN NOT %(aged)s OR status < 0.02 THEN 'created' WHEN status < 0.04 THEN 'sending'
                WHEN status < 0.10 THEN 'sent' WHEN status < 0.14 THEN 'temporary-failure'
                WHEN status < 0.20 THEN 'permanent-failure' ELSE 'delivered' END AS placed
      FROM drawn JOIN numbered ON number = template
)
INSERT INTO public.notifications (id, service_id, template_id, job_id, notification_type, key_type,
                                  notification_status, created_at, updated_at)
SELECT overlay(gen_random_uuid()::text PLACING
               to_char(created_at AT TIME ZONE 'UTC', 'YYMMDDHH24-MISS') FROM 1 FOR 13)::uuid,
       service_id, id, CASE WHEN job < 0.3 THEN md5(id || created_at::date::text)::uuid END,
       notification_type,
       CASE WHEN key < 0.9 THEN 'normal' WHEN key < 0.97 THEN 'team' ELSE 'test' END,
       placed, created_at,
       CASE WHEN placed <> 'created' THEN created_at + age * interval '5 min' END
  FROM placed
"""

# The oldest that are in one status go to the next. Locked rows are somebody else's.
_MOVE = """
WITH oldest AS MATERIALIZED (
    SELECT id FROM public.notifications WHERE notification_status = %(was)s
     ORDER BY created_at LIMIT %(count)s FOR UPDATE SKIP LOCKED
)
UPDATE public.notifications AS n SET notification_status = %(becomes)s, updated_at = now()
  FROM oldest WHERE n.id = oldest.id
"""
# Into the history, in one transaction; what was sent with a test key is only deleted.
_ARCHIVE = """
WITH oldest AS MATERIALIZED (
    SELECT id FROM public.notifications WHERE notification_status = %(was)s
     ORDER BY created_at LIMIT %(count)s FOR UPDATE SKIP LOCKED
), gone AS (
    DELETE FROM public.notifications AS n USING oldest WHERE n.id = oldest.id RETURNING n.*
), kept AS (
    INSERT INTO public.notification_history SELECT * FROM gone WHERE key_type <> 'test' RETURNING id
)
SELECT FROM gone UNION ALL SELECT FROM kept
"""
# A receipt that comes late.
_RECEIPT = """
WITH newest AS MATERIALIZED (
    SELECT id FROM public.notification_history WHERE notification_status = 'sent'
     ORDER BY created_at DESC LIMIT %(count)s FOR UPDATE SKIP LOCKED
)
UPDATE public.notification_history AS h SET notification_status = 'delivered', updated_at = now()
  FROM newest WHERE h.id = newest.id
"""
_PURGE = """
WITH oldest AS MATERIALIZED (
    SELECT id FROM public.notification_history
     ORDER BY created_at LIMIT %(count)s FOR UPDATE SKIP LOCKED
)
DELETE FROM public.notification_history AS h USING oldest WHERE h.id = oldest.id
"""

# A life in steps, and how many of a hundred are of each. More come than go: the table grows.
_STEPS: tuple[tuple[int, str, dict[str, str]], ...] = (
    (22, _MOVE, {"was": "created", "becomes": "sending"}),
    (20, _MOVE, {"was": "sending", "becomes": "sent"}),
    (14, _MOVE, {"was": "sent", "becomes": "delivered"}),
    (2, _MOVE, {"was": "sent", "becomes": "temporary-failure"}),
    (2, _MOVE, {"was": "sent", "becomes": "permanent-failure"}),
    (5, _ARCHIVE, {"was": "delivered"}),
    (1, _ARCHIVE, {"was": "permanent-failure"}),
    (2, _ARCHIVE, {"was": "sent"}),
    (1, _RECEIPT, {}),
    (4, _PURGE, {}),
)
_NEW = 100 - sum(share for share, *_ in _STEPS)


def create(connection: psycopg.Connection, folder: Path = _HERE) -> None:
    """The tables of the example and those for its counts: all or nothing."""
    with connection.transaction():
        # The files are as a person would run them.
        connection.execute("SET LOCAL search_path = public")
        for name in ("schema.sql", "targets.sql"):
            connection.execute((folder / name).read_bytes())


def bulk(
    connection: psycopg.Connection,
    rows: int,
    *,
    until: datetime | None = None,
    seed: float | None = None,
    on_rows: OnCount = lambda _: None,
) -> None:
    """Add `rows` notifications of the seven days before `until` (now), oldest first.

    In several transactions, on a connection that commits by itself; after each, `on_rows` is told
    how many are there. The same `seed`, from -1 to 1, gives the same counts; ids are always new.
    """
    templates = _prepare(connection, seed)
    insert = _INSERT.format(lock="FOR KEY SHARE")
    whole = {"until": until or datetime.now(UTC), "span_s": 7 * 86_400, "total": rows, "aged": True}
    for first in range(1, rows + 1, _ROWS_AT_ONCE):
        last = min(first + _ROWS_AT_ONCE - 1, rows)
        with connection.transaction():
            _trust_keys(connection)
            connection.execute(
                insert, {**whole, "templates": templates, "first": first, "last": last}
            )
        on_rows(last)
    # For the plans of those who come next; the server itself would see to it in a minute.
    connection.execute("ANALYZE public.notifications")


def steady(
    dsn: str,
    *,
    rate: float,
    stop: threading.Event,
    seed: float | None = None,
    on_changes: OnCount = lambda _: None,
) -> None:
    """About `rate` changes a second until `stop`, each step of a life in a transaction of its own.

    `on_changes` is told after each of them how many there were so far. A server that is too slow
    for the rate gets what it can bear. `seed` as in `bulk`.
    """
    chance = random.Random(seed)  # noqa: S311 - draws work, guards nothing
    with connect(dsn, application_name="notify load") as connection:
        templates = _prepare(connection, seed)
        due, done, last = 0.0, 0, time.monotonic()
        while not stop.wait(_TICK_S):
            now = time.monotonic()
            due = min(due + rate * (now - last), rate)
            last = now
            for changes in _tick(connection, chance, int(due), templates):
                done += changes
                on_changes(done)
            due -= int(due)


def _tick(
    connection: psycopg.Connection, chance: random.Random, changes: int, templates: int
) -> Iterator[int]:
    """How many there were in each transaction, as soon as it has committed."""
    steps = range(-1, len(_STEPS))
    drawn = Counter(chance.choices(steps, [_NEW, *(share for share, *_ in _STEPS)], k=changes))
    yield _insert_now(connection, drawn[-1], templates) if drawn[-1] else 0
    for step, (_, statement, values) in enumerate(_STEPS):
        if drawn[step]:
            yield connection.execute(statement, {**values, "count": drawn[step]}).rowcount


def _insert_now(connection: psycopg.Connection, rows: int, templates: int) -> int:
    new = {
        "until": datetime.now(UTC),
        "span_s": _TICK_S,
        "total": rows,
        "aged": False,
        "templates": templates,
        "first": 1,
        "last": rows,
    }
    return connection.execute(_INSERT.format(lock=""), new).rowcount


def _prepare(connection: psycopg.Connection, seed: float | None) -> int:
    """Services and templates are there; returns how many templates."""
    if seed is not None:
        connection.execute("SELECT setseed(%s)", [seed])
    with connection.transaction():
        connection.execute(_SERVICES)
        connection.execute(_TEMPLATES)
    row = connection.execute("SELECT count(*) FROM public.templates").fetchone()
    return int(row[0]) if row else 0


def _trust_keys(connection: psycopg.Connection) -> None:
    """For this transaction, where the role may: no checks of foreign keys, half of the time.

    They hold all the same: the rows are made from their templates, which are locked meanwhile and
    hold their services, and from the statuses of schema.sql.
    """
    row = connection.execute(
        "SELECT has_parameter_privilege('session_replication_role', 'SET')"
    ).fetchone()
    if row and row[0]:
        connection.execute("SET LOCAL session_replication_role = replica")
