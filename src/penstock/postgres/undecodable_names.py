"""Names in the catalog that are not UTF-8. Only a database with encoding SQL_ASCII holds any.

They cannot be selected as they are: the server refuses to send them as UTF-8. Nor can SQL that
names them be printed, so what corrects them goes by oid.
"""

from __future__ import annotations

from dataclasses import dataclass

import psycopg

from penstock.printed_sql import PrintedSql, SqlKind, printed

# A byte beyond ASCII, in hexadecimal digits.
_BEYOND_ASCII = "^(..)*[89a-f]"
_NAMES = f"""
SELECT * FROM (
    SELECT 'schema' AS kind, n.oid::int8 AS oid, 0 AS attnum,
           convert_to(n.nspname::text, 'SQL_ASCII') AS name, NULL::bytea AS owner
      FROM pg_namespace AS n
     UNION ALL
    SELECT 'table', c.oid::int8, 0, convert_to(c.relname::text, 'SQL_ASCII'),
           convert_to(n.nspname::text, 'SQL_ASCII')
      FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
     WHERE c.relkind IN ('r', 'p') AND c.relpersistence = 'p'
     UNION ALL
    SELECT 'column', c.oid::int8, a.attnum, convert_to(a.attname::text, 'SQL_ASCII'),
           convert_to(c.relname::text, 'SQL_ASCII')
      FROM pg_attribute AS a JOIN pg_class AS c ON c.oid = a.attrelid
     WHERE c.relkind IN ('r', 'p') AND c.relpersistence = 'p'
       AND a.attnum > 0 AND NOT a.attisdropped AND a.attislocal
) AS names
 WHERE encode(name, 'hex') ~ '{_BEYOND_ASCII}'
 ORDER BY kind DESC, oid, attnum
"""  # noqa: S608 - nothing in it comes from outside


@dataclass(frozen=True, slots=True)
class UndecodableName:
    """A schema, table or column; `shown` has `\\xNN` for each byte that is not UTF-8."""

    kind: str
    shown: str
    # SQL that gives it another name.
    rename_sql: str


def read_undecodable_names(connection: psycopg.Connection) -> list[UndecodableName]:
    """Any role may ask. It costs nothing where the database has an encoding."""
    if connection.info.parameter_status("server_encoding") != "SQL_ASCII":
        return []
    found = []
    for kind, oid, attnum, name, owner in connection.execute(_NAMES.encode()):
        if _is_utf8(name):
            continue
        shown = show_name(name) if owner is None else f"{show_name(owner)}.{show_name(name)}"
        found.append(UndecodableName(kind, shown, str(_rename(kind, oid, attnum))))
    return found


def show_name(name: bytes) -> str:
    """Return a name as text, with `\\xNN` for bytes that are not UTF-8.

    >>> show_name(b"na\\xefve")
    'na\\\\xefve'
    """
    return name.decode(errors="backslashreplace")


def _is_utf8(name: bytes) -> bool:
    try:
        name.decode()
    except UnicodeDecodeError:
        return False
    return True


def _rename(kind: str, oid: int, attnum: int) -> PrintedSql:
    if kind == "schema":
        name = f"SELECT nspname FROM pg_namespace WHERE oid = {oid}"  # noqa: S608 - a number
        return printed(
            SqlKind.RENAME,
            "DO $$ BEGIN EXECUTE "
            f"format('ALTER SCHEMA %I RENAME TO schema_{oid}', ({name})); END $$",
        )
    if kind == "table":
        return printed(
            SqlKind.RENAME,
            "DO $$ BEGIN EXECUTE "
            f"format('ALTER TABLE %s RENAME TO table_{oid}', {oid}::regclass); END $$",
        )
    where = f"attrelid = {oid} AND attnum = {attnum}"
    name = f"SELECT attname FROM pg_attribute WHERE {where}"  # noqa: S608 - numbers
    return printed(
        SqlKind.RENAME,
        f"DO $$ BEGIN EXECUTE format('ALTER TABLE %s RENAME COLUMN %I TO column_{attnum}', "
        f"{oid}::regclass, ({name})); END $$",
    )
