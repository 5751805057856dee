"""Where a target is not what it should be; what is parked counts as there."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import psycopg
import pyarrow as pa

from penstock.pipelines import staging
from penstock.pipelines.comparing import compare_sql
from penstock.pipelines.keys import parted
from penstock.pipelines.merging import TargetTable, arrays_sql
from penstock.pipelines.parking import waiting
from penstock.pipelines.staging import Part, Staged
from penstock.pipelines.sums import Amounts, Key, added, arrays, rolled_up, together


@dataclass(frozen=True, slots=True)
class Difference:
    """One row of a target that is not what it should be; keys and amounts as text."""

    target: str
    key: dict[str, str | None]
    measure: str
    expected: Decimal
    found: Decimal

    def __str__(self) -> str:
        key = ", ".join(
            f"{name} {'NULL' if value is None else value}" for name, value in self.key.items()
        )
        return f"{self.target}: {self.measure} of {key} is {self.found}, should be {self.expected}"


def differences(
    target: psycopg.Connection[Any], aggregate: str, table: TargetTable, truth: pa.Table
) -> list[Difference]:
    """From what should be. In a transaction, to be rolled back: what is large is staged in it, and
    nobody else sees that.
    """
    names = [column.name for column in table.dimensions]
    measures = [column.name for column in table.measures]
    width = len(names) + len(measures)
    parked, waits = parted(target, table, waiting(target, aggregate, table))
    sums = together([truth], names, measures)
    if len(sums) <= staging.MOST_IN_DRIVER:
        can, should_wait = parted(target, table, rolled_up(sums, names, measures))
        should, given = arrays_sql(table), arrays(can, width)
    else:
        staged, should_wait = _staged(target, aggregate, table, sums)
        should, given = staging.source_sql(staged, table), [staged.plain(table)]
    rows = target.execute(
        compare_sql(table, should).encode(), [*given, *arrays(parked, width)]
    ).fetchall()
    zero = (0,) * len(measures)
    # What the table's columns cannot hold has to be parked, as it is written.
    for key in should_wait | waits:
        pairs = zip(should_wait.get(key, zero), waits.get(key, zero), strict=True)
        rows.append((*key, *(amount for pair in pairs for amount in pair)))
    found = []
    for row in rows:
        held = dict(zip(names, row, strict=False))
        amounts = [Decimal(amount) for amount in row[len(names) :]]
        for number, measure in enumerate(measures):
            expected, shown = amounts[2 * number : 2 * number + 2]
            if expected != shown:
                found.append(Difference(str(table.table), held, measure, expected, shown))
    return found


def _staged(
    target: psycopg.Connection[Any], aggregate: str, table: TargetTable, sums: pa.Table
) -> tuple[Staged, dict[Key, Amounts]]:
    """Those of keys that the target's columns can hold; and the others, which are few."""
    names = tuple(column.name for column in table.dimensions)
    measures = tuple(column.name for column in table.measures)
    parts: list[Part] = []
    others: dict[Key, Amounts] = {}
    for start in range(0, len(sums), staging.MOST_IN_DRIVER):
        some = rolled_up(sums.slice(start, staging.MOST_IN_DRIVER), names, measures)
        can, cannot = parted(target, table, some)
        for key, amounts in cannot.items():
            others[key] = added(others[key], amounts) if key in others else amounts
        if can:
            columns = arrays(can, len(names) + len(measures))
            kinds = [pa.string() for _ in names] + [None for _ in measures]
            arrow = [pa.array(each, kind) for each, kind in zip(columns, kinds, strict=True)]
            portion = pa.table(arrow, [*names, *measures])
            parts += staging.put_as_it_is(target, aggregate, portion, len(names))
    return Staged(tuple(parts), names, measures), others
