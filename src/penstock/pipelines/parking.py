"""What a target does not show: keys it refused, and counts that would be below zero.

Rows of `penstock.parked`, in the transaction that moves the position. A refused key waits and is
tried again, together with whatever came for it meanwhile; a negative sum is added to the next delta
of its key, so that where batches begin and end makes no difference.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

import psycopg

from penstock.pipelines.keys import as_held, printed
from penstock.pipelines.merging import TargetTable
from penstock.pipelines.spelling import is_unwritable, meant, spelled
from penstock.pipelines.sums import Amounts, Key, added

# The second try comes after so long, each further one after twice as long, up to a minute.
_FIRST_RETRY_S = 1.0
_LAST_RETRY_S = 60.0
_MOST_DOUBLED = 6
# Of a part of a key that the database cannot hold: an object with its bytes, and not a text.
_SPELLED = "utf8"


@dataclass(frozen=True, slots=True)
class Parked:
    """One key that waits."""

    key: Key
    amounts: Amounts
    # How often it was refused, and why the last time.
    attempts: int
    reason: str
    # Else it was not come to, and is due at once.
    tried: bool = True

    @property
    def wait_s(self) -> float:
        return pause_s(self.attempts) if self.tried else 0.0


@dataclass(frozen=True, slots=True)
class Merged:
    """What is to be tried now; what goes on waiting is not in it."""

    now: dict[Key, Amounts]
    # Of those that were refused before: how often, and why.
    before: Mapping[Key, tuple[int, str]]


# Of the key as text, which is the same whoever wrote it.
_DIGEST = "sha256(convert_to(key::text, 'UTF8'))"
# Without locks: nobody else writes these rows while the aggregate's position is locked. Those below
# zero are all looked at, also under another text of the key: they come right with their next delta
# only.
_TAKEN = f"""
WITH due AS (
    SELECT digest FROM penstock.parked
     WHERE aggregate = %(aggregate)s AND target = %(target)s
       AND NOT is_negative AND retry_at <= now()
     ORDER BY retry_at LIMIT %(most)s
), wanted AS (
    SELECT {_DIGEST} AS digest FROM (SELECT unnest(%(keys)s::text[])::jsonb AS key) AS given
)
SELECT key, deltas, attempts, reason, is_negative, digest, digest IN (SELECT digest FROM due) AS due
  FROM penstock.parked
 WHERE aggregate = %(aggregate)s AND target = %(target)s
   AND (is_negative
        OR digest IN (SELECT digest FROM due) OR digest IN (SELECT digest FROM wanted))
 -- What goes on waiting comes last, and takes with it what came for its key.
 ORDER BY NOT is_negative AND digest NOT IN (SELECT digest FROM due), is_negative, retry_at
"""  # noqa: S608 - our own words
# What waits under that text already is added to: a key that was parked under another text of it,
# with other settings perhaps, is parked as it is printed now.
_PARK = f"""
INSERT INTO penstock.parked AS p
       (aggregate, target, key, digest, deltas, reason, is_negative, attempts, retry_at)
SELECT %(aggregate)s, %(target)s, key, {_DIGEST}, deltas, reason, %(negative)s, attempts,
       now() + make_interval(secs => pause_s)
  FROM (SELECT key::jsonb, deltas::jsonb, reason, attempts, pause_s
          FROM unnest(%(keys)s::text[], %(deltas)s::text[], %(reasons)s::text[],
                      %(attempts)s::int[], %(pauses)s::float8[])
               AS given (key, deltas, reason, attempts, pause_s)) AS refused
ON CONFLICT (aggregate, target, digest) DO UPDATE
   SET deltas = (SELECT jsonb_object_agg(
                            name, (coalesce(p.deltas->>name, '0')::numeric + more::numeric)::text)
                   FROM jsonb_each_text(excluded.deltas) AS added (name, more)),
       is_negative = p.is_negative AND excluded.is_negative,
       reason = CASE WHEN p.is_negative THEN excluded.reason ELSE p.reason END
"""  # noqa: S608 - our own words


def take_back(
    connection: psycopg.Connection[Any],
    aggregate: str,
    target: TargetTable,
    deltas: dict[Key, Amounts],
    most_due: int,
) -> Merged:
    """Add what waits to the deltas, so many of those that are due; else deltas of its key go on
    waiting with it.
    """
    if not is_any_waiting(connection, aggregate, target):
        return Merged(deltas, {})
    now = as_held(connection, target, deltas)
    named = {"aggregate": aggregate, "target": str(target.table)}
    keys_json = _keys_json(connection, target, now)
    rows = connection.execute(_TAKEN, {**named, "most": most_due, "keys": keys_json}).fetchall()
    keys = printed(connection, target, [_key(target, row[0]) for row in rows])
    before: dict[Key, tuple[int, str]] = {}
    gone: list[bytes] = []
    changed: dict[bytes, str] = {}
    for key, row in zip(keys, rows, strict=True):
        _, deltas_json, attempts, reason, is_negative, digest, due = row
        if is_negative and key not in now:
            continue  # it would be below zero again
        amounts = _amounts(target, deltas_json)
        total = added(amounts, now.get(key, (0,) * len(amounts)))
        if is_negative or due:
            now[key] = total
            gone.append(digest)
            if due:
                before[key] = max((attempts, reason), before.get(key, (0, "")))
        elif key in now:
            del now[key]
            if any(total):
                changed[digest] = _amounts_json(target, total)
            else:
                gone.append(digest)
    # By the primary key, and all in one statement: there may be thousands.
    if gone:
        connection.execute(
            "DELETE FROM penstock.parked WHERE aggregate = %(aggregate)s AND target = %(target)s"
            " AND digest = ANY (%(digests)s::bytea[])",
            {**named, "digests": gone},
        )
    if changed:
        connection.execute(
            "UPDATE penstock.parked AS p SET deltas = u.deltas::jsonb"
            "  FROM unnest(%(digests)s::bytea[], %(deltas)s::text[]) AS u (digest, deltas)"
            " WHERE aggregate = %(aggregate)s AND target = %(target)s AND p.digest = u.digest",
            {**named, "digests": list(changed), "deltas": list(changed.values())},
        )
    return Merged(now, before)


def is_any_waiting(
    connection: psycopg.Connection[Any], aggregate: str, target: TargetTable
) -> bool:
    found = connection.execute(
        "SELECT FROM penstock.parked WHERE aggregate = %s AND target = %s LIMIT 1",
        [aggregate, str(target.table)],
    )
    return found.fetchone() is not None


def next_try_s(connection: psycopg.Connection[Any], aggregate: str) -> float | None:
    """When the first of the refused keys is due, seconds from now; None: there is none."""
    row = connection.execute(
        "SELECT extract(epoch FROM min(retry_at) - now())::float8"
        "  FROM penstock.parked WHERE aggregate = %s AND NOT is_negative",
        [aggregate],
    ).fetchone()
    return row[0] if row else None


def waiting(
    connection: psycopg.Connection[Any], aggregate: str, target: TargetTable
) -> dict[Key, Amounts]:
    """Everything that a target does not show."""
    rows = connection.execute(
        "SELECT key, deltas FROM penstock.parked WHERE aggregate = %s AND target = %s",
        [aggregate, str(target.table)],
    ).fetchall()
    found: dict[Key, Amounts] = {}
    for key_json, deltas in rows:
        key, amounts = _key(target, key_json), _amounts(target, deltas)
        # A key may be there under two texts, of which one was written by another database.
        found[key] = added(found[key], amounts) if key in found else amounts
    return found


def park(
    connection: psycopg.Connection[Any],
    aggregate: str,
    target: TargetTable,
    parked: list[Parked],
    *,
    negative: bool,
) -> None:
    if not parked:
        return
    # A statement that inserts or changes does so with each row once.
    once: dict[Key, Parked] = {}
    for each in parked:
        other = once.get(each.key)
        total = added(each.amounts, other.amounts) if other else each.amounts
        once[each.key] = replace(each, amounts=total)
    connection.execute(
        _PARK,
        {
            "aggregate": aggregate,
            "target": str(target.table),
            "negative": negative,
            "keys": _keys_json(connection, target, once),
            "deltas": [_amounts_json(target, each.amounts) for each in once.values()],
            "reasons": [each.reason for each in once.values()],
            "attempts": [each.attempts for each in once.values()],
            "pauses": [each.wait_s for each in once.values()],
        },
    )


def pause_s(attempts: int) -> float:
    """Until a key is tried again that was refused so often.

    >>> [pause_s(attempts) for attempts in (1, 2, 6, 7, 5000)]
    [1.0, 2.0, 32.0, 60.0, 60.0]
    """
    # A key that is refused for days has been tried thousands of times: 2.0 ** 1024 is no float.
    doubled = 2.0 ** min(attempts - 1, _MOST_DOUBLED)
    return min(_FIRST_RETRY_S * doubled, _LAST_RETRY_S)


def _key(target: TargetTable, key: Mapping[str, Any]) -> Key:
    parts = (key.get(column.name) for column in target.dimensions)
    return tuple(meant(part[_SPELLED]) if isinstance(part, dict) else part for part in parts)


def _amounts(target: TargetTable, deltas: Mapping[str, Any]) -> Amounts:
    return tuple(Decimal(str(deltas.get(column.name, 0))) for column in target.measures)


def _keys_json(
    connection: psycopg.Connection[Any], target: TargetTable, keys: Iterable[Key]
) -> list[str]:
    encoding = connection.info.parameter_status("server_encoding")

    def written(part: str | None) -> object:
        if part is None or not is_unwritable(part, encoding):
            return part
        return {_SPELLED: spelled(part)}

    names = [column.name for column in target.dimensions]
    # As it is: a server that does not know what its text is takes no escapes for it.
    return [
        json.dumps(dict(zip(names, map(written, key), strict=True)), ensure_ascii=False)
        for key in keys
    ]


def _amounts_json(target: TargetTable, amounts: Amounts) -> str:
    # As text: JSON's numbers are floats to many.
    named = zip((c.name for c in target.measures), map(str, amounts), strict=True)
    return json.dumps(dict(named))
