"""What tells a table, and the values in it, from others under the same name.

A table that is dropped and made again, or swapped with another, has another oid. `ALTER COLUMN …
TYPE … USING` gives the rows other values without a change in the WAL: it rewrites the table, so
that its file is another, and the column's row in `pg_attribute` is a new one, with another `xmin`.
VACUUM FULL, CLUSTER and TRUNCATE make another file only; SET NOT NULL or a default write the
column's row only. A renamed label keeps its oid in `pg_enum`.

Tried on 15 and 18. Some rows in `pg_attribute` are written with any rewrite, so that it looks like
one of those columns: columns that were added with a default and not rewritten since, and on 15 the
columns behind an altered one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg.rows import dict_row

from penstock.names import TableName
from penstock.postgres.tables import TableFacts


@dataclass(frozen=True, slots=True)
class ColumnMark:
    """A column of a table: which one, and its type."""

    number: int
    # As SQL, and the base type's name below any domains.
    type: str
    base: str
    # Of an enum: oid as text → label.
    labels: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class FileMark:
    """The file of a table or of one partition, and who wrote the columns' rows in the catalog."""

    file: int
    written: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class TableMark:
    oid: int
    columns: Mapping[str, ColumnMark]
    # By oid as text: of the table itself, or of its partitions.
    files: Mapping[str, FileMark]


def read_marks(
    connection: psycopg.Connection[Any], tables: Iterable[TableFacts], columns: Iterable[str]
) -> dict[TableName, TableMark]:
    """The marks of tables, as far as columns have one of these names."""
    tables = list(tables)
    oids = [part.oid for table in tables for part in (table, *table.leaves)]
    with connection.cursor(row_factory=dict_row) as cursor:
        files = {row["oid"]: row["file"] for row in cursor.execute(_FILES, [oids])}
        found: dict[int, dict[str, dict[str, Any]]] = defaultdict(dict)
        for row in cursor.execute(_COLUMNS, [oids, list(columns)]):
            found[row["relation"]][row["name"]] = row
    return {
        table.name: TableMark(
            table.oid,
            {
                name: ColumnMark(row["number"], row["type"], row["base"], row["labels"])
                for name, row in found[table.oid].items()
            },
            {
                str(part.oid): FileMark(
                    files[part.oid],
                    {name: row["written"] for name, row in found[part.oid].items()},
                )
                for part in (table, *table.leaves)
                if files.get(part.oid)
            },
        )
        for table in tables
    }


# A partitioned table has none (0), nor has a foreign one. pg_relation_filenode() would read the
# present, and not the snapshot that the columns are read with.
_FILES = """
SELECT oid::bigint, relfilenode::bigint AS file
  FROM pg_class
 WHERE oid = ANY (%s::oid[])
"""

_COLUMNS = """
SELECT a.attrelid::bigint AS relation, a.attname::text AS name, a.attnum AS number,
       format_type(a.atttypid, a.atttypmod) AS type, a.xmin::text AS written,
       base.name AS base,
       coalesce((SELECT jsonb_object_agg(e.oid::text, e.enumlabel)
                   FROM pg_enum AS e WHERE e.enumtypid = base.oid), '{}') AS labels
  FROM pg_attribute AS a
 CROSS JOIN LATERAL (
    -- Through domains over domains.
    WITH RECURSIVE under AS (
        SELECT a.atttypid AS oid
        UNION ALL
        SELECT t.typbasetype FROM under JOIN pg_type AS t ON t.oid = under.oid AND t.typtype = 'd'
    )
    SELECT t.oid, t.typname::text AS name
      FROM under JOIN pg_type AS t ON t.oid = under.oid AND t.typtype <> 'd'
 ) AS base
 WHERE a.attrelid = ANY (%s::oid[]) AND a.attname = ANY (%s) AND a.attnum > 0
   AND NOT a.attisdropped
"""
