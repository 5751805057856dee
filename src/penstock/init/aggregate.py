"""The aggregate that is suggested: surveyed tables in, one declaration out, which set-up takes as
it is. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.errors import OldValuesMissing
from penstock.init.columns import Dimension, dimensions, spelled, sums
from penstock.init.facts import Survey, Surveyed
from penstock.init.fitness import setup_error
from penstock.names import MAX_BYTES, TableName, fitted_name
from penstock.pipelines.target_facts import OLDEST_TARGET_VERSION
from penstock.printed_sql import PrintedSql, SqlKind

_SUFFIX = "_counts"


@dataclass(frozen=True, slots=True)
class SuggestedAggregate:
    name: str
    table: TableName
    dimensions: tuple[Dimension, ...]
    # Measure → the column that it adds up; None: it counts rows.
    measures: tuple[tuple[str, str | None], ...]
    target: TableName
    # Of its table; None: the one that it has holds the old values already.
    replica_identity: str | None = None
    # SQL for an index that would do instead of FULL.
    index_instead: PrintedSql | None = None

    @property
    def settings(self) -> dict[str, Any]:
        """As the file holds them."""
        columns = {each.column: spelled(each.column) for each in self.dimensions}
        plain = all(name == expression for name, expression in columns.items())
        declared: dict[str, Any] = {
            "name": self.name,
            "sources": [str(self.table)],
            "dimensions": list(columns) if plain else columns,
            "measures": {
                name: "count" if column is None else f"sum({spelled(column)})"
                for name, column in self.measures
            },
            "targets": [str(self.target)],
        }
        return declared


def suggest_aggregate(tables: Sequence[Surveyed], survey: Survey) -> SuggestedAggregate | None:
    """For the most promising of the tables that are captured."""
    if survey.facts.server.major < OLDEST_TARGET_VERSION:
        return None
    promising = [(each, found) for each in tables if (found := dimensions(each))]
    # Two things to count by are more than one; beyond that, the larger the table, the dearer is
    # a COUNT(*) of it.
    promising.sort(key=lambda one: (min(len(one[1]), 2), one[0].rows), reverse=True)
    for surveyed, found in promising:
        target = _target(surveyed.table.name, survey)
        if target is None:
            continue
        if suggested := _with_identity(surveyed, found, target, survey):
            return suggested
    return None


def _with_identity(
    surveyed: Surveyed, found: tuple[Dimension, ...], target: TableName, survey: Survey
) -> SuggestedAggregate | None:
    """With the least identity under which the WAL holds what must be subtracted."""
    table = surveyed.table
    measures = tuple(_measures([each.column for each in found], sums(surveyed)))
    inputs = {each.column for each in found} | {column for _, column in measures if column}
    covering = (index.name for index in table.candidates if inputs <= set(index.columns))
    index_instead = None
    for choice in (None, *covering, "full"):
        suggested = SuggestedAggregate(
            plain_name(table.name.name), table.name, found, measures, target, choice, index_instead
        )
        error = setup_error([entry(table.name, choice)], survey, suggested.settings)
        if error is None:
            return suggested
        if choice is None and isinstance(error, OldValuesMissing):
            makes_index = error.sql is not None and error.sql.kind is SqlKind.COVERING_INDEX
            index_instead = error.sql if makes_index else None
    return None


def entry(table: TableName, replica_identity: str | None) -> str | dict[str, str]:
    """Of `tables` in [source]."""
    if replica_identity is None:
        return str(table)
    return {"name": str(table), "replica_identity": replica_identity}


def _measures(taken: Sequence[str], summed: Sequence[str]) -> Iterator[tuple[str, str | None]]:
    names = set(taken)
    for column in (None, *summed):
        name = "count" if column is None else fitted_name(column, "_sum")
        for number in range(2, len(names) + 3):
            if name not in names:
                break
            start = "row_count" if column is None else column
            name = fitted_name(start, f"_sum_{number}" if column else f"_{number}")
        names.add(name)
        yield name, column


def _target(table: TableName, survey: Survey) -> TableName | None:
    """Beside its source if a table may be made there, else in `public`. A name that is free."""
    for schema in dict.fromkeys((table.schema, "public")):
        if schema not in survey.creatable:
            continue
        for number in range(1, len(survey.taken) + 2):
            suffix = _SUFFIX if number == 1 else f"{_SUFFIX}_{number}"
            name = TableName(schema, fitted_name(table.name, suffix))
            constraint = TableName(schema, fitted_name(name.name, "_dimensions_key"))
            if not {name, constraint} & survey.taken:
                return name
    return None


def plain_name(table: str) -> str:
    """For an aggregate, of small letters, digits and _.

    >>> plain_name("Order Lines"), plain_name("заказы")
    ('order_lines_counts', 'table_counts')
    """
    start = re.sub(r"[^a-z0-9]+", "_", table.lower()).strip("_") or "table"
    return start[: MAX_BYTES - len(_SUFFIX)] + _SUFFIX
