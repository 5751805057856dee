"""Looks at a database: a connection in, a `Survey` out. Reads the catalog and the planner's
statistics, and no table as a whole: those without statistics are looked at in a sample, which the
server counts itself, so that no row value comes to us.
"""

from __future__ import annotations

import difflib
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql
from psycopg.rows import class_row, dict_row

from penstock.config import SourceConfig
from penstock.errors import NothingToCapture, TableMissing
from penstock.init.facts import Statistics, Survey, Surveyed
from penstock.names import TableName, fitted_name
from penstock.ops.facts import read_facts
from penstock.pipelines.bookkeeping import SCHEMA
from penstock.pipelines.inputs_checked import can_group
from penstock.postgres.catalog import check_version
from penstock.postgres.column_types import BaseType
from penstock.postgres.connect import connect
from penstock.postgres.failures import translated
from penstock.postgres.tables import TableFacts
from penstock.sections import Dsn

# The largest ones; a file with more is not read by anybody.
MAX_EXAMINED = 200
# Tables without statistics that are looked at in a sample, and how much of each.
_MAX_SAMPLED = 10
_SAMPLE_ROWS = 5_000
_SAMPLE_PAGES = 200
_SAMPLE_TIMEOUT_MS = 2_000
# Nothing is changed, and nobody waits long for us.
_OPTIONS = "-c default_transaction_read_only=on -c statement_timeout=30s -c lock_timeout=1s"


@dataclass(frozen=True, slots=True)
class _Listed:
    schema: str
    name: str
    rows: int
    target: bool

    @property
    def table(self) -> TableName:
        return TableName(self.schema, self.name)


def survey(dsn: Dsn, asked: Sequence[TableName] = ()) -> Survey:
    """Of the tables asked for, else of all that are the user's."""
    with connect(dsn, options=_OPTIONS) as connection:
        check_version(connection.info.server_version)
        with translated("look at the database"):
            return _survey(connection, asked)


def _survey(connection: psycopg.Connection, asked: Sequence[TableName]) -> Survey:
    with connection.cursor(row_factory=class_row(_Listed)) as cursor:
        listed = cursor.execute(_TABLES, {"ours": SCHEMA}).fetchall()
    found = {each.table: each for each in listed}
    names = list(dict.fromkeys(asked)) or list(found)[:MAX_EXAMINED]
    if not names:
        raise NothingToCapture(
            f'database "{connection.info.dbname}" has no tables',
            remedy="Make some first, or name another database in the connection string",
        )
    free_name = _free_name(connection)
    config = SourceConfig.model_validate(
        {
            "dsn": "-",  # we are connected
            "slot": free_name,
            "publication": free_name,
            "tables": [{"name": name} for name in names],
        }
    )
    facts = read_facts(connection, config)
    for name in asked:
        if name not in facts.tables:
            raise _missing(name, found, connection.info.dbname)
    tables = [facts.tables[name] for name in names if name in facts.tables]
    rows = {each.table: each.rows for each in listed}
    statistics = _statistics(connection, tables, rows)
    references = _references(connection, tables, rows)
    return Survey(
        facts,
        tuple(
            Surveyed(
                table,
                rows.get(table.name, 0),
                statistics[table.name],
                references[table.oid],
                not asked and found[table.name].target,
            )
            for table in tables
        ),
        others=() if asked else tuple(found)[MAX_EXAMINED:],
        free_name=free_name,
        creatable=frozenset(name for (name,) in connection.execute(_CREATABLE)),
        taken=frozenset(TableName(*pair) for pair in connection.execute(_TAKEN)),
    )


def _missing(name: TableName, found: Mapping[TableName, _Listed], database: str) -> TableMissing:
    close = difflib.get_close_matches(name.name, {each.name for each in found}, n=3)
    near = [str(each) for word in close for each in found if each.name == word][:3]
    remedy = "Correct --table; a name without a schema means public"
    if near:
        remedy = f"Did you mean {' or '.join(near)}?"
    return TableMissing(
        f'table {name} does not exist in database "{database}"', remedy=remedy, table=name
    )


def _free_name(connection: psycopg.Connection) -> str:
    """For slot and publication: a slot of that name may be another database's."""
    taken = {name for (name,) in connection.execute(_USED_NAMES)}
    plain = re.sub(r"[^a-z0-9]+", "_", connection.info.dbname.lower()).strip("_")
    wished = ["penstock", fitted_name("penstock_" + plain, "") if plain else "penstock"]
    numbered = (fitted_name(wished[-1], f"_{number}") for number in range(2, len(taken) + 3))
    return next(name for name in (*wished, *numbered) if name not in taken)


def _statistics(
    connection: psycopg.Connection, tables: Sequence[TableFacts], rows: Mapping[TableName, int]
) -> defaultdict[TableName, dict[str, Statistics]]:
    found: defaultdict[TableName, dict[str, Statistics]] = defaultdict(dict)
    partitioned = {table.name for table in tables if table.partitioned}
    names = {
        "schemas": [table.name.schema for table in tables],
        "names": [table.name.name for table in tables],
    }
    with connection.cursor(row_factory=dict_row) as cursor:
        for row in cursor.execute(_STATISTICS, names):
            name = TableName(row["schema"], row["name"])
            if row["inherited"] == (name in partitioned):
                share = row["n_distinct"]
                distinct = share if share >= 0 else -share * rows.get(name, 0)
                found[name][row["column"]] = Statistics(
                    distinct, row["null_frac"], row["avg_width"]
                )
    unknown = [table for table in tables if table.name not in found]
    for table in unknown[:_MAX_SAMPLED]:
        found[table.name] = _sampled(connection, table, rows.get(table.name, 0))
    return found


def _sampled(connection: psycopg.Connection, table: TableFacts, rows: int) -> dict[str, Statistics]:
    """Nothing, if the table is locked, may not be read, or is too slow."""
    columns = [
        column.name
        for column in table.columns
        if can_group(column) and column.generated != "virtual"
    ]
    try:
        with connection.transaction():
            connection.execute(f"SET LOCAL statement_timeout = {_SAMPLE_TIMEOUT_MS}".encode())
            pages = connection.execute(_PAGES, [table.oid]).fetchone()
            share = min(100.0, 100.0 * _SAMPLE_PAGES / max(pages[0] if pages else 0, 1))
            query = _sample_query(table.name, columns)
            counts = connection.execute(query, [share, _SAMPLE_ROWS]).fetchone()
    except psycopg.Error:
        if connection.broken:
            raise
        return {}
    if not columns or counts is None or counts[0] == 0:
        return {}
    return dict(_from_sample(columns, counts, rows))


def _sample_query(table: TableName, columns: Sequence[str]) -> sql.Composed:
    name = sql.Identifier(table.schema, table.name)
    counted = (
        sql.SQL(", count(DISTINCT {0}), count({0}), avg(pg_column_size({0}))").format(
            sql.Identifier(column)
        )
        for column in columns
    )
    return sql.SQL(
        "SELECT count(*){} FROM (SELECT * FROM {} TABLESAMPLE SYSTEM (%s) LIMIT %s) AS s"
    ).format(sql.SQL("").join(counted), name)


def _from_sample(
    columns: Sequence[str], counts: Sequence[Any], rows: int
) -> Iterator[tuple[str, Statistics]]:
    seen = counts[0]
    for column, place in zip(columns, range(1, len(counts), 3), strict=True):
        distinct, filled, width = counts[place : place + 3]
        if distinct * 2 > filled:  # many occur once, and there are more of them
            distinct *= max(rows / seen, 1)
        yield column, Statistics(distinct, 1 - filled / seen, float(width or 0))


def _references(
    connection: psycopg.Connection, tables: Sequence[TableFacts], rows: Mapping[TableName, int]
) -> defaultdict[int, dict[str, int]]:
    """Foreign keys of one column, and columns that are called like another table's key."""
    found: defaultdict[int, dict[str, int]] = defaultdict(dict)
    keys: dict[tuple[str, BaseType], TableName] = {}
    for table in tables:
        key = table.primary_key.columns if table.primary_key else ()
        for column in table.columns:
            if (column.name,) == key != ("id",):
                keys.setdefault((column.name, column.base), table.name)
    for table in tables:
        for column in table.columns:
            owner = keys.get((column.name, column.base), table.name)
            if owner != table.name:
                found[table.oid][column.name] = rows.get(owner, 0)
    parameters = [[table.oid for table in tables]]
    for oid, column, schema, name in connection.execute(_FOREIGN_KEYS, parameters):
        found[oid][column] = rows.get(TableName(schema, name), 0)
    return found


# Not a partition, for its root stands for it; nor a table that came with an extension. How many
# rows there are is known to the planner since the last ANALYZE, and to the counters of changes;
# neither waits for a lock.
_TABLES = r"""
WITH counted AS (
    SELECT oid, relkind, relnamespace, relname, relispartition, relpersistence,
           greatest(reltuples::bigint, pg_stat_get_live_tuples(oid), 0) AS rows
      FROM pg_class
     WHERE relkind IN ('r', 'p') AND oid >= 16384
)
SELECT n.nspname::text AS schema, c.relname::text AS name,
       CASE WHEN c.relkind = 'r' THEN c.rows ELSE greatest(c.rows, (
           SELECT sum(leaf.rows)
             FROM pg_partition_tree(c.oid) AS tree
             JOIN counted AS leaf ON leaf.oid = tree.relid AND tree.isleaf
       )) END::bigint AS rows,
       EXISTS (
           SELECT FROM pg_constraint AS k
            WHERE k.conrelid = c.oid AND k.contype = 'u'
              AND k.conname ~ '_dimensions_key$'
              AND starts_with(c.relname, left(k.conname, -length('_dimensions_key')))
       ) AS target
  FROM counted AS c
  JOIN pg_namespace AS n ON n.oid = c.relnamespace
 WHERE NOT c.relispartition AND c.relpersistence <> 't'
   AND n.nspname !~ '^pg_' AND n.nspname NOT IN ('information_schema', %(ours)s)
   AND NOT EXISTS (
       SELECT FROM pg_depend AS d
        WHERE d.classid = 'pg_class'::regclass AND d.objid = c.oid AND d.deptype = 'e'
   )
 ORDER BY rows DESC, schema, name
"""

_USED_NAMES = """
SELECT slot_name::text FROM pg_replication_slots
UNION SELECT pubname::text FROM pg_publication
"""

_STATISTICS = """
SELECT s.schemaname::text AS schema, s.tablename::text AS name, s.attname::text AS column,
       s.inherited, s.n_distinct::float8, s.null_frac::float8, s.avg_width
  FROM unnest(%(schemas)s::text[], %(names)s::text[]) AS w (schema, name)
  JOIN pg_stats AS s ON s.schemaname = w.schema AND s.tablename = w.name
"""

_PAGES = """
SELECT ((pg_relation_size(t.oid) + coalesce(sum(pg_relation_size(leaf.relid)), 0))
        / current_setting('block_size')::int)::bigint
  FROM (SELECT %s::oid AS oid) AS t
  LEFT JOIN pg_partition_tree(t.oid::regclass) AS leaf ON leaf.isleaf AND leaf.relid <> t.oid
 GROUP BY t.oid
"""

_FOREIGN_KEYS = """
SELECT k.conrelid::bigint, a.attname::text, n.nspname::text, c.relname::text
  FROM pg_constraint AS k
  JOIN pg_attribute AS a ON a.attrelid = k.conrelid AND a.attnum = k.conkey[1]
  JOIN pg_class AS c ON c.oid = k.confrelid
  JOIN pg_namespace AS n ON n.oid = c.relnamespace
 WHERE k.contype = 'f' AND cardinality(k.conkey) = 1 AND k.conrelid = ANY (%s::oid[])
"""

_CREATABLE = """
SELECT nspname::text FROM pg_namespace
 WHERE has_schema_privilege(oid, 'USAGE') AND has_schema_privilege(oid, 'CREATE')
   AND nspname !~ '^pg_' AND nspname <> 'information_schema'
"""

# Tables, indexes and types of one schema share their names. Ours end in one of these.
_TAKEN = r"""
SELECT n.nspname::text, taken.name
  FROM (SELECT relnamespace, relname::text FROM pg_class
        UNION SELECT typnamespace, typname::text FROM pg_type) AS taken (schema, name)
  JOIN pg_namespace AS n ON n.oid = taken.schema
 WHERE taken.name ~ '(_counts(_\d+)?|_dimensions_key)$'
"""
