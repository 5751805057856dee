"""What goes wrong while the server decodes its WAL, alike for replication and polling. Pure."""

from __future__ import annotations

import re

import psycopg

from penstock.errors import NotUtf8, PrivilegeMissing, new_log
from penstock.names import quote
from penstock.printed_sql import SqlKind, printed

UNDEFINED_OBJECT = "42704"
OBJECT_IN_USE = "55006"
NOT_IN_STATE = "55000"
# Characters that the server cannot give us in UTF-8.
NO_UTF8 = ("22021", "22P05")


def is_publication_skipped(notice: psycopg.errors.Diagnostic, publication: str) -> bool:
    """Whether the server goes on without the publication and skips its changes.

    PostgreSQL 18 says so in this warning only. Its text is translated by lc_messages; 55000 has no
    other use in decoding.
    """
    text = notice.message_primary or ""
    return notice.sqlstate == NOT_IN_STATE and publication in text


def in_use_by(text: str) -> int | None:
    """The process that has the slot, out of the server's sentence."""
    found = re.search(r"PID (\d+)", text)
    return int(found[1]) if found else None


def not_utf8() -> NotUtf8:
    """The error without the server's sentence, which shows the text."""
    return NotUtf8(
        "the server ended decoding: a text in its WAL has no place in UTF-8",
        remedy=f"Correct such texts in the tables, and then start a new log: {new_log()}",
    )


def may_not_replicate(role: str, text: str) -> PrivilegeMissing:
    """The error of a role that lacks REPLICATION, with the server's sentence."""
    sql = printed(SqlKind.REPLICATION, f"ALTER ROLE {quote(role)} REPLICATION")
    return PrivilegeMissing(
        f"role {role} may not use replication slots: {text}",
        remedy=sql.after("Let the role replicate"),
        role=role,
    )
