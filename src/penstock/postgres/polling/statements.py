"""The statements of a polling run. Pure.

A run asks where the WAL ends, peeks at the slot's changes up to there, and, when they are durable,
advances the slot. The peek comes by COPY: a set-returning function has all its rows before the
first is read, but only COPY sends them one by one without a round trip for each portion.
"""

from __future__ import annotations

from collections.abc import Mapping

from penstock.lsn import Lsn


def look(slot: str) -> str:
    """Where the flushed WAL ends, and where the slot is; no row if there is no such slot.

    In the WAL that is flushed, and so decoded, everything that has committed by now is below it.
    """
    return (
        "SELECT pg_catalog.pg_current_wal_flush_lsn(), confirmed_flush_lsn"  # noqa: S608 - quoted
        f" FROM pg_catalog.pg_replication_slots WHERE slot_name = {quoted(slot)}"
    )


# What IDENTIFY_SYSTEM answers with; the name of a WAL file begins with its timeline.
IDENTIFY = """
SELECT (SELECT system_identifier FROM pg_catalog.pg_control_system()),
       pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_flush_lsn()),
       pg_catalog.pg_current_wal_flush_lsn(),
       pg_catalog.current_database()
"""


def timeline_of(wal_file: str) -> int:
    """The timeline that the name of a WAL file begins with.

    >>> timeline_of("0000000200000000000000A1")
    2
    """
    return int(wal_file[:8], 16)


# As XLogData has it (`envelope`): kind, start, end and clock before the plugin's bytes.
_AS_XLOG_DATA = (
    r"'\x77'::bytea || pg_catalog.pg_lsn_send(lsn) || pg_catalog.pg_lsn_send(lsn)"
    " || pg_catalog.int8send(0) || data"
)


def quoted(text: str) -> str:
    """A literal, whatever the text holds.

    >>> quoted("it's"), quoted("back" + chr(92) + "slash")
    ("'it''s'", "E'back\\\\\\\\slash'")
    """
    doubled = text.replace("'", "''")
    if "\\" not in text:
        return f"'{doubled}'"
    return "E'" + doubled.replace("\\", "\\\\") + "'"


def peek_messages(slot: str, wal_end: Lsn, most: int, options: Mapping[str, str]) -> str:
    """COPY of CopyData messages of a plugin that writes binary, such as pgoutput."""
    function = "pg_logical_slot_peek_binary_changes"
    return _copy(_AS_XLOG_DATA, function, slot, wal_end, most, options)


def peek_texts(slot: str, wal_end: Lsn, most: int, options: Mapping[str, str]) -> str:
    """COPY of positions and texts of a plugin that writes text, such as wal2json."""
    return _copy("lsn, data", "pg_logical_slot_peek_changes", slot, wal_end, most, options)


def _copy(
    columns: str, function: str, slot: str, wal_end: Lsn, most: int, options: Mapping[str, str]
) -> str:
    given = "".join(f", {quoted(name)}, {quoted(value)}" for name, value in options.items())
    return (
        f"COPY (SELECT {columns} FROM pg_catalog.{function}("  # noqa: S608 - quoted above
        f"{quoted(slot)}, '{wal_end}', {most}{given})) TO STDOUT (FORMAT binary)"
    )


def advance(slot: str, lsn: Lsn) -> str:
    return f"SELECT pg_catalog.pg_replication_slot_advance({quoted(slot)}, '{lsn}')"
