"""Rows as pairs of numbers: for what Spark sees of them, and for what is only handed on. Pure.

Most rows have both in common with others, and Spark need not see more of them than that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np
import pyarrow as pa

from penstock.decode.columns import Mask
from penstock.decode.deltas import ROWS, Input, added_up, sum_name, sum_type
from penstock.decode.types import Kind
from penstock.expressions import columns_of
from penstock.pipelines.binding import Bound
from penstock.pipelines.numbering import (
    Numbered,
    Numbers,
    all_one,
    combinations,
    combined,
    dense,
)
from penstock.pipelines.rows_read import Rows

# Which combination of what Spark sees, and of what is handed on. No column of the source has such a
# name, for theirs have a blank.
SEEN, HANDED_ON = "_seen", "_handed_on"
# Spark takes -0 for 0, and Arrow does not.
_FLOATS = (Kind.REAL, Kind.DOUBLE)


@dataclass(frozen=True, slots=True)
class NumberedRows:
    """Some rows, added up or not."""

    # By `SEEN` and `HANDED_ON`: how many rows, and their sums.
    rows: pa.Table
    # What the numbers mean, by the keys of inputs. Several may mean the same.
    seen: pa.Table
    handed_on: pa.Table

    @property
    def nbytes(self) -> int:
        return sum(table.nbytes for table in (self.rows, self.seen, self.handed_on))


@dataclass(frozen=True, slots=True)
class Division:
    """Of what an aggregate reads of a row."""

    seen: tuple[Input, ...]
    # By dimension: those that are nothing but a column.
    handed_on: Mapping[str, Input]
    sums: tuple[Input, ...]


def division(bound: Bound) -> Division:
    """It takes a look at each expression: once for all rows."""
    config, keys = bound.config, {each.name: each for each in bound.summed.keys}
    plain = {name: keys[each.plain] for name, each in config.dimensions.items() if each.plain}
    handed_on = {name: each for name, each in plain.items() if each.kind.kind not in _FLOATS}
    names = set(columns_of(config.filter) if config.filter else ())
    for name, dimension in config.dimensions.items():
        names |= set() if name in handed_on else set(dimension.columns)
    seen = tuple(each for each in bound.summed.keys if each.name in names)
    return Division(seen, handed_on, bound.summed.sums)


def numbered_rows(parts: Division, rows: Rows, good: Mask) -> NumberedRows:
    """Those that are good, each by itself. Nothing that only the others have is seen by Spark: it
    might fail at what it computes of it.
    """
    seen = _of_good(_numbers(rows, parts.seen), good)
    handed = _of_good(_numbers(rows, list(dict.fromkeys(parts.handed_on.values()))), good)
    sums = {
        sum_name(each): rows.by_row(each).filter(pa.array(good)).cast(sum_type(each.kind))
        for each in parts.sums
    }
    ones = np.ones(len(seen.numbers), np.int64)
    return NumberedRows(
        _pairs(seen.numbers, handed.numbers, ones, sums), seen.meanings, handed.meanings
    )


def _of_good(found: Numbered, good: Mask) -> Numbered:
    if good.all():
        return found
    numbers, kept = dense(found.numbers[good], len(found.meanings))
    return Numbered(numbers, found.meanings.take(pa.array(kept)))


def alike(count: int) -> NumberedRows:
    """Rows of which no column is read."""
    numbers, nothing = all_one(1)
    return NumberedRows(_pairs(numbers, numbers, np.array([count]), {}), nothing, nothing)


def _pairs(seen: Numbers, handed: Numbers, rows: Numbers, sums: Mapping[str, pa.Array]) -> pa.Table:
    return pa.table({SEEN: seen, HANDED_ON: handed, ROWS: rows, **sums})


def summed_up(parts: Division, numbered: NumberedRows) -> NumberedRows:
    """Of rows that nobody has added up: those with equal numbers as one."""
    rows = numbered.rows
    if parts.sums:
        rows = added_up(rows, [SEEN, HANDED_ON], parts.sums)
    else:
        numbers, meanings = combined(
            *(
                Numbered(np.asarray(rows[name]), pa.table({name: np.arange(len(table))}))
                for name, table in ((SEEN, numbered.seen), (HANDED_ON, numbered.handed_on))
            )
        )
        rows = meanings.append_column(ROWS, pa.array(np.bincount(numbers)))
    return NumberedRows(rows, numbered.seen, numbered.handed_on)


def together(portions: Sequence[NumberedRows]) -> NumberedRows:
    """The numbers of each come behind those of the ones before."""
    tables = []
    seen = handed = 0
    for each in portions:
        rows = each.rows
        tables.append(
            renumbered(rows, np.asarray(rows[SEEN]) + seen, np.asarray(rows[HANDED_ON]) + handed)
        )
        seen += len(each.seen)
        handed += len(each.handed_on)
    return NumberedRows(
        pa.concat_tables(tables),
        pa.concat_tables(each.seen for each in portions),
        pa.concat_tables(each.handed_on for each in portions),
    )


def renumbered(rows: pa.Table, seen: Numbers, handed: Numbers) -> pa.Table:
    return rows.set_column(0, SEEN, pa.array(seen)).set_column(1, HANDED_ON, pa.array(handed))


def _numbers(rows: Rows, inputs: Sequence[Input]) -> Numbered:
    """The columns are in that order, whatever is shared: several tables become one."""
    shared = {each.key: rows.shared[each] for each in inputs if each in rows.shared}
    own = {each.key: rows.own[each] for each in inputs if each in rows.own}
    found = [combinations(pa.table(own))] if own else []
    if shared:
        found.append(Numbered(rows.group, pa.table(shared)))
    if not found:
        return all_one(rows.count)
    numbers, meanings = reduce(combined, found)
    return Numbered(numbers, meanings.select([each.key for each in inputs]))
