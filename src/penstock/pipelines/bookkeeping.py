"""What Penstock notes in a target's database, in the schema `penstock`: how far each aggregate has
come, and what its tables do not show yet. SQL, and the rows of it.

The position lives beside the counts, because an upsert of increments is not idempotent by itself:
the two change in one transaction or not at all.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import psycopg
from psycopg.rows import class_row

from penstock.decode.stops import Stop
from penstock.errors import TargetClash
from penstock.lsn import Lsn
from penstock.names import TableName
from penstock.pipelines.source_marks import Marks, marks_from_json, marks_to_json
from penstock.printed_sql import SqlKind, printed

SCHEMA = "penstock"
State = Literal["seeding", "seeded", "live"]

# By name; each is made if it is missing.
TABLES = {
    "progress": """
CREATE TABLE penstock.progress (
    aggregate text PRIMARY KEY,
    -- Of everything in the declaration that decides about the result.
    fingerprint text NOT NULL,
    -- Positions of another log are never compared with this one.
    log_id uuid NOT NULL,
    -- Every commit that ends at or below it is in the targets, and no other.
    applied_lsn pg_lsn NOT NULL,
    state text NOT NULL CHECK (state IN ('seeding', 'seeded', 'live')),
    -- A job that does not know the newest one has been replaced.
    epoch bigint NOT NULL DEFAULT 0,
    -- Since it was seeded: changes that counted, and how often a count was kept from going below
    -- zero.
    changes bigint NOT NULL DEFAULT 0,
    -- By reason: rows that were left out when it was seeded or repaired, and changes since. Below
    -- zero: so many are to come that a repair has counted already.
    skipped jsonb NOT NULL DEFAULT '{}',
    clamped bigint NOT NULL DEFAULT 0,
    seeded_at timestamptz,
    applied_at timestamptz NOT NULL DEFAULT now()
)""",
    "parked": """
CREATE TABLE penstock.parked (
    aggregate text NOT NULL REFERENCES penstock.progress ON DELETE CASCADE,
    target text NOT NULL,
    -- By dimension: its text, or an object with its bytes, if no text here can be so.
    key jsonb NOT NULL,
    -- Of the key, which may be too long for an index: the target may refuse it for just that.
    digest bytea NOT NULL,
    -- What the target does not show: it refused the key, or a count would be below zero.
    deltas jsonb NOT NULL,
    reason text NOT NULL,
    is_negative boolean NOT NULL,
    attempts integer NOT NULL DEFAULT 1,
    parked_at timestamptz NOT NULL DEFAULT now(),
    retry_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (aggregate, target, digest)
)""",
    "targets": """
CREATE TABLE penstock.targets (
    target text PRIMARY KEY,
    -- The one that keeps it: two would add their changes to each other's counts.
    aggregate text NOT NULL REFERENCES penstock.progress ON DELETE CASCADE
)""",
    "stops": """
CREATE TABLE penstock.stops (
    -- It applies nothing until it is seeded again.
    aggregate text PRIMARY KEY REFERENCES penstock.progress ON DELETE CASCADE,
    -- Why: a code, and facts such as the table and the column.
    stop jsonb NOT NULL,
    stopped_at timestamptz NOT NULL DEFAULT now()
)""",
    "sources": """
CREATE TABLE penstock.sources (
    aggregate text PRIMARY KEY REFERENCES penstock.progress ON DELETE CASCADE,
    -- What tells the tables and columns that were counted from others of the same names.
    marks jsonb NOT NULL,
    noted_at timestamptz NOT NULL DEFAULT now()
)""",
    # What it held before a crash nobody needs: the sums are computed again.
    "staged": """
CREATE UNLOGGED TABLE penstock.staged (
    aggregate text NOT NULL,
    -- What one task wrote, in one transaction; apart from what it had to spell.
    part uuid NOT NULL,
    -- Of all the aggregate's dimensions and measures, in the order of their declaration.
    keys text[] NOT NULL,
    amounts numeric[] NOT NULL
)""",
}


@dataclass(frozen=True, slots=True)
class Progress:
    """One aggregate's row."""

    aggregate: str
    fingerprint: str
    log_id: str
    applied: str
    state: State
    epoch: int
    changes: int
    skipped: dict[str, int]
    clamped: int
    # As text; None: it was not.
    seeded_at: str | None = None

    @property
    def applied_lsn(self) -> Lsn:
        return Lsn.parse(self.applied)


@dataclass(frozen=True, slots=True)
class ParkedKeys:
    """Keys of one target that wait for the same reason, which holds no value of a row."""

    aggregate: str
    target: str
    reason: str
    # Its count would be below zero; else the target refused it.
    is_negative: bool
    keys: int


_PROGRESS = """
SELECT aggregate, fingerprint, log_id::text, applied_lsn::text AS applied, state, epoch, changes,
       skipped, clamped, seeded_at::text
  FROM penstock.progress WHERE aggregate = %s
"""


def read_progress(
    connection: psycopg.Connection[Any], aggregate: str, *, lock: bool = False
) -> Progress | None:
    """Where an aggregate is; with `lock`, nobody else moves it until the transaction ends."""
    sql = _PROGRESS + (" FOR UPDATE" if lock else "")
    with connection.cursor(row_factory=class_row(Progress)) as cursor:
        return cursor.execute(sql.encode(), [aggregate]).fetchone()


@dataclass(frozen=True, slots=True)
class Stopped:
    """An aggregate that waits for a reset."""

    stop: Stop
    # As text.
    since: str


def read_stop(connection: psycopg.Connection[Any], aggregate: str) -> Stopped | None:
    row = connection.execute(
        "SELECT stop::text, stopped_at::text FROM penstock.stops WHERE aggregate = %s", [aggregate]
    ).fetchone()
    return None if row is None else Stopped(Stop.from_json(row[0]), row[1])


def write_stop(connection: psycopg.Connection[Any], aggregate: str, stop: Stop) -> None:
    """The first reason stays: what came later may follow from it."""
    connection.execute(
        "INSERT INTO penstock.stops (aggregate, stop) VALUES (%s, %s) ON CONFLICT DO NOTHING",
        [aggregate, stop.to_json()],
    )


def read_source_marks(connection: psycopg.Connection[Any], aggregate: str) -> Marks | None:
    row = connection.execute(
        "SELECT marks::text FROM penstock.sources WHERE aggregate = %s", [aggregate]
    ).fetchone()
    return None if row is None else marks_from_json(row[0])


def write_source_marks(
    connection: psycopg.Connection[Any], aggregate: str, marks: Marks | None
) -> None:
    """None: they are noted when somebody looks."""
    if marks is None:
        connection.execute("DELETE FROM penstock.sources WHERE aggregate = %s", [aggregate])
        return
    connection.execute(
        "INSERT INTO penstock.sources (aggregate, marks) VALUES (%s, %s) ON CONFLICT (aggregate)"
        " DO UPDATE SET marks = excluded.marks, noted_at = now()",
        [aggregate, marks_to_json(marks)],
    )


def clear_stop(connection: psycopg.Connection[Any], aggregate: str) -> None:
    """For one that is seeded, in the same transaction."""
    connection.execute("DELETE FROM penstock.stops WHERE aggregate = %s", [aggregate])


def keep(connection: psycopg.Connection[Any], aggregate: str, tables: Sequence[TableName]) -> None:
    """An aggregate keeps these tables from now on, and no others. Raises `TargetClash`."""
    connection.execute(
        "DELETE FROM penstock.targets WHERE aggregate = %s AND target <> ALL (%s)",
        [aggregate, list(map(str, tables))],
    )
    claim(connection, aggregate, tables)


def claim(connection: psycopg.Connection[Any], aggregate: str, tables: Sequence[TableName]) -> None:
    """As `keep`, and it keeps those too that it has: until it is seeded, they are written."""
    connection.execute(
        "INSERT INTO penstock.targets SELECT unnest(%s::text[]), %s ON CONFLICT DO NOTHING",
        [list(map(str, tables)), aggregate],
    )
    keepers = read_keepers(connection, tables)
    for table in tables:
        if (keeper := keepers[table]) != aggregate:
            raise kept_by_another(table, aggregate, keeper)


def read_keepers(
    connection: psycopg.Connection[Any], tables: Iterable[TableName]
) -> dict[TableName, str]:
    """Which aggregate keeps a table, of those that one does."""
    names = {str(table): table for table in tables}
    rows = connection.execute(
        "SELECT target, aggregate FROM penstock.targets WHERE target = ANY (%s)", [list(names)]
    )
    return {names[target]: aggregate for target, aggregate in rows}


def read_kept(
    connection: psycopg.Connection[Any], aggregates: Iterable[str]
) -> dict[str, tuple[str, ...]]:
    """The tables that aggregates keep, of those that keep any."""
    rows = connection.execute(
        "SELECT aggregate, array_agg(target ORDER BY target) FROM penstock.targets"
        " WHERE aggregate = ANY (%s) GROUP BY aggregate",
        [list(aggregates)],
    )
    return {aggregate: tuple(targets) for aggregate, targets in rows}


def kept_by_another(table: TableName, aggregate: str, keeper: str) -> TargetClash:
    """Of another file, perhaps, with a log of its own."""
    literal = str(table).replace("'", "''")
    release = printed(
        SqlKind.RELEASE_TARGET,
        f"DELETE FROM penstock.targets WHERE target = '{literal}'",  # noqa: S608 - not run
    )
    return TargetClash(
        f"aggregate {aggregate} writes to {table}, which aggregate {keeper} keeps",
        remedy=release.after(
            f"Name another table in its targets. Or, if {keeper} no longer writes there, run in "
            "the target's database"
        ),
        table=table,
    )


def skipped_json(skipped: Mapping[str, int]) -> str:
    """For the progress row; without reasons that hold for none."""
    return json.dumps({reason: count for reason, count in skipped.items() if count})


_PARKED = """
SELECT aggregate, target, reason, is_negative, count(*) AS keys
  FROM penstock.parked WHERE aggregate = ANY (%s)
 GROUP BY aggregate, target, reason, is_negative
 ORDER BY keys DESC, target, reason
"""


def read_parked(
    connection: psycopg.Connection[Any], aggregates: Iterable[str]
) -> tuple[ParkedKeys, ...]:
    """What waits, the most frequent reasons first."""
    with connection.cursor(row_factory=class_row(ParkedKeys)) as cursor:
        return tuple(cursor.execute(_PARKED, [list(aggregates)]).fetchall())
