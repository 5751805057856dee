"""The SQL that messages print for a person to run. Pure. Shared word: imports nothing of Penstock.

Every message with SQL gets it from a `PrintedSql`, and a test runs each kind, as it is printed, on
every server version that Penstock supports (tests/integration/ops/test_printed_sql.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class SqlKind(StrEnum):
    """What the statements bring about. Each kind has a case in the test above."""

    COVERING_INDEX = "make an index the replica identity, which holds what aggregates need"
    IDENTITY = "set the replica identity of one or more tables"
    WIDE_INDEX_DROP = "drop an index of ours that long values do not fit into"


@dataclass(frozen=True, slots=True)
class PrintedSql:
    """Statements for one database, in order. Each runs outside of a transaction block, unless the
    statements contain BEGIN and COMMIT.
    """

    kind: SqlKind
    statements: tuple[str, ...]

    def __post_init__(self) -> None:
        if not self.statements or any(each.rstrip().endswith(";") for each in self.statements):
            raise ValueError(self.statements)

    def __str__(self) -> str:
        return self.statements[0] if len(self.statements) == 1 else self.after("Run")

    def after(self, words: str) -> str:
        """A single statement ends the sentence; several stand on lines of their own.

        In one line a client would send them as one transaction, which the server refuses for
        CREATE INDEX CONCURRENTLY and ALTER SYSTEM.

        >>> print(PrintedSql(SqlKind.IDENTITY, ("A", "B")).after("Run"))
        Run:
          A;
          B;
        """
        if len(self.statements) == 1:
            return f"{words}: {self.statements[0]}"
        return f"{words}:" + "".join(f"\n  {statement};" for statement in self.statements)


def printed(kind: SqlKind, *statements: str) -> PrintedSql:
    return PrintedSql(kind, statements)
