"""What a database with targets has: its tables, their unique keys, who may write to them, and how
far the aggregates are. Reads only; a few queries however many targets there are.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import psycopg
from psycopg.rows import dict_row

from penstock.errors import ServerTooOld
from penstock.names import TableName
from penstock.pipelines.bookkeeping import (
    SCHEMA,
    TABLES,
    ParkedKeys,
    Progress,
    Stopped,
    read_keepers,
    read_kept,
    read_parked,
    read_progress,
    read_stop,
)
from penstock.postgres.column_types import BaseType
from penstock.postgres.failures import translated
from penstock.postgres.tables import Column, TableFacts, read_tables

# UNIQUE NULLS NOT DISTINCT came with it: without, a key with a NULL would have many rows.
OLDEST_TARGET_VERSION = 15
PRIVILEGES = ("SELECT", "INSERT", "UPDATE", "DELETE")
BOOKKEEPING = tuple(TableName(SCHEMA, name) for name in TABLES)


@dataclass(frozen=True, slots=True)
class UniqueKey:
    """A unique index that an upsert can go by: immediate, valid, neither partial nor computed."""

    name: str
    columns: frozenset[str]
    # Of rows with a NULL there is only one too.
    nulls_not_distinct: bool


@dataclass(frozen=True, slots=True)
class TargetFacts:
    """One table: a target, or one of our own."""

    table: TableFacts
    keys: tuple[UniqueKey, ...]
    # Role → what it may do.
    allowed: Mapping[str, frozenset[str]]

    def column(self, name: str) -> Column | None:
        return next((column for column in self.table.columns if column.name == name), None)

    def forbidden(self, role: str) -> tuple[str, ...]:
        """What a role that writes lacks."""
        return tuple(p for p in PRIVILEGES if p not in self.allowed.get(role, ()))


@dataclass(frozen=True, slots=True)
class SchemaFacts:
    may_create: bool
    owned: bool
    # The roles that write and may look into it.
    usable_by: frozenset[str]


@dataclass(frozen=True, slots=True)
class TargetDatabase:
    """As the connection's role sees it."""

    system_id: int
    database: str
    major: int
    role: str
    superuser: bool
    # CREATE on the database, which a new schema needs.
    can_create: bool
    # Those that exist.
    schemas: Mapping[str, SchemaFacts]
    tables: Mapping[TableName, TargetFacts]
    # Types that dimensions declare; None: there is no such type.
    types: Mapping[str, BaseType | None]
    # By aggregate; those that have begun, as far as the role may read it.
    progress: Mapping[str, Progress]
    # Of all of them.
    parked: tuple[ParkedKeys, ...] = ()
    # Of the targets: which aggregate keeps each, as far as the role may read it.
    keepers: Mapping[TableName, str] = field(default_factory=dict)
    # By aggregate, the tables that it keeps; so far as well.
    kept: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    # By aggregate; those that wait for a reset, so far as well.
    stops: Mapping[str, Stopped] = field(default_factory=dict)


def read_target_database(
    connection: psycopg.Connection,
    targets: Iterable[TableName],
    *,
    writers: Iterable[str] = (),
    types: Iterable[str] = (),
    aggregates: Collection[str] = (),
) -> TargetDatabase:
    """`writers` are roles that shall write there; the connection's own is always among them."""
    check_target_version(connection.info.server_version)
    targets = list(targets)
    names = [*BOOKKEEPING, *targets]
    roles = sorted({*writers, connection.info.user})
    with translated("read the target's catalog"), connection.cursor(row_factory=dict_row) as cursor:
        server = cursor.execute(_DATABASE).fetchone()
        if server is None:  # a SELECT without FROM always has one row
            raise RuntimeError("the server told nothing about itself")
        tables = read_target_tables(connection, names, roles)
        begun = aggregates if _may_read("progress", connection, tables) else ()
        waiting = aggregates if _may_read("parked", connection, tables) else ()
        knows_keepers = _may_read("targets", connection, tables)
        stopped = aggregates if _may_read("stops", connection, tables) else ()
        return TargetDatabase(
            **server,
            schemas=_read_schemas(cursor, {name.schema for name in names}, roles),
            tables=tables,
            types={text: _read_type(connection, text) for text in types},
            progress=_read_progress(connection, begun),
            parked=read_parked(connection, waiting) if waiting else (),
            keepers=read_keepers(connection, targets) if knows_keepers else {},
            kept=read_kept(connection, aggregates) if knows_keepers else {},
            stops={
                name: found
                for name in stopped
                if (found := read_stop(connection, name)) is not None
            },
        )


def read_target_tables(
    connection: psycopg.Connection, names: Iterable[TableName], roles: Iterable[str] = ()
) -> dict[TableName, TargetFacts]:
    """Those that exist; the pipeline reads them when it starts, for the types of their columns."""
    found = read_tables(connection, names)
    oids = [table.oid for table in found.values()]
    with connection.cursor(row_factory=dict_row) as cursor:
        keys: dict[int, list[UniqueKey]] = defaultdict(list)
        for row in cursor.execute(_KEYS, [oids]).fetchall():
            key = UniqueKey(row["name"], frozenset(row["columns"]), row["nulls_not_distinct"])
            keys[row["relation"]].append(key)
        wanted = {"oids": oids, "roles": list(roles), "privileges": list(PRIVILEGES)}
        allowed: dict[int, dict[str, frozenset[str]]] = defaultdict(dict)
        for row in cursor.execute(_ALLOWED, wanted).fetchall():
            allowed[row["relation"]][row["role"]] = frozenset(row["allowed"])
    return {
        name: TargetFacts(table, tuple(keys[table.oid]), allowed[table.oid])
        for name, table in found.items()
    }


def check_target_version(version_number: int) -> None:
    major = version_number // 10_000
    if major < OLDEST_TARGET_VERSION:
        raise ServerTooOld(
            f"the server of the targets is PostgreSQL {major}, which has no UNIQUE NULLS NOT "
            f"DISTINCT; targets need {OLDEST_TARGET_VERSION} or newer",
            remedy="Name a newer server in target_dsn of the aggregate",
            version_number=version_number,
        )


def _read_schemas(cursor: Any, names: set[str], roles: list[str]) -> dict[str, SchemaFacts]:
    rows = cursor.execute(_SCHEMAS, {"names": sorted(names), "roles": roles}).fetchall()
    return {
        row["name"]: SchemaFacts(row["may_create"], row["owned"], frozenset(row["usable_by"]))
        for row in rows
    }


def _read_type(connection: psycopg.Connection, text: str) -> BaseType | None:
    """What a text means as a type, below any domains."""
    try:
        known = connection.execute("SELECT to_regtype(%s)", [text]).fetchone()
        if known is None or known[0] is None:
            return None
        # The server has read the text as a type and nothing else.
        value = connection.execute(f"SELECT CAST(NULL AS {text})".encode())
    except psycopg.errors.DatabaseError as error:
        if error.sqlstate is None or error.sqlstate.startswith("57"):
            raise
        return None
    if value.pgresult is None:
        return None
    oid, modifier = value.pgresult.ftype(0), value.pgresult.fmod(0)
    with connection.cursor(row_factory=dict_row) as cursor:
        row = cursor.execute(_TYPE, {"oid": oid, "modifier": modifier}).fetchone()
    return BaseType(**row) if row else None


def _may_read(
    name: str, connection: psycopg.Connection, tables: Mapping[TableName, TargetFacts]
) -> bool:
    """One of our own tables is there, and is the role's to read."""
    ours = tables.get(TableName(SCHEMA, name))
    return ours is not None and "SELECT" not in ours.forbidden(connection.info.user)


def _read_progress(
    connection: psycopg.Connection, aggregates: Iterable[str]
) -> dict[str, Progress]:
    rows = (read_progress(connection, aggregate) for aggregate in aggregates)
    return {row.aggregate: row for row in rows if row is not None}


_DATABASE = """
SELECT (SELECT system_identifier FROM pg_control_system()) AS system_id,
       current_database() AS database,
       current_setting('server_version_num')::int / 10000 AS major,
       session_user AS role,
       (SELECT rolsuper FROM pg_roles WHERE rolname = session_user) AS superuser,
       has_database_privilege(current_database(), 'CREATE') AS can_create
"""

_SCHEMAS = """
SELECT n.nspname AS name, has_schema_privilege(n.oid, 'CREATE') AS may_create,
       pg_has_role(n.nspowner, 'USAGE') AS owned,
       ARRAY(SELECT r.rolname::text FROM pg_roles AS r
              WHERE r.rolname = ANY (%(roles)s) AND has_schema_privilege(r.oid, n.oid, 'USAGE')
       ) AS usable_by
  FROM pg_namespace AS n
 WHERE n.nspname = ANY (%(names)s)
"""

_KEYS = """
SELECT i.indrelid::bigint AS relation, c.relname AS name,
       i.indnullsnotdistinct AS nulls_not_distinct, array_agg(a.attname::text) AS columns
  FROM pg_index AS i
  JOIN pg_class AS c ON c.oid = i.indexrelid
 CROSS JOIN LATERAL unnest(i.indkey::int2[]) WITH ORDINALITY AS k (attnum, position)
  JOIN pg_attribute AS a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
 WHERE i.indrelid = ANY (%s::oid[])
   AND i.indisunique AND i.indimmediate AND i.indisvalid
   AND i.indpred IS NULL AND i.indexprs IS NULL AND k.position <= i.indnkeyatts
 GROUP BY i.indrelid, c.relname, i.indnullsnotdistinct
 ORDER BY i.indrelid, c.relname
"""

_ALLOWED = """
SELECT c.oid::bigint AS relation, r.rolname::text AS role,
       ARRAY(SELECT p FROM unnest(%(privileges)s::text[]) AS p
              WHERE has_table_privilege(r.oid, c.oid, p)) AS allowed
  FROM pg_class AS c
 CROSS JOIN pg_roles AS r
 WHERE c.oid = ANY (%(oids)s::oid[]) AND r.rolname = ANY (%(roles)s)
"""

_TYPE = """
SELECT t.typname::text AS name, format_type(t.oid, %(modifier)s) AS sql, %(modifier)s AS modifier,
       t.oid < 16384 AS builtin, t.typtype = 'e' AS is_enum, t.typcategory = 'A' AS is_array,
       (SELECT coalesce(max(char_length(e.enumlabel::text)), 0)
          FROM pg_enum AS e WHERE e.enumtypid = t.oid) AS label_chars
  FROM pg_type AS t
 WHERE t.oid = %(oid)s
"""
