"""Ranges of pages in which a table, or all partitions of one, can be read one after the other."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import Any

import psycopg
from psycopg import sql

from penstock.names import TableName

# Long beside what a statement costs. And little memory, for a page has at most 291 rows.
_PAGES_AT_ONCE = 512
_LEAVES = """
SELECT c.oid::bigint, pg_relation_size(c.oid) / current_setting('block_size')::bigint,
       coalesce(a.amname = 'heap', false) AND has_column_privilege(%(table)s, 'ctid', 'SELECT')
  FROM pg_class AS c LEFT JOIN pg_am AS a ON a.oid = c.relam
 WHERE c.relkind <> 'p'
   AND (c.oid = %(table)s::regclass
        OR c.oid IN (SELECT relid FROM pg_partition_tree(%(table)s::regclass)))
"""


def leaf_pages(connection: psycopg.Connection[Any], table: TableName) -> dict[int, int]:
    """How many pages a table has, or each of its partitions, by oid. Nothing at all where the role
    may not ask for pages, or rows are not stored so that those of a page are found by it.
    """
    found = connection.execute(_LEAVES, {"table": table.sql}).fetchall()
    if not all(by_page for *_, by_page in found):
        return {}
    return {oid: pages for oid, pages, _ in found}


def page_bounds(sizes: Iterable[int]) -> list[int]:
    """Where ranges of pages begin that are read of tables of these sizes together.

    >>> page_bounds([1200]), page_bounds([1200, 300, 0]), page_bounds([0])
    ([0, 512, 1024], [0, 256, 512, 1024], [0])
    """
    ordered = sorted(sizes)
    bounds, page = [0], 0
    while (larger := len(ordered) - bisect_right(ordered, page)) > 0:
        page += max(_PAGES_AT_ONCE // larger, 1)
        bounds.append(page)
    return bounds[:-1] or bounds


def in_pages(first: int, end: int | None) -> sql.Composable:
    """The condition; without an end, all that come after the first."""
    condition = sql.SQL("ctid >= {}").format(sql.Literal(f"({first},0)"))
    if end is None:
        return condition
    return condition + sql.SQL(" AND ctid < {}").format(sql.Literal(f"({end},0)"))
