"""The SQL that adds deltas to a target table. Pure.

Rows are matched by their dimensions, where NULL is a value like any other. `IS NOT DISTINCT FROM`
cannot use an index, so rows come sorted by which dimensions are NULL, with a statement for each
such pattern: `=` and `IS NULL` can.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.names import TableName, quote


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a target, and the type that a key is cast to before they are compared."""

    name: str
    type: str


@dataclass(frozen=True, slots=True)
class TargetTable:
    """A target table as the database has it."""

    table: TableName
    dimensions: tuple[Column, ...]
    measures: tuple[Column, ...]
    # Those that are never shown below zero.
    floored: frozenset[str]


def named(column: str) -> str:
    """For a statement with parameters, in which % has a meaning."""
    return quote(column).replace("%", "%%")


def table_sql(target: TargetTable) -> str:
    return target.table.sql.replace("%", "%%")


def arrays_sql(target: TargetTable) -> str:
    """Deltas as parameters: an array for each dimension, as text, then one for each measure."""
    keys, sums = target.dimensions, target.measures
    arrays = ", ".join([*("%s::text[]" for _ in keys), *("%s::numeric[]" for _ in sums)])
    given = ", ".join([*(f"k{i}" for i in range(len(keys))), *(f"m{i}" for i in range(len(sums)))])
    return f"unnest({arrays}) AS u ({given})"


def merge_sql(target: TargetTable, pattern: Sequence[bool], deltas: str) -> str:
    """Add up, and return what would have gone below zero: its key, and the sums, as text.

    `pattern` says which dimensions are NULL. `deltas` is a relation with the dimensions as k0, k1…,
    as text, and the measures as m0, m1… Existing rows are locked first, so that nobody changes them
    between the look and the update; what the sum would have been is told by that look.
    """
    table = table_sql(target)
    keys, sums = target.dimensions, target.measures
    typed = ", ".join(f"k{i}::{column.type} AS k{i}" for i, column in enumerate(keys))
    added = ", ".join(f"coalesce(sum(m{i}), 0) AS m{i}" for i in range(len(sums)))
    moved = " OR ".join(f"sum(m{i}) <> 0" for i in range(len(sums)))
    matching = " AND ".join(
        f"t.{named(column.name)} IS NULL" if null else f"t.{named(column.name)} = d.k{i}"
        for i, (column, null) in enumerate(zip(keys, pattern, strict=True))
    )
    held = ", ".join(f"t.{named(column.name)} AS old{i}" for i, column in enumerate(sums))
    raised = [f"coalesce(t.{named(column.name)}, 0) + d.m{i}" for i, column in enumerate(sums)]
    changed = ", ".join(
        f"{named(column.name)} = {_shown(column, target, value)}"
        for column, value in zip(sums, raised, strict=True)
    )
    columns = ", ".join(named(column.name) for column in (*keys, *sums))
    fresh = [_shown(column, target, f"d.m{i}") for i, column in enumerate(sums)]
    new = ", ".join([*(f"d.k{i}" for i in range(len(keys))), *fresh])
    some = " OR ".join(f"{value} <> 0" for value in fresh)
    below = [
        f"coalesce(h.old{i}, 0) + d.m{i}"
        for i, column in enumerate(sums)
        if column.name in target.floored
    ]
    texts = ", ".join(f"d.k{i}::text" for i in range(len(keys)))
    # Names are quoted, types are the server's own words, values are parameters.
    return f"""
WITH d AS MATERIALIZED (
    SELECT row_number() OVER () AS row, *
      FROM (SELECT {typed}, {added} FROM {deltas}
             GROUP BY {_ordinals(len(keys))} HAVING {moved}) AS summed
), h AS MATERIALIZED (
    SELECT d.row, {held} FROM d JOIN {table} AS t ON {matching} FOR UPDATE OF t
), changed AS (
    UPDATE {table} AS t SET {changed} FROM d WHERE {matching}
), added AS (
    INSERT INTO {table} ({columns})
    SELECT {new} FROM d WHERE NOT EXISTS (SELECT FROM h WHERE h.row = d.row) AND ({some})
)
SELECT {texts}{"".join(f", least({value}, 0)" for value in below)}
  FROM d LEFT JOIN h USING (row)
 WHERE {" OR ".join(f"{value} < 0" for value in below) or "false"}
"""  # noqa: S608


def _shown(column: Column, target: TargetTable, value: str) -> str:
    return f"greatest({value}, 0)" if column.name in target.floored else value


def _ordinals(count: int) -> str:
    return ", ".join(str(number) for number in range(1, count + 1)) or "()"
