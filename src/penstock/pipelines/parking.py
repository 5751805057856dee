"""What a target does not show: keys it refused, and counts that would be below zero.

Rows of `penstock.parked`, in the transaction that moves the position. A refused key waits and is
tried again, together with whatever came for it meanwhile; a negative sum is added to the next delta
of its key, so that where batches begin and end makes no difference.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import psycopg

from penstock.pipelines.keys import as_held, printed
from penstock.pipelines.merging import TargetTable
from penstock.pipelines.sums import Amounts, Key, added

# The second try comes after so long, each further one after twice as long, up to a minute.
_FIRST_RETRY_S = 1.0
_LAST_RETRY_S = 60.0
_MOST_DOUBLED = 6


@dataclass(frozen=True, slots=True)
class Parked:
    """One key that waits."""

    key: Key
    amounts: Amounts
    attempts: int
    reason: str


@dataclass(frozen=True, slots=True)
class Merged:
    """What is to be tried now, and what goes on waiting."""

    now: dict[Key, Amounts]
    # How often each key has been refused.
    attempts: Mapping[Key, int]


def take_back(
    connection: psycopg.Connection[Any],
    aggregate: str,
    target: TargetTable,
    deltas: dict[Key, Amounts],
) -> Merged:
    """Add what waits to the deltas, if it is due; else deltas of its key go on waiting with it."""
    rows = connection.execute(
        "SELECT key, deltas, attempts, is_negative, retry_at <= now()"
        "  FROM penstock.parked WHERE aggregate = %s AND target = %s"
        # What goes on waiting comes last, and takes with it what came for its key.
        " ORDER BY NOT is_negative AND retry_at > now(), is_negative FOR UPDATE",
        [aggregate, str(target.table)],
    ).fetchall()
    if not rows:
        return Merged(deltas, {})
    now = as_held(connection, target, deltas)
    keys = printed(connection, target, [_key(target, row[0]) for row in rows])
    attempts: dict[Key, int] = {}
    gone = []
    for key, (key_json, deltas_json, tried, is_negative, due) in zip(keys, rows, strict=True):
        amounts = _amounts(target, deltas_json)
        if is_negative and key not in now:
            continue  # it would be below zero again
        total = added(amounts, now.get(key, (0,) * len(amounts)))
        if is_negative or due:
            now[key] = total
            attempts[key] = max(tried, attempts.get(key, 0))
            gone.append(key_json)
        elif key in now:
            del now[key]
            if not any(total):
                gone.append(key_json)
                continue
            connection.execute(
                "UPDATE penstock.parked SET deltas = %s"
                " WHERE aggregate = %s AND target = %s AND key = %s::jsonb",
                [_amounts_json(target, total), aggregate, str(target.table), json.dumps(key_json)],
            )
    if gone:
        connection.cursor().executemany(
            "DELETE FROM penstock.parked WHERE aggregate = %s AND target = %s AND key = %s::jsonb",
            [[aggregate, str(target.table), json.dumps(key)] for key in gone],
        )
    return Merged(now, attempts)


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
    return {_key(target, key): _amounts(target, deltas) for key, deltas in rows}


def park(
    connection: psycopg.Connection[Any],
    aggregate: str,
    target: TargetTable,
    parked: list[Parked],
    *,
    negative: bool,
) -> None:
    for each in parked:
        wait_s = pause_s(each.attempts)
        connection.execute(
            "INSERT INTO penstock.parked"
            " (aggregate, target, key, digest, deltas, reason, is_negative, attempts, retry_at)"
            " SELECT %s, %s, key, sha256(convert_to(key::text, 'UTF8')), %s, %s, %s, %s,"
            "        now() + make_interval(secs => %s)"
            "   FROM (SELECT %s::jsonb AS key) AS refused",
            [
                *(aggregate, str(target.table), _amounts_json(target, each.amounts)),
                *(each.reason, negative, each.attempts, wait_s),
                _key_json(target, each.key),
            ],
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
    return tuple(key.get(column.name) for column in target.dimensions)


def _amounts(target: TargetTable, deltas: Mapping[str, Any]) -> Amounts:
    return tuple(Decimal(str(deltas.get(column.name, 0))) for column in target.measures)


def _key_json(target: TargetTable, key: Key) -> str:
    return json.dumps(dict(zip((c.name for c in target.dimensions), key, strict=True)))


def _amounts_json(target: TargetTable, amounts: Amounts) -> str:
    # As text: JSON's numbers are floats to many.
    named = zip((c.name for c in target.measures), map(str, amounts), strict=True)
    return json.dumps(dict(named))
