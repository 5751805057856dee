"""What a role may read of tables by queries, and whether it would see all of their rows.

Of a partitioned table the root decides alone: a query on the root asks for no right on a partition,
and follows no policy of one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import psycopg
from psycopg.rows import dict_row

from penstock.names import TableName
from penstock.postgres.tables import TableFacts


@dataclass(frozen=True, slots=True)
class Readable:
    """What one role may read of one table."""

    # USAGE on the schema.
    in_schema: bool
    # The role that asked has the rights of the schema's owner.
    schema_owned: bool
    # Those that it may SELECT.
    columns: frozenset[str]
    # Policies decide which rows it sees.
    row_security: bool
    # And would even if it owned the table.
    row_security_forced: bool = False


def read_readable(
    connection: psycopg.Connection, role: str, tables: Iterable[TableFacts]
) -> dict[TableName, Readable]:
    """Of each table; none if the server has no such role."""
    by_oid = {table.oid: table.name for table in tables}
    with connection.cursor(row_factory=dict_row) as cursor:
        rows = cursor.execute(_READABLE, {"role": role, "oids": list(by_oid)}).fetchall()
    return {
        by_oid[row.pop("oid")]: Readable(**{**row, "columns": frozenset(row["columns"])})
        for row in rows
    }


# As row_security_active(), which tells of the session's own role only.
_READABLE = """
SELECT c.oid::bigint AS oid,
       has_schema_privilege(r.oid, c.relnamespace, 'USAGE') AS in_schema,
       pg_has_role(n.nspowner, 'USAGE') AS schema_owned,
       ARRAY(
           SELECT a.attname::text FROM pg_attribute AS a
            WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
              AND has_column_privilege(r.oid, c.oid, a.attnum, 'SELECT')
       ) AS columns,
       c.relrowsecurity AND NOT (
           r.rolsuper OR r.rolbypassrls
           OR (pg_has_role(r.oid, c.relowner, 'USAGE') AND NOT c.relforcerowsecurity)
       ) AS row_security,
       c.relforcerowsecurity AS row_security_forced
  FROM pg_class AS c
  JOIN pg_namespace AS n ON n.oid = c.relnamespace
  JOIN pg_roles AS r ON r.rolname = %(role)s
 WHERE c.oid = ANY (%(oids)s::oid[])
"""
