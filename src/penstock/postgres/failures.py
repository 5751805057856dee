"""The server's refusals of ordinary statements, in our own errors. Names things, never rows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from psycopg import errors as pg

from penstock.errors import (
    ConnectionLost,
    NotUtf8,
    PrivilegeMissing,
    SetupFailed,
    SlotLimitReached,
    SourceError,
)
from penstock.postgres.output_plugins import not_allowed
from penstock.printed_sql import SqlKind, printed

_ROW_SECURITY_FIX = (
    "Let the role of `dsn` see all rows (BYPASSRLS, as `penstock doctor` prints it), or use a role "
    "that owns the table (and is not under FORCE ROW LEVEL SECURITY)"
)

_UTF8_FIX = (
    "Correct such texts. Tables and columns with such names are found by `penstock doctor`, which "
    "has the SQL. In a database with encoding SQL_ASCII, texts of LATIN1 become UTF-8 by: "
    "convert_from(convert(convert_to(column, 'SQL_ASCII'), 'LATIN1', 'UTF8'), 'SQL_ASCII')"
)


def slot_limit_fix() -> str:
    show = printed(SqlKind.SHOW_SLOTS, "SELECT slot_name, active FROM pg_replication_slots")
    return show.after(
        "Raise max_replication_slots and restart the server, or drop a slot that is not needed, "
        "of these"
    )


def walsender_limit_fix() -> str:
    show = printed(SqlKind.SHOW_WALSENDERS, "SELECT * FROM pg_stat_replication")
    return show.after(
        "Raise max_wal_senders and restart the server, or stop a replication connection that is "
        "not needed, of these"
    )


@contextmanager
def translated(doing: str) -> Iterator[None]:
    """Run statements; `doing` says what for: "read the catalog", "create the publication"."""
    try:
        yield
    except psycopg.Error as error:
        raise translate(error, doing) from error


def translate(error: psycopg.Error, doing: str) -> SourceError:
    message = error.diag.message_primary or str(error).strip()
    problem = f"cannot {doing}: {message}"
    if (refused := not_allowed(error.sqlstate, message)) is not None:
        return refused
    match error:
        # By the server's function, for its messages may be in another language.
        case pg.InsufficientPrivilege() if error.diag.source_function == "check_enable_rls":
            return PrivilegeMissing(problem, remedy=_ROW_SECURITY_FIX)
        case pg.InsufficientPrivilege():
            return PrivilegeMissing(
                problem, remedy="`penstock docs roles` has the SQL of a role that may do this"
            )
        case pg.CharacterNotInRepertoire() | pg.UntranslatableCharacter():
            # Without the server's sentence, which shows the text.
            return NotUtf8(f"cannot {doing}: a text has no place in UTF-8", remedy=_UTF8_FIX)
        case pg.ConfigurationLimitExceeded():
            return SlotLimitReached(problem, remedy=slot_limit_fix())
        case psycopg.OperationalError() if error.sqlstate is None or error.sqlstate[:2] in _LOST:
            return ConnectionLost(problem, remedy="Check that the server runs, and run this again")
    detail = f" ({error.diag.message_hint})" if error.diag.message_hint else ""
    return SetupFailed(
        problem,
        remedy=f"Correct what the server names{detail}, and run this again: it is idempotent",
        sqlstate=error.sqlstate,
    )


# Connection exceptions, and operator intervention (shutdown, terminated, crash).
_LOST = ("08", "57")
