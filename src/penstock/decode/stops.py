"""Why an aggregate stops until it is seeded again: a code and the facts, and their text. Pure.

A stop is found where the log is decoded, or by a look at the source's catalog. It is kept beside
the aggregate's position, and does not lapse: changes were lost or mean something else since then.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from enum import StrEnum

from penstock.errors import AggregateStopped
from penstock.lsn import Lsn


class StopCode(StrEnum):
    """The values are kept in targets: a code is never renamed."""

    TRUNCATED = "truncated"
    COLUMN_GONE = "column_gone"
    COLUMN_RETYPED = "column_retyped"
    # The table, or some of it, is not in the publication, or never reaches the WAL.
    NOT_SENT = "not_sent"
    PARTITION_DIFFERS = "partition_differs"
    # Another table has its name, or it has another one.
    TABLE_REPLACED = "table_replaced"
    TABLE_RENAMED = "table_renamed"
    COLUMN_REPLACED = "column_replaced"
    COLUMN_REWRITTEN = "column_rewritten"
    LABEL_RENAMED = "label_renamed"
    # Rows that are there count by another column of an alias than before.
    ALIAS_FILLED = "alias_filled"
    ALIAS_GONE = "alias_gone"
    # The change log reached its disk budget.
    RELEASED = "released"


@dataclass(frozen=True, slots=True)
class Stop:
    code: StopCode
    table: str = ""
    column: str = ""
    # The commit that the stream tells it with, as text.
    lsn: str = ""
    # Of a type, for example: what it was, and what it is.
    was: str = ""
    now: str = ""

    def to_json(self) -> str:
        return json.dumps({name: value for name, value in asdict(self).items() if value})

    @classmethod
    def from_json(cls, text: str) -> Stop:
        found = json.loads(text)
        return cls(**{**found, "code": StopCode(found["code"])})

    @property
    def order(self) -> int:
        """By commit: of several, the first one is what stopped the aggregate."""
        return int(Lsn.parse(self.lsn)) if self.lsn else 0

    def problem(self, aggregate: str) -> str:
        return _PROBLEMS[self.code].format(
            table=self.table,
            column=self.column,
            at=f" at {self.lsn}" if self.lsn else "",
            change=f" in the change that commits at {self.lsn}" if self.lsn else "",
            was=self.was,
            now=self.now,
            aggregate=aggregate,
        )

    def remedy(self, aggregate: str) -> str:
        return _REMEDIES.get(self.code, "Run: penstock reset {}").format(aggregate)

    def error(self, aggregate: str) -> AggregateStopped:
        return AggregateStopped(
            f"aggregate {aggregate} has stopped: {self.problem(aggregate)}",
            remedy=self.remedy(aggregate),
            aggregate=aggregate,
            code=str(self.code),
        )


_PROBLEMS = {
    StopCode.TRUNCATED: "{table} was truncated{at}, and aggregate {aggregate} counts its rows",
    StopCode.COLUMN_GONE: (
        "column {column} of {table}, which aggregate {aggregate} reads, is gone{change}: dropped "
        "or renamed"
    ),
    StopCode.COLUMN_RETYPED: (
        "column {column} of {table}, which aggregate {aggregate} reads, is {now} and no longer "
        "{was}{change}"
    ),
    StopCode.NOT_SENT: (
        "changes of {table}, which aggregate {aggregate} counts, did not all reach the change log"
    ),
    StopCode.PARTITION_DIFFERS: (
        "partitions of {table}, which aggregate {aggregate} counts, had another replica identity "
        "than their root, so that old values were missing"
    ),
    StopCode.TABLE_REPLACED: (
        "{table}, which aggregate {aggregate} counts, is another table than the one that it was "
        "counted from{change}: dropped and created again, or swapped by name"
    ),
    StopCode.TABLE_RENAMED: (
        "{table}, which aggregate {aggregate} counts, was renamed to {now}{change}"
    ),
    StopCode.COLUMN_REPLACED: (
        "column {column} of {table}, which aggregate {aggregate} reads, is another column than the "
        "one that it was counted by: dropped and added again, or swapped by name"
    ),
    StopCode.COLUMN_REWRITTEN: (
        "{table} was rewritten with column {column}, which aggregate {aggregate} reads, so that "
        "rows may have other values than those that were counted (ALTER COLUMN … TYPE)"
    ),
    StopCode.LABEL_RENAMED: (
        "a label of the enum of column {column} of {table}, which aggregate {aggregate} reads, was "
        "renamed"
    ),
    StopCode.ALIAS_FILLED: (
        "column {column} of {table}, an alias of what aggregate {aggregate} reads, was added with "
        "values in it, so that rows may have other values than those that were counted"
    ),
    StopCode.ALIAS_GONE: (
        "column {column} of {table}, an alias of what aggregate {aggregate} reads, was dropped or "
        "renamed while no alias before it was NOT NULL, so that rows may have other values than "
        "those that were counted"
    ),
    StopCode.RELEASED: (
        "aggregate {aggregate} was released when the change log reached its disk budget"
    ),
}
_CHECK_FIRST = (
    "Correct what `penstock doctor` reports about aggregate {0}, then: penstock reset {0}"
)
_REMEDIES = {
    StopCode.COLUMN_GONE: "Give it back its name, or correct aggregate {0}; then: "
    "penstock reset {0}",
    StopCode.NOT_SENT: _CHECK_FIRST,
    StopCode.TABLE_RENAMED: "Give it back its name, or correct sources of aggregate {0} and tables "
    "in [source]; then: penstock reset {0}",
    StopCode.PARTITION_DIFFERS: _CHECK_FIRST,
    StopCode.RELEASED: "Run: penstock reset {0}. A larger max_gib in [log] leaves it more time",
}
