"""What `init` goes by: the tables of a database, and what the planner knows of their columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from penstock.names import TableName
from penstock.ops.facts import SourceFacts
from penstock.postgres.tables import TableFacts


@dataclass(frozen=True, slots=True)
class Statistics:
    """Of one column; estimates."""

    # How many different values there are, NULL not among them.
    distinct: float
    null_fraction: float = 0.0
    width_bytes: float = 0.0


@dataclass(frozen=True, slots=True)
class Surveyed:
    """One table and what is known about its contents."""

    table: TableFacts
    # An estimate; 0: none, or not known.
    rows: int = 0
    # By column; not all have any.
    statistics: Mapping[str, Statistics] = field(default_factory=dict)
    # Column → rows of the table that its foreign key leads to.
    references: Mapping[str, int] = field(default_factory=dict)
    # It looks like a target that set-up made.
    target: bool = False


@dataclass(frozen=True, slots=True)
class Survey:
    facts: SourceFacts
    # The largest first.
    tables: tuple[Surveyed, ...]
    # Those that were not looked at, for there are so many.
    others: tuple[TableName, ...] = ()
    # A name that neither a slot of the server nor a publication of the database has.
    free_name: str = "penstock"
    # Schemas in which the role may make a table.
    creatable: frozenset[str] = frozenset()
    # Names that a new target cannot have.
    taken: frozenset[TableName] = frozenset()
