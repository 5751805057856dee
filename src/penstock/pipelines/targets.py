"""Target tables that are missing: the SQL that makes them. Pure.

A table that is there, such as one that the user's own migrations made, is not altered but checked,
by `target_checks`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from penstock.declarations import AggregateConfig
from penstock.errors import ConfigInvalidValue, ConfigMissingKey
from penstock.names import TableName, fitted_name, quote
from penstock.pipelines.inputs import input_types
from penstock.pipelines.target_types import BIGINT, NUMERIC, better_type, common_type, harm, keeps
from penstock.postgres.column_types import BaseType
from penstock.postgres.tables import TableFacts
from penstock.toml import key, value

Tables = Mapping[TableName, TableFacts]


@dataclass(frozen=True, slots=True)
class Target:
    """One table of one aggregate, as it is declared."""

    aggregate: AggregateConfig
    table: TableName
    dimensions: tuple[str, ...]
    measures: tuple[str, ...]

    def sources(self, dimension: str, tables: Tables) -> tuple[BaseType, ...] | None:
        """The types of a dimension that is a column; None: it is an expression."""
        plain = self.aggregate.dimensions[dimension].plain
        return None if plain is None else input_types(self.aggregate, tables, plain)

    def summed(self, measure: str, tables: Tables) -> tuple[BaseType | None, ...]:
        """The types that a measure adds up; (None,): it counts rows."""
        column = self.aggregate.summed_by(measure)
        return (None,) if column is None else input_types(self.aggregate, tables, column)

    def typed(self, dimension: str) -> str:
        """As it is declared, with a type yet to be written."""
        return self._declared(dimension, self.aggregate.dimensions[dimension].expression, "…")

    def as_text(self, dimension: str) -> str:
        """A declaration that any values have a place in, if Spark reads them as one type."""
        expression = self.aggregate.dimensions[dimension].expression
        return self._declared(dimension, f"cast({expression} as string)", "text")

    def _declared(self, dimension: str, expression: str, kind: str) -> str:
        return f"{key(dimension)} = {value({'expression': expression, 'type': kind})}"

    def measure_type(self, measure: str) -> BaseType:
        """Of the column that set-up makes for it."""
        return BIGINT if self.aggregate.summed_by(measure) is None else NUMERIC


def targets_of(aggregate: AggregateConfig) -> tuple[Target, ...]:
    return tuple(
        Target(aggregate, target.table, *aggregate.shown_by(target)) for target in aggregate.targets
    )


def create_sql(
    target: Target,
    tables: Tables,
    types: Mapping[str, BaseType | None],
    *,
    elsewhere: bool,
) -> tuple[str, ...]:
    """The table and its indexes. `tables` are the sources, `types` what declared types mean.

    `elsewhere`: it is not in the source's database, whose own types it cannot have. Raises a
    `ConfigError` where the type of a column is not known.
    """
    types_of = {
        name: _column_type(target, name, tables, types, elsewhere) for name in target.dimensions
    }
    measures = {name: target.measure_type(name).sql for name in target.measures}
    keys = ", ".join(map(quote, target.dimensions))
    lines = [f"{quote(name)} {kind}" for name, kind in types_of.items()]
    lines += [f"{quote(name)} {kind} NOT NULL DEFAULT 0" for name, kind in measures.items()]
    constraint = quote(fitted_name(target.table.name, "_dimensions_key"))
    lines.append(f"CONSTRAINT {constraint} UNIQUE NULLS NOT DISTINCT ({keys})")
    body = ",\n    ".join(lines)
    return (
        f"CREATE TABLE {target.table.sql} (\n    {body}\n)",
        # The unique index serves searches by the first.
        *(f"CREATE INDEX ON {target.table.sql} ({quote(each)})" for each in target.dimensions[1:]),
    )


def _column_type(
    target: Target,
    name: str,
    tables: Tables,
    types: Mapping[str, BaseType | None],
    elsewhere: bool,
) -> str:
    sources = target.sources(name, tables)
    declared = target.aggregate.dimensions[name].type
    if declared is not None:
        _check_declared(target, name, declared, types[declared], sources)
        return declared
    if not sources:
        raise _untyped(target, name, "is an expression")
    found = common_type(sources)
    if found is None:
        kinds = " and ".join(kind.sql for kind in sources)
        what = f"is {kinds} in its sources, and no type keeps the values of all"
        raise _untyped(target, name, what, f"Write {target.as_text(name)}")
    if elsewhere and not found.builtin:
        raise _untyped(target, name, f"is of type {found.sql}, which this database lacks")
    return found.sql


def _untyped(target: Target, name: str, what: str, remedy: str | None = None) -> ConfigMissingKey:
    aggregate = target.aggregate
    typed = f"{target.typed(name)} in [[aggregate]] {aggregate.name}"
    return ConfigMissingKey(
        f"target {target.table} of aggregate {aggregate.name} cannot be made: dimension {name} "
        f"{what}, so the type of its column is not known",
        remedy=remedy or f"Give it a type, {typed}, or make the table yourself",
        aggregate=aggregate.name,
        dimension=name,
    )


def _check_declared(
    target: Target,
    name: str,
    declared: str,
    kind: BaseType | None,
    sources: tuple[BaseType, ...] | None,
) -> None:
    about = f'type "{declared}" of dimension {name} in [[aggregate]] {target.aggregate.name}'
    facts = {"aggregate": target.aggregate.name, "dimension": name}
    if kind is None:
        raise ConfigInvalidValue(
            f"{about} is no type of the database with target {target.table}",
            remedy="Correct it, or make the type there first. Types of your own have their schema "
            "before their name, as public.mood",
            **facts,
        )
    if not keeps(kind, sources):
        better = better_type(kind, sources)
        raise ConfigInvalidValue(
            f"{about} {harm(kind, sources)}",
            remedy=f'Give it as type = "{better.sql}"'
            if better
            else f"No type keeps the values of all sources. Write {target.as_text(name)}",
            **facts,
        )
