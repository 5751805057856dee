"""`[[aggregate]]` in the configuration: counts and sums that follow tables. Checked, not yet bound
to any database.

An aggregate reads the changes of its source tables, groups them by its dimensions and adds the
measures up. Each of its targets is one table that holds the result by some or all of the
dimensions; all of them come from one pass.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from typing import Annotated, Any

from pydantic import AfterValidator, Field, PrivateAttr, field_validator, model_validator

from penstock.expressions import BadExpression, columns_of, plain_column
from penstock.sections import Dsn, Identifier, PlainName, Secret, Section, TableRef

_SUM = re.compile(r"sum\(\s*(?:`([^`]+)`|([A-Za-z_][A-Za-z0-9_$]*))\s*\)", re.IGNORECASE)
RULES = ("insert", "update", "delete")


def _expression(text: str) -> str:
    try:
        columns_of(text)
    except BadExpression as error:
        raise ValueError(str(error)) from None
    return text


def _measure(text: str) -> str:
    if text.lower() != "count" and _SUM.fullmatch(text) is None:
        raise ValueError('should be "count" or "sum(column)"')
    return text


Expression = Annotated[str, Field(min_length=1), AfterValidator(_expression)]
Measure = Annotated[str, AfterValidator(_measure)]


class Dimension(Section):
    """One thing to count by: a column, or an expression of Spark SQL over columns."""

    expression: Expression
    # Of the column in a target that `setup` makes. A plain column has its own.
    type: Identifier | None = None

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: object) -> object:
        return {"expression": value} if isinstance(value, str) else value

    @property
    def columns(self) -> tuple[str, ...]:
        return columns_of(self.expression)

    @property
    def plain(self) -> str | None:
        """The column, if it is nothing else."""
        return plain_column(self.expression)


class AggregateSource(Section):
    """One table whose changes count, and how."""

    table: TableRef
    # A rule that is off ignores such changes, and counts them as ignored.
    insert: bool = True
    update: bool = True
    delete: bool = True
    # Columns that no UPDATE changes: an old row without them has the new row's.
    immutable: tuple[Identifier, ...] = ()
    # A column's name in the aggregate: its names in the table. Of those that exist, the first that
    # is not NULL counts, row by row.
    aliases: Annotated[dict[Identifier, tuple[Identifier, ...]], Field(default_factory=dict)]

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: object) -> object:
        return {"table": value} if isinstance(value, str) else value

    @property
    def rules(self) -> frozenset[str]:
        return frozenset(rule for rule in RULES if getattr(self, rule))

    @property
    def rows_count(self) -> bool:
        """Seeding and `verify` read its rows; without, only its changes count, or nothing does."""
        return self.insert

    def names(self, column: str) -> tuple[str, ...]:
        """What a column may be called in the table."""
        return self.aliases.get(column, (column,))


class AggregateTarget(Section):
    """One table with the result."""

    table: TableRef
    # Some of the aggregate's, by name; without it all.
    dimensions: Annotated[tuple[Identifier, ...], Field(min_length=1)] | None = None
    measures: Annotated[tuple[Identifier, ...], Field(min_length=1)] | None = None

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: object) -> object:
        return {"table": value} if isinstance(value, str) else value


class AggregateConfig(Section):
    """One aggregate."""

    name: PlainName
    # Where the targets are; without it in the source's own database, by its `dsn`.
    target_dsn: Secret | None = None
    sources: Annotated[tuple[AggregateSource, ...], Field(min_length=1)]
    # Rows that count: an expression of Spark SQL that is true or not.
    filter: Expression | None = None
    dimensions: Annotated[dict[Identifier, Dimension], Field(min_length=1)]
    measures: Annotated[
        dict[Identifier, Measure], Field(min_length=1, default_factory=lambda: {"count": "count"})
    ]
    targets: Annotated[tuple[AggregateTarget, ...], Field(min_length=1)]
    # Begin with the rows that are there; without, only what changes from now on counts.
    seed: bool = True
    # No count is shown below 0. Sums may go below.
    floor: bool = True
    # False: rules under which the tables do not tell what the result should be.
    verifiable: bool = True
    # Where `target_dsn` was given, if not in the file.
    _origin: str | None = PrivateAttr(default=None)

    @field_validator("dimensions", mode="before")
    @classmethod
    def _columns_by_their_names(cls, value: object) -> object:
        if not isinstance(value, list):
            return value
        if not all(isinstance(name, str) for name in value):
            raise ValueError(
                'a list should hold columns in quotes; with an expression it is { day = "…" }'
            )
        names = list(map(_name_in_list, value))
        _each_once("the list names", names)
        return dict(zip(names, value, strict=True))

    @model_validator(mode="after")
    def _makes_sense(self) -> AggregateConfig:
        _each_once("sources name", (source.table for source in self.sources))
        _each_once("targets name", (target.table for target in self.targets))
        if both := self.dimensions.keys() & self.measures.keys():
            raise ValueError(f"{min(both)} is both a dimension and a measure")
        for target in self.targets:
            _each_once(f"dimensions of {target.table} name", target.dimensions or ())
            _each_once(f"measures of {target.table} name", target.measures or ())
            _known(target.dimensions or (), self.dimensions, f"dimension of {target.table}")
            _known(target.measures or (), self.measures, f"measure of {target.table}")
        for source in self.sources:
            _known(source.immutable, self.inputs, f"immutable column of {source.table}")
            _known(source.aliases, self.inputs, f"alias of {source.table}")
        if not any(source.rules for source in self.sources):
            raise ValueError("all rules of all its sources are off, so nothing would ever count")
        if self.verifiable:
            self._has_a_truth()
        return self

    def _has_a_truth(self) -> None:
        """The rows of a table tell what the counts should be only if it counts whole or not."""
        for source in self.sources:
            constant = set(self.inputs) <= set(source.immutable)
            missing = [rule for rule in RULES if rule not in source.rules]
            if not source.rules or not missing or (missing == ["update"] and constant):
                continue
            raise ValueError(
                f"no query could tell what the result should be: of {source.table} the "
                f"{' and '.join(missing)} {'rule is' if len(missing) == 1 else 'rules are'} off "
                "and others on. Switch them on, or set verifiable = false"
            )

    @property
    def inputs(self) -> tuple[str, ...]:
        """The columns that the dimensions, the filter and the measures read."""
        return tuple(dict.fromkeys((*self.keys, *self.summed)))

    @property
    def keys(self) -> tuple[str, ...]:
        """The columns that the dimensions and the filter read."""
        filtered = columns_of(self.filter) if self.filter else ()
        columns = (column for each in self.dimensions.values() for column in each.columns)
        return tuple(dict.fromkeys((*columns, *filtered)))

    @property
    def summed(self) -> tuple[str, ...]:
        """The columns that are added up."""
        columns = (self.summed_by(name) for name in self.measures)
        return tuple(dict.fromkeys(column for column in columns if column is not None))

    def summed_by(self, measure: str) -> str | None:
        """The column that a measure adds up; None: it counts rows."""
        found = _SUM.fullmatch(self.measures[measure])
        return (found[1] or found[2]) if found else None

    @property
    def all_plain(self) -> bool:
        """Postgres itself can group by the dimensions."""
        return self.filter is None and all(each.plain for each in self.dimensions.values())

    @property
    def fingerprint(self) -> str:
        """Of everything that decides about the result: another one makes it another aggregate."""
        decides: dict[str, Any] = self.model_dump(
            mode="json", exclude={"target_dsn", "targets", "verifiable", "floor", "name"}
        )
        decides["targets"] = [
            [str(target.table), *map(list, self.shown_by(target))] for target in self.targets
        ]
        if not self.floor:  # only then, so that those who leave it as it is need no reset
            decides["floor"] = False
        text = json.dumps(decides, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def shown_by(self, target: AggregateTarget) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The dimensions and the measures of a target."""
        dimensions = target.dimensions if target.dimensions is not None else tuple(self.dimensions)
        return dimensions, target.measures or tuple(self.measures)

    def conninfo(self, default: Dsn) -> Dsn:
        """Where the targets are."""
        if self.target_dsn is None:
            return default
        origin = self._origin or f"target_dsn in [[aggregate]] {self.name}"
        return Dsn(self.target_dsn.get_secret_value(), origin)

    def remember(self, origin: str) -> None:
        """Called once, by `config.load`: where `target_dsn` was given, other than in the file."""
        self._origin = origin


def _name_in_list(text: str) -> str:
    """A dimension's, which is its column's: without the backticks that it stands in."""
    try:
        return plain_column(text) or text
    except BadExpression:
        return text  # what is wrong with it is told of the dimension


def _each_once(what: str, names: Iterable[object]) -> None:
    seen = set()
    for name in names:
        if name in seen:
            raise ValueError(f"{what} {name} twice")
        seen.add(name)


def _known(names: Iterable[str], known: Iterable[str], what: str) -> None:
    for name in names:
        if name not in set(known):
            raise ValueError(f"{name} is no {what}: there are {', '.join(known)}")
