"""The options of wal2json that a slot is read with. Pure.

The session that reads has `VALUE_SETTINGS` of `postgres.connection`: they decide how values, types
and times are spelled.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Literal, TypeAlias

from penstock.names import TableName

FormatVersion: TypeAlias = Literal[1, 2]

# wal2json's list of tables ends names at these.
_SPECIAL = re.compile(r"[\\,.*'\s]")
# wal2json has no option for "no messages at all". A prefix that nobody has does the same.
_NO_PREFIX = "penstock.none"


def slot_options(
    format_version: FormatVersion,
    tables: Iterable[TableName],
    *,
    message_prefix: str | None = None,
    types: bool = True,
) -> dict[str, str]:
    """Return the names and values to pass to `pg_logical_slot_peek_changes`.

    `message_prefix`: the one prefix of logical messages that are wanted.
    `types`: type names and modifiers too. Without them a decimal has no scale and a user's type no
    name, and documents are shorter.
    """
    options = {
        "format-version": str(format_version),
        "include-xids": "1",
        "include-timestamp": "1",
        "include-lsn": "1",
        "include-schemas": "1",
        "include-types": "1" if types else "0",
        "include-typmod": "1",
        "include-type-oids": "1",
        # A domain's column has the type below it, as pgoutput has.
        "include-domain-data-type": "1",
        # Null in a column that has no NULL is a number that JSON does not have.
        "include-not-null": "1",
        "include-pk": "1",
        "add-tables": ",".join(map(_table, tables)),
        "add-msg-prefixes": message_prefix or _NO_PREFIX,
    }
    if format_version == 2:
        options["include-transaction"] = "1"
    return options


def _table(name: TableName) -> str:
    """Escape a name for `add-tables`.

    >>> _table(TableName("public", "order lines, v1.2"))
    'public.order\\\\ lines\\\\,\\\\ v1\\\\.2'
    """
    return ".".join(_SPECIAL.sub(r"\\\g<0>", part) for part in (name.schema, name.name))
