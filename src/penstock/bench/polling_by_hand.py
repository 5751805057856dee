"""The usual hand-made design, as a peer: poll the slot with wal2json, count in Python, upsert.

Written as one would write it with care: changes are peeked and not taken, counts of a round are
summed up before they are written, each dimension is one upsert, and the slot is advanced after the
commit. The plugin leaves out what nobody reads. Rounds follow each other without a pause.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import psycopg

from penstock.lsn import Lsn

_MOST_CHANGES = 10_000
_PEEK = """
SELECT lsn::text, data FROM pg_logical_slot_peek_changes(
    %(slot)s, %(until)s, %(most)s, 'format-version', '1', 'include-lsn', 'true',
    'include-types', 'false', 'add-tables', 'public.notifications')
"""
_UPSERT = """
INSERT INTO polled_stats (service_id, template_id, notification_type, notification_status, count)
VALUES (%s, %s, %s, %s, %s)
ON CONFLICT (service_id, template_id, notification_type, notification_status)
DO UPDATE SET count = polled_stats.count + EXCLUDED.count
"""
TABLE = """
CREATE TABLE polled_stats (service_id uuid, template_id uuid, notification_type text,
    notification_status text, count bigint NOT NULL,
    PRIMARY KEY (service_id, template_id, notification_type, notification_status))
"""
_DIMENSIONS = ("service_id", "template_id", "notification_type", "notification_status")


def poll(dsn: str, slot: str, end: Lsn) -> int:
    """Until everything up to `end` is counted; returns how many changes that were."""
    changes = 0
    with psycopg.connect(dsn, autocommit=True) as connection:
        while (done := _round(connection, slot, end)) is not None:
            changes += done
    return changes


def _round(connection: psycopg.Connection[Any], slot: str, end: Lsn) -> int | None:
    """How many changes were counted; None: there are no more."""
    rows = connection.execute(
        _PEEK, {"slot": slot, "until": str(end), "most": _MOST_CHANGES}
    ).fetchall()
    if not rows:
        return None
    counts: Counter[tuple[Any, ...]] = Counter()
    changes = 0
    last = rows[-1][0]
    for _, text in rows:
        transaction = json.loads(text)
        last = transaction["nextlsn"]
        for change in transaction["change"]:
            changes += 1
            _count(change, counts)
    with connection.transaction():
        for key, count in counts.items():
            if count:
                connection.execute(_UPSERT, [*key, count])
    connection.execute("SELECT pg_replication_slot_advance(%s, %s::pg_lsn)", [slot, last])
    return changes


def _count(change: dict[str, Any], counts: Counter[tuple[Any, ...]]) -> None:
    new = dict(zip(change.get("columnnames", ()), change.get("columnvalues", ()), strict=True))
    old_keys = change.get("oldkeys", {})
    old = dict(zip(old_keys.get("keynames", ()), old_keys.get("keyvalues", ()), strict=True))
    if change["kind"] in ("insert", "update"):
        counts[tuple(new[name] for name in _DIMENSIONS)] += 1
    if change["kind"] == "update":
        # What is not in the old key has not changed.
        counts[tuple(old.get(name, new[name]) for name in _DIMENSIONS)] -= 1
    if change["kind"] == "delete":
        counts[tuple(old[name] for name in _DIMENSIONS)] -= 1
