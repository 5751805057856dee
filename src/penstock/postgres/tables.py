"""What the tables are: names in, `TableFacts` out, in three queries however many tables there are.

The replica identity is what matters here: it decides which old values reach the WAL. For a
partitioned table each leaf's own identity counts, so leaves come with their root.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import psycopg
from psycopg.rows import dict_row

from penstock.names import TableName
from penstock.postgres.column_types import BaseType
from penstock.printed_sql import PrintedSql, SqlKind, printed

Identity = Literal["default", "nothing", "full", "index"]
Generated = Literal["", "stored", "virtual"]
ColumnIdentity = Literal["", "always", "by default"]

_IDENTITY: dict[str, Identity] = {"d": "default", "n": "nothing", "f": "full", "i": "index"}
_GENERATED: dict[str, Generated] = {"": "", "s": "stored", "v": "virtual"}
_COLUMN_IDENTITY: dict[str, ColumnIdentity] = {"": "", "a": "always", "d": "by default"}
_KIND = {
    "r": "table",
    "p": "partitioned table",
    "v": "view",
    "m": "materialized view",
    "f": "foreign table",
    "S": "sequence",
}
# Below are the objects that `initdb` makes: pg_catalog and information_schema.
_FIRST_NORMAL_OID = 16_384
_PERSISTENCE = {"p": "permanent", "u": "unlogged", "t": "temporary"}


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    type: str
    not_null: bool
    generated: Generated
    base: BaseType
    # The expression, if there is one.
    default: str | None = None
    # Its values come from the server: "" no, "always", "by default".
    identity: ColumnIdentity = ""
    # Equal only if the same; False: its collation holds some that differ for equal.
    exact: bool = True
    # It was added with a default, which rows from before have without having been written.
    prefilled: bool = False
    # CHECK constraints of this column alone, as the server prints them.
    checks: tuple[str, ...] = ()

    @property
    def is_domain(self) -> bool:
        return self.base.builtin and self.type != self.base.sql


@dataclass(frozen=True, slots=True)
class Index:
    """A unique index that the server accepts as a replica identity; its key columns in order."""

    name: str
    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TableFacts:
    """One table, or one leaf of a partitioned table."""

    name: TableName
    oid: int
    # "table", "partitioned table", "view", …
    kind: str
    # "permanent", "unlogged", "temporary"
    persistence: str
    owner: str
    # The role that asked has the owner's rights.
    owned: bool
    columns: tuple[Column, ...]
    # None also when it is deferrable: the server does not take it as an identity then.
    primary_key: Index | None
    identity: Identity
    identity_index: Index | None
    # Unique, immediate, neither partial nor with expressions nor with nullable columns; by name.
    candidates: tuple[Index, ...]
    # Nearest first; not empty only for a partition.
    ancestors: tuple[TableName, ...] = ()
    leaves: tuple[TableFacts, ...] = ()
    # Has children by inheritance (not partitions), which a publication would take along.
    has_children: bool = False
    # Nobody should be granted the owner's role then.
    owner_superuser: bool = False
    # The names of all indexes, also of invalid ones.
    index_names: frozenset[str] = frozenset()

    @property
    def partitioned(self) -> bool:
        return self.kind == "partitioned table"

    @property
    def publishable(self) -> bool:
        return (
            self.kind in {"table", "partitioned table"}
            and self.persistence == "permanent"
            and not self.system
        )

    @property
    def spelled_kind(self) -> str:
        """With what keeps it from being published."""
        if self.system or self.persistence != "permanent":
            return f"{'system' if self.system else self.persistence} {self.kind}"
        return self.kind

    @property
    def system(self) -> bool:
        return self.oid < _FIRST_NORMAL_OID

    @property
    def identity_columns(self) -> tuple[str, ...]:
        """The columns whose old values reach the WAL; empty: UPDATE and DELETE cannot be sent."""
        match self.identity:
            case "full":
                return tuple(c.name for c in self.columns if c.generated != "virtual")
            case "default":
                return self.primary_key.columns if self.primary_key else ()
            case "index":
                return self.identity_index.columns if self.identity_index else ()
            case "nothing":
                return ()

    def generated(self, kind: Generated) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns if column.generated == kind)


def set_logged(table: TableName) -> PrintedSql:
    return printed(SqlKind.SET_LOGGED, f"ALTER TABLE {table.sql} SET LOGGED")


def read_tables(
    connection: psycopg.Connection, names: Iterable[TableName]
) -> dict[TableName, TableFacts]:
    """The tables that exist among those names."""
    wanted = list(dict.fromkeys(names))
    parameters = {"schemas": [n.schema for n in wanted], "names": [n.name for n in wanted]}
    with connection.cursor(row_factory=dict_row) as cursor:
        relations = cursor.execute(_RELATIONS, parameters).fetchall()
        oids = [relation["oid"] for relation in relations]
        columns = _by_relation(cursor.execute(_COLUMNS, [oids]).fetchall())
        indexes = _by_relation(cursor.execute(_INDEXES, [oids]).fetchall())

    facts: dict[int, TableFacts] = {}
    leaves: dict[int, list[TableFacts]] = defaultdict(list)
    # Leaves first, so that each root finds its own complete.
    for relation in sorted(relations, key=lambda row: row["root"] is None):
        oid = relation["oid"]
        table = _table(relation, columns[oid], indexes[oid], tuple(leaves[oid]))
        if relation["root"] is None:
            facts[oid] = table
        else:
            leaves[relation["root"]].append(table)
    return {table.name: table for table in facts.values()}


def _by_relation(rows: list[dict[str, Any]]) -> defaultdict[int, list[dict[str, Any]]]:
    grouped: defaultdict[int, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        grouped[row["relation"]].append(row)
    return grouped


def _table(
    relation: dict[str, Any],
    columns: list[dict[str, Any]],
    indexes: list[dict[str, Any]],
    leaves: tuple[TableFacts, ...],
) -> TableFacts:
    usable = {row["name"]: Index(row["name"], tuple(row["columns"])) for row in indexes}

    def first(flag: str) -> Index | None:
        return next((usable[row["name"]] for row in indexes if row[flag]), None)

    return TableFacts(
        name=TableName(relation["schema"], relation["name"]),
        oid=relation["oid"],
        kind=_KIND.get(relation["kind"], "relation"),
        persistence=_PERSISTENCE[relation["persistence"]],
        owner=relation["owner"],
        owned=relation["owned"],
        columns=tuple(map(_column, columns)),
        primary_key=first("is_primary"),
        identity=_IDENTITY[relation["identity"]],
        identity_index=first("is_identity"),
        candidates=tuple(usable.values()),
        ancestors=tuple(TableName(*pair) for pair in relation["ancestors"]),
        leaves=leaves,
        has_children=relation["has_children"],
        owner_superuser=relation["owner_superuser"],
        index_names=frozenset(relation["index_names"]),
    )


def _column(row: dict[str, Any]) -> Column:
    base = BaseType(
        name=row["base_name"],
        sql=row["base_sql"],
        modifier=row["base_modifier"],
        builtin=row["builtin"],
        is_enum=row["is_enum"],
        label_chars=row["label_chars"],
        is_array=row["is_array"],
    )
    return Column(
        row["name"],
        row["type"],
        row["not_null"],
        _GENERATED[row["generated"]],
        base,
        default=row["default"],
        identity=_COLUMN_IDENTITY[row["identity"]],
        exact=row["exact"],
        prefilled=row["prefilled"],
        checks=tuple(row["checks"]),
    )


# One row per table asked for (root is NULL), and one per leaf below it.
_RELATIONS = """
WITH RECURSIVE wanted AS (
    SELECT c.oid
      FROM unnest(%(schemas)s::text[], %(names)s::text[]) AS w (schema, name)
      JOIN pg_namespace AS n ON n.nspname = w.schema
      JOIN pg_class AS c ON c.relnamespace = n.oid AND c.relname = w.name
     WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f', 'S')
), tree AS (
    SELECT oid, oid AS root FROM wanted
    UNION ALL
    SELECT i.inhrelid, tree.root
      FROM tree
      JOIN pg_inherits AS i ON i.inhparent = tree.oid
      JOIN pg_class AS c ON c.oid = i.inhrelid AND c.relispartition
)
SELECT c.oid::bigint, n.nspname AS schema, c.relname AS name,
       c.relkind::text AS kind, c.relpersistence::text AS persistence,
       c.relreplident::text AS identity, c.relkind = 'r' AND c.relhassubclass AS has_children,
       pg_get_userbyid(c.relowner) AS owner, pg_has_role(c.relowner, 'USAGE') AS owned,
       EXISTS (SELECT FROM pg_roles WHERE oid = c.relowner AND rolsuper) AS owner_superuser,
       CASE WHEN tree.oid <> tree.root THEN tree.root::bigint END AS root,
       ARRAY(
           SELECT ARRAY[an.nspname::text, ac.relname::text]
             FROM pg_partition_ancestors(c.oid) WITH ORDINALITY AS a (relid, position)
             JOIN pg_class AS ac ON ac.oid = a.relid
             JOIN pg_namespace AS an ON an.oid = ac.relnamespace
            WHERE a.relid <> c.oid
            ORDER BY a.position
       ) AS ancestors,
       ARRAY(
           SELECT x.relname::text
             FROM pg_index AS i JOIN pg_class AS x ON x.oid = i.indexrelid
            WHERE i.indrelid = c.oid
       ) AS index_names
  FROM tree
  JOIN pg_class AS c ON c.oid = tree.oid
  JOIN pg_namespace AS n ON n.oid = c.relnamespace
 WHERE tree.oid = tree.root OR c.relkind <> 'p'
 ORDER BY schema, name
"""

_COLUMNS = """
SELECT a.attrelid::bigint AS relation, a.attname AS name,
       format_type(a.atttypid, a.atttypmod) AS type,
       -- PostgreSQL 18 has constraints that do not hold for rows from before: NOT VALID.
       a.attnotnull AND NOT EXISTS (
           SELECT FROM pg_constraint AS n
            WHERE n.conrelid = a.attrelid AND n.contype = 'n' AND NOT n.convalidated
              AND n.conkey = ARRAY[a.attnum]
       ) AS not_null, a.attgenerated::text AS generated,
       a.attidentity::text AS identity,
       CASE WHEN a.attgenerated = '' THEN pg_get_expr(d.adbin, d.adrelid) END AS default,
       coalesce(l.collisdeterministic, true) AS exact, a.atthasmissing AS prefilled,
       ARRAY(
           SELECT pg_get_constraintdef(k.oid)
             FROM pg_constraint AS k
            WHERE k.conrelid = a.attrelid AND k.contype = 'c' AND k.conkey = ARRAY[a.attnum]
            ORDER BY k.conname
       ) AS checks,
       base.name AS base_name, base.modifier AS base_modifier, base.builtin, base.is_enum,
       base.label_chars, base.is_array, base.sql AS base_sql
  FROM pg_attribute AS a
  LEFT JOIN pg_attrdef AS d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
  LEFT JOIN pg_collation AS l ON l.oid = a.attcollation
 CROSS JOIN LATERAL (
    -- Through domains over domains.
    WITH RECURSIVE under AS (
        SELECT a.atttypid AS oid, a.atttypmod AS modifier
        UNION ALL
        SELECT t.typbasetype, t.typtypmod
          FROM under JOIN pg_type AS t ON t.oid = under.oid AND t.typtype = 'd'
    )
    SELECT t.typname::text AS name, under.modifier, t.oid < 16384 AS builtin,
           t.typtype = 'e' AS is_enum, t.typcategory = 'A' AS is_array,
           (SELECT coalesce(max(char_length(e.enumlabel::text)), 0)
              FROM pg_enum AS e WHERE e.enumtypid = t.oid) AS label_chars,
           -- A user's type may be outside of the search path.
           CASE WHEN t.oid < 16384 OR under.modifier >= 0 OR t.typcategory = 'A'
                THEN format_type(t.oid, under.modifier)
                ELSE format('%%I.%%I', n.nspname, t.typname) END AS sql
      FROM under
      JOIN pg_type AS t ON t.oid = under.oid AND t.typtype <> 'd'
      JOIN pg_namespace AS n ON n.oid = t.typnamespace
 ) AS base
 WHERE a.attrelid = ANY (%s::oid[]) AND a.attnum > 0 AND NOT a.attisdropped
 ORDER BY a.attrelid, a.attnum
"""

# INCLUDEd columns come after the key's and are not part of an identity.
_INDEXES = """
SELECT i.indrelid::bigint AS relation, c.relname AS name,
       i.indisprimary AS is_primary, i.indisreplident AS is_identity,
       array_agg(a.attname::text ORDER BY k.position) AS columns
  FROM pg_index AS i
  JOIN pg_class AS c ON c.oid = i.indexrelid
 CROSS JOIN LATERAL unnest(i.indkey::int2[]) WITH ORDINALITY AS k (attnum, position)
  JOIN pg_attribute AS a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
 WHERE i.indrelid = ANY (%s::oid[])
   AND i.indisunique AND i.indimmediate AND i.indisvalid
   AND i.indpred IS NULL AND i.indexprs IS NULL AND k.position <= i.indnkeyatts
 GROUP BY i.indrelid, c.relname, i.indisprimary, i.indisreplident
HAVING bool_and(a.attnotnull)
 ORDER BY i.indrelid, c.relname
"""
