"""What is published: `PublicationFacts` of our publication and of every other one that touches
our tables, for the server checks an UPDATE against all of them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import psycopg
from psycopg.rows import dict_row

from penstock.names import TableName, quote
from penstock.postgres.tables import TableFacts
from penstock.printed_sql import PrintedSql, SqlKind, printed

# The comment on a publication that set-up made; tear-down drops only one that carries it.
MARK = "Made by Penstock"

Operation = Literal["insert", "update", "delete", "truncate"]
OPERATIONS: tuple[Operation, ...] = ("insert", "update", "delete", "truncate")


def has_publication(connection: psycopg.Connection, name: str) -> bool:
    """Whether there is a publication of that name."""
    query = "SELECT 1 FROM pg_catalog.pg_publication WHERE pubname = %s"
    return connection.execute(query, [name]).fetchone() is not None


@dataclass(frozen=True, slots=True)
class PublishedTable:
    """A table named in a publication, with its filters (PostgreSQL 15 and newer)."""

    name: TableName
    row_filter: str | None = None
    filter_columns: tuple[str, ...] = ()
    # None: all columns.
    columns: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class PublicationFacts:
    name: str
    owner: str
    owned: bool
    all_tables: bool
    schemas: tuple[str, ...]
    tables: tuple[PublishedTable, ...]
    operations: frozenset[Operation]
    via_root: bool
    # Stored generated columns are sent; the option exists from 18 on.
    generated_columns: bool
    comment: str | None
    owner_superuser: bool = False

    @property
    def ours(self) -> bool:
        return (self.comment or "").startswith(MARK)

    def entry(self, table: TableFacts) -> PublishedTable | None:
        """How the table is held: by its own name, an ancestor's, or as one of all."""
        # With publish_via_partition_root the topmost published ancestor's filters count.
        nearest_first = (table.name, *table.ancestors)
        for name in reversed(nearest_first) if self.via_root else nearest_first:
            for published in self.tables:
                if published.name == name:
                    return published
        if self.all_tables or any(name.schema in self.schemas for name in nearest_first):
            return PublishedTable(table.name)
        return None

    def sent_under(self, table: TableFacts) -> TableName | None:
        """The name that changes of a published table carry; None: those of its partitions."""
        if not self.via_root:
            return None if table.partitioned else table.name
        named = {published.name for published in self.tables}
        for name in reversed(table.ancestors):
            if self.all_tables or name.schema in self.schemas or name in named:
                return name
        return table.name


def listed(table: TableFacts) -> str:
    """The table in a list of those to publish."""
    # Children by inheritance have identities of their own, which nobody asked us to look after.
    return f"ONLY {table.name.sql}" if table.has_children else table.name.sql


def publish_operations(publication: PublicationFacts) -> PrintedSql:
    setting = f"publish = '{', '.join(OPERATIONS)}'"
    return printed(
        SqlKind.PUBLISH_OPERATIONS, f"ALTER PUBLICATION {quote(publication.name)} SET ({setting})"
    )


def publish_via_root(publication: PublicationFacts) -> PrintedSql:
    name = quote(publication.name)
    return printed(
        SqlKind.PUBLISH_VIA_ROOT,
        f"ALTER PUBLICATION {name} SET (publish_via_partition_root = true)",
    )


def publish_generated(publication: str) -> PrintedSql:
    return printed(
        SqlKind.PUBLISH_GENERATED,
        f"ALTER PUBLICATION {quote(publication)} SET (publish_generated_columns = stored)",
    )


def publish_again(
    kind: SqlKind, publication: PublicationFacts, table: TableName, how: str = ""
) -> PrintedSql:
    """Another column list or row filter; in one transaction, so that no change goes unpublished."""
    name = quote(publication.name)
    return printed(
        kind,
        "BEGIN",
        f"ALTER PUBLICATION {name} DROP TABLE {table.sql}",
        f"ALTER PUBLICATION {name} ADD TABLE {table.sql}{how}",
        "COMMIT",
    )


def read_publications(
    connection: psycopg.Connection, name: str, tables: Iterable[TableFacts]
) -> dict[str, PublicationFacts]:
    """The publication of that name, and all others that hold one of the tables."""
    filtered = connection.info.server_version >= 150_000
    names = _all_names(tables)
    parameters = {
        "name": name,
        "schemas": [n.schema for n in names],
        "names": [n.name for n in names],
    }
    with connection.cursor(row_factory=dict_row) as cursor:
        rows = cursor.execute(_TABLES if filtered else _TABLES_14, parameters).fetchall()
        held = defaultdict(list)
        for row in rows:
            held[row["publication"]].append(
                PublishedTable(
                    TableName(row["schema"], row["table"]),
                    row["row_filter"],
                    tuple(row["filter_columns"]),
                    None if row["columns"] is None else tuple(row["columns"]),
                )
            )
        publications = cursor.execute(_PUBLICATIONS if filtered else _PUBLICATIONS_14).fetchall()
    touched_schemas = {n.schema for n in names}
    return {
        row["name"]: PublicationFacts(
            name=row["name"],
            owner=row["owner"],
            owned=row["owned"],
            all_tables=row["all_tables"],
            schemas=tuple(row["schemas"]),
            tables=tuple(held[row["name"]]),
            operations=frozenset(operation for operation in OPERATIONS if row[operation]),
            via_root=row["via_root"],
            generated_columns=row["generated_columns"] == "s",
            comment=row["comment"],
            owner_superuser=row["owner_superuser"],
        )
        for row in publications
        if row["name"] == name
        or row["all_tables"]
        or row["name"] in held
        or touched_schemas & set(row["schemas"])
    }


def _all_names(tables: Iterable[TableFacts]) -> list[TableName]:
    names: dict[TableName, None] = {}
    for table in tables:
        for one in (table, *table.leaves):
            names.update(dict.fromkeys((one.name, *one.ancestors)))
    return list(names)


# to_jsonb, for the column pubgencols exists from 18 on only.
_PUBLICATIONS = """
SELECT p.pubname AS name, pg_get_userbyid(p.pubowner) AS owner,
       pg_has_role(p.pubowner, 'USAGE') AS owned, p.puballtables AS all_tables,
       EXISTS (SELECT FROM pg_roles WHERE oid = p.pubowner AND rolsuper) AS owner_superuser,
       p.pubinsert AS insert, p.pubupdate AS update, p.pubdelete AS delete,
       p.pubtruncate AS truncate, p.pubviaroot AS via_root,
       to_jsonb(p) ->> 'pubgencols' AS generated_columns,
       obj_description(p.oid, 'pg_publication') AS comment,
       ARRAY(
           SELECT n.nspname::text
             FROM pg_publication_namespace AS s JOIN pg_namespace AS n ON n.oid = s.pnnspid
            WHERE s.pnpubid = p.oid
            ORDER BY 1
       ) AS schemas
  FROM pg_publication AS p
"""
_PUBLICATIONS_14 = """
SELECT p.pubname AS name, pg_get_userbyid(p.pubowner) AS owner,
       pg_has_role(p.pubowner, 'USAGE') AS owned, p.puballtables AS all_tables,
       EXISTS (SELECT FROM pg_roles WHERE oid = p.pubowner AND rolsuper) AS owner_superuser,
       p.pubinsert AS insert, p.pubupdate AS update, p.pubdelete AS delete,
       p.pubtruncate AS truncate, p.pubviaroot AS via_root, NULL AS generated_columns,
       obj_description(p.oid, 'pg_publication') AS comment, ARRAY[]::text[] AS schemas
  FROM pg_publication AS p
"""

# The columns of a row filter are in its dependencies: no need to read the expression.
_TABLES = r"""
SELECT p.pubname AS publication, n.nspname AS schema, c.relname AS table,
       pg_get_expr(r.prqual, r.prrelid) AS row_filter,
       ARRAY(
           -- The stored expression names its columns by number.
           SELECT a.attname::text FROM pg_attribute AS a
            WHERE a.attrelid = r.prrelid
              AND a.attnum IN (
                  SELECT (regexp_matches(r.prqual::text, ':varattno (\d+)', 'g'))[1]::int2)
            ORDER BY a.attnum
       ) AS filter_columns,
       CASE WHEN r.prattrs IS NOT NULL THEN ARRAY(
           SELECT a.attname::text FROM pg_attribute AS a
            WHERE a.attrelid = r.prrelid AND a.attnum = ANY (r.prattrs::int2[])
            ORDER BY a.attnum
       ) END AS columns
  FROM pg_publication AS p
  JOIN pg_publication_rel AS r ON r.prpubid = p.oid
  JOIN pg_class AS c ON c.oid = r.prrelid
  JOIN pg_namespace AS n ON n.oid = c.relnamespace
 WHERE p.pubname = %(name)s
    OR (n.nspname, c.relname) IN (SELECT * FROM unnest(%(schemas)s::name[], %(names)s::name[]))
 ORDER BY 1, 2, 3
"""
_TABLES_14 = """
SELECT p.pubname AS publication, n.nspname AS schema, c.relname AS table,
       NULL AS row_filter, ARRAY[]::text[] AS filter_columns, NULL AS columns
  FROM pg_publication AS p
  JOIN pg_publication_rel AS r ON r.prpubid = p.oid
  JOIN pg_class AS c ON c.oid = r.prrelid
  JOIN pg_namespace AS n ON n.oid = c.relnamespace
 WHERE p.pubname = %(name)s
    OR (n.nspname, c.relname) IN (SELECT * FROM unnest(%(schemas)s::name[], %(names)s::name[]))
 ORDER BY 1, 2, 3
"""
