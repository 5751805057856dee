"""Which columns are worth counting by, and which look like amounts to add up. Pure.

Guesses, from types, keys, names and the planner's statistics: a person looks them over. What is
certain is that the columns can be dimensions and sums at all.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from penstock.expressions import BadExpression, plain_column, quoted
from penstock.init.facts import Surveyed
from penstock.pipelines.inputs_checked import INTEGERS, can_group, can_sum
from penstock.postgres.tables import Column
from penstock.words import counted

_MAX_DIMENSIONS = 4
_MAX_SUMS = 2
# Different values of a column: of what refers to something, and of anything else.
_MAX_REFERRED = 1_000
_MAX_VALUES = 100
# Rows that the target may come to have.
_MAX_COMBINATIONS = 100_000
# Longer values are texts to read, not words to count by.
_MAX_WIDTH_BYTES = 64
_MAX_NULLS = 0.95
# Where nothing is known about the values.
_ASSUMED_VALUES = 10.0
_TEXTUAL = frozenset("text varchar bpchar char name".split())
_KINDS = frozenset("status state type kind category level priority channel currency".split())
_AMOUNTS = frozenset(
    "amount amt balance price cost total subtotal sum qty quantity fee fees tax revenue paid "
    "credit debit delta bytes size duration units points net gross discount count".split()
)
# Found inside of longer words too: pgbench calls a balance abalance.
_INSIDE = ("amount", "balance", "price", "quantity", "revenue", "bytes")
_NO_AMOUNTS = frozenset(
    "rate ratio percent pct lat latitude lon lng longitude score rating version year".split()
)


@dataclass(frozen=True, slots=True)
class Dimension:
    column: str
    # For a person: what is known about its values.
    why: str
    values: float
    # Lower is better.
    rank: int = 0


def dimensions(surveyed: Surveyed) -> tuple[Dimension, ...]:
    """The few best, in the table's order; together they have not too many combinations."""
    found = [each for each in map(_Columns(surveyed).dimension, surveyed.table.columns) if each]
    chosen: list[Dimension] = []
    for each in sorted(found, key=lambda one: (one.rank, one.values)):
        combinations = math.prod(one.values for one in (*chosen, each))
        if len(chosen) < _MAX_DIMENSIONS and combinations <= _MAX_COMBINATIONS:
            chosen.append(each)
    return tuple(each for each in found if each in chosen)


def sums(surveyed: Surveyed) -> tuple[str, ...]:
    """The columns that look like amounts."""
    columns = _Columns(surveyed)
    found = (column.name for column in surveyed.table.columns if columns.is_amount(column))
    return tuple(found)[:_MAX_SUMS]


def spelled(column: str) -> str | None:
    """A column as an expression of Spark SQL; None: it cannot be written as one.

    >>> spelled("status"), spelled("Order Type"), spelled("current_date")
    ('status', '`Order Type`', '`current_date`')
    """
    forms = (column, quoted(column)) if re.fullmatch(r"[a-z_][a-z0-9_]*", column) else ()
    for form in forms or (quoted(column),):
        try:
            if plain_column(form) == column:
                return form
        except BadExpression:
            continue
    return None


@dataclass(frozen=True, slots=True)
class _Columns:
    """Of one table."""

    surveyed: Surveyed

    def dimension(self, column: Column) -> Dimension | None:
        if not self._usable(column) or self.is_amount(column):
            return None
        known = self.surveyed.statistics.get(column.name)
        values = known.distinct if known else None
        if column.base.is_enum:
            return _as(column, "an enum", values, 0)
        if column.base.name == "bool":
            return _as(column, "true or false", 2.0, 2)
        referred = self.surveyed.references.get(column.name)
        if referred is not None and max(referred, values or 0) <= _MAX_REFERRED:
            return _as(column, "refers to a small table", values or float(referred), 1)
        named = _KINDS.intersection(_words(column.name)[-1:])
        if named and (values is None or values <= _MAX_VALUES) and self._is_word(column):
            return _as(column, "by its name", values, 1)
        return self._repeated(column, values)

    def is_amount(self, column: Column) -> bool:
        if not can_sum(column) or column.generated or "`" in column.name or self._is_key(column):
            return False
        words, whole = set(_words(column.name)), column.name.lower()
        if words & _NO_AMOUNTS or "id" in words:
            return False
        limits = column.base.limits
        fraction = limits is not None and limits[1] > 0
        return fraction or bool(words & _AMOUNTS) or any(word in whole for word in _INSIDE)

    def _repeated(self, column: Column, values: float | None) -> Dimension | None:
        """By the statistics alone: few values, each of them many times."""
        if values is None or not self._is_word(column):
            return None
        rows = self.surveyed.rows
        refers = column.base.name == "uuid" or "id" in _words(column.name)
        most = _MAX_REFERRED if refers else _MAX_VALUES
        if 2 <= values <= most and values * 2 <= rows and values <= max(10, rows / 10):
            return _as(column, "", values, 1 if values <= _MAX_VALUES / 4 else 3)
        return None

    def _usable(self, column: Column) -> bool:
        return (
            can_group(column)
            and not column.generated
            and not self._is_unique(column.name)
            and spelled(column.name) is not None
        )

    def _is_word(self, column: Column) -> bool:
        known = self.surveyed.statistics.get(column.name)
        short = known is None or (
            known.width_bytes <= _MAX_WIDTH_BYTES and known.null_fraction <= _MAX_NULLS
        )
        return short and column.base.name in (*INTEGERS, "uuid", *_TEXTUAL)

    def _is_unique(self, name: str) -> bool:
        return any(index.columns == (name,) for index in self.surveyed.table.candidates)

    def _is_key(self, column: Column) -> bool:
        key = self.surveyed.table.primary_key
        return (
            self._is_unique(column.name)
            or (key is not None and column.name in key.columns)
            or column.name in self.surveyed.references
            or column.identity != ""
        )


def _as(column: Column, why: str, values: float | None, rank: int) -> Dimension:
    told = values if column.base.name != "bool" else None
    number = f"about {counted(round(told), 'value')}" if told else ""
    known = ", ".join(filter(None, (why, number)))
    return Dimension(column.name, known, max(values or _ASSUMED_VALUES, 1.0), rank)


def _words(name: str) -> list[str]:
    """Of a column's name.

    >>> _words("totalAmount"), _words("unit_price2")
    (['total', 'amount'], ['unit', 'price'])
    """
    return [word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)]
