"""The SQL that messages print for a person to run. Pure. Shared word: imports nothing of Penstock.

Every message with SQL gets it from a `PrintedSql`, and a test runs each kind, as it is printed, on
every server version that Penstock supports (tests/integration/ops/test_printed_sql.py).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class SqlKind(StrEnum):
    """What the statements bring about. Each kind has a case in the test above."""

    # Settings and roles of the server, which a superuser changes.
    WAL_LEVEL = "have the server write WAL that can be decoded"
    OUTPUT_PLUGIN = "allow an output plugin"
    IDLE_SLOT_TIMEOUT = "keep slots that nobody reads"
    WAL_KEEP_SIZE = "keep more WAL for slots"
    REPLICATION = "let a role replicate"
    CONNECT = "let a role connect"
    HEARTBEATS = "let a role emit logical messages"
    BYPASS_ROW_SECURITY = "let a role see all rows"
    SETUP_PRIVILEGES = "give the set-up role what it lacks"
    TARGET_SETUP_PRIVILEGES = "give the set-up role what it lacks in a target's database"
    TABLE_OWNER = "make a role an owner of a table"
    SOURCE_GRANTS = "let capture's role read what aggregates count"
    TARGET_GRANTS = "let a role write targets"
    TERMINATE = "end sessions that stand in the way"
    SHOW_SLOTS = "list the replication slots"
    SHOW_PREPARED = "list the prepared transactions"
    SHOW_WALSENDERS = "list the replication connections"
    # Tables and their publication.
    RENAME = "give another name to what has one that is not UTF-8"
    SET_LOGGED = "have the changes of a table in the WAL"
    PUBLISH_TABLE = "add a table to the publication"
    PUBLISH_WHOLE_TABLE = "publish a table without a column list and a row filter"
    PUBLISH_NEEDED = "publish the columns and rows of a table that aggregates need"
    PUBLISH_OPERATIONS = "publish all operations"
    PUBLISH_VIA_ROOT = "publish partitions under the name of their root"
    PUBLISH_GENERATED = "publish stored generated columns"
    UNPUBLISH_TABLE = "take a target out of the publication"
    UNPUBLISH_SCHEMA = "publish the tables of a schema by name"
    NARROW_PUBLICATION = "publish named tables instead of all"
    DROP_PUBLICATION = "drop the publication"
    COVERING_INDEX = "make an index the replica identity, which holds what aggregates need"
    IDENTITY = "set the replica identity of one or more tables"
    # Targets of aggregates.
    TARGET_KEY = "give a target its unique key"
    TARGET_COLUMN = "add a column to a target"
    TARGET_COLUMN_COMPUTED = "have a target's column written by us, not by the server"
    TARGET_TYPE = "give a target's column another type"
    TARGET_COLLATION = "have different texts differ in a target"
    TARGET_NOT_NULL = "have a measure begin with 0"
    RELEASE_TARGET = "let another aggregate keep a target"
    RELEASE_NAME = "let another file use the name of an aggregate"
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


def reloaded(kind: SqlKind, setting: str) -> PrintedSql:
    """A setting of the server that is in effect without a restart."""
    return PrintedSql(kind, (f"ALTER SYSTEM SET {setting}", "SELECT pg_reload_conf()"))


def terminated(pids: Iterable[int | None]) -> PrintedSql | None:
    """The statements that end these server processes; None if there are none."""
    statements = [f"SELECT pg_terminate_backend({pid})" for pid in dict.fromkeys(pids) if pid]
    return PrintedSql(SqlKind.TERMINATE, tuple(statements)) if statements else None


def printed(kind: SqlKind, *statements: str) -> PrintedSql:
    return PrintedSql(kind, statements)
