"""Columns of many rows at one go: the server puts the values of each one behind the other.

Row by row, a client takes longer to take rows than the server takes to make them. One value for
each column of a hundred thousand rows costs next to nothing, and numbers and moments need not be
printed and read again.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, LiteralString

import psycopg
from psycopg import sql

from penstock.names import TableName
from penstock.postgres.column_types import BaseType

# Long beside what a statement costs. And little memory, for a page has at most 291 rows, and what
# is packed of one is limited: values may be stored in a fraction of their size, or not in the page.
_PAGES_AT_ONCE = 512
_MOST_OCTETS = 256
# Until the transaction ends: a range is found without the others, and read in one order.
_SETTINGS = {"enable_tidscan": "on", "max_parallel_workers_per_gather": "0", "jit": "off"}
# As the log has it: a cast to text takes blanks off a char(n), and adds a mask to an inet.
PRINTED: LiteralString = "CASE WHEN {0} IS NOT NULL THEN format('%s', {0}) END"


@dataclass(frozen=True, slots=True)
class Form:
    """How the values of a column become bytes."""

    sql: LiteralString
    # For NumPy. None: they are texts in UTF-8, with a zero byte, which none has, in between.
    number: str | None = None
    # Whether that holds. None: they are small.
    fits: LiteralString | None = None


@dataclass(frozen=True, slots=True)
class Packed:
    """The values of a column that are not NULL, in the order of the rows."""

    form: Form
    data: bytes
    count: int
    # A byte for each row, 0 where it is NULL. None: no row is.
    valid: bytes | None


@dataclass(frozen=True, slots=True)
class PackedRows:
    count: int
    columns: Sequence[Packed]


_NUMBERS = {
    "bool": Form("boolsend({})", "u1"),
    "int2": Form("int2send({})", ">i2"),
    "int4": Form("int4send({})", ">i4"),
    "int8": Form("int8send({})", ">i8"),
    "oid": Form("oidsend({})", ">u4"),
    "float4": Form("float4send({})", ">f4"),
    "float8": Form("float8send({})", ">f8"),
    # Days, and microseconds, since the year 2000.
    "date": Form("date_send({})", ">i4"),
    "timestamp": Form("timestamp_send({})", ">i8"),
    "timestamptz": Form("timestamptz_send({})", ">i8"),
}
_FITS: LiteralString = f"octet_length({{}}) <= {_MOST_OCTETS}"
_TEXTS = {
    "text": Form("textsend({})", fits=_FITS),
    "varchar": Form("varcharsend({})", fits=_FITS),
    "bpchar": Form("bpcharsend({})", fits=_FITS),
    "bytea": Form(f"textsend({PRINTED})", fits=_FITS),
}
_LABEL = Form("textsend({}::text)")
_SMALL_TEXT = Form(f"textsend({PRINTED})")
_SMALL_TEXTS = frozenset(
    "char name time timetz interval money macaddr macaddr8 inet cidr pg_lsn xid xid8 cid".split()
)


def form_of(base: BaseType) -> Form | None:
    """None: a value may be of any size, and how large it is shows only when it is printed."""
    if base.is_enum or (base.builtin and base.name == "uuid"):
        return _LABEL
    if not base.builtin:
        return None
    if base.name in _SMALL_TEXTS or base.limits:
        return _SMALL_TEXT
    return _NUMBERS.get(base.name) or _TEXTS.get(base.name)


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


class Packing:
    """Some columns of a table, in a transaction that has a snapshot."""

    def __init__(
        self,
        connection: psycopg.Connection[Any],
        rows: sql.Composable,
        columns: Sequence[tuple[str, Form]],
    ) -> None:
        self._connection = connection
        self._rows = rows
        self._columns = [(sql.Identifier(name), form) for name, form in columns]
        # In which a NULL was seen: nothing is said of the rows of the others.
        self._with_nulls: set[int] = set()
        for name, value in _SETTINGS.items():
            connection.execute("SELECT set_config(%s, %s, true)", [name, value])

    def packed(self, pages: sql.Composable) -> PackedRows | None:
        """None: a value is too large."""
        rows, large, pieces = self._ask(pages)
        if large:
            return None
        found = [self._column(place, pieces) for place in range(len(self._columns))]
        nulls = {place for place, each in enumerate(found) if each.count < rows}
        if nulls <= self._with_nulls:
            return PackedRows(rows, found)
        self._with_nulls |= nulls
        return self.packed(pages)

    def _ask(self, pages: sql.Composable) -> tuple[int, int, Iterator[bytes]]:
        """The number of rows, and of values that are too large; then what each column has."""
        too_large = [
            sql.SQL("NOT ({})").format(sql.SQL(form.fits).format(name))
            for name, form in self._columns
            if form.fits is not None
        ]
        selected = [
            sql.SQL("count(*)"),
            sql.SQL("count(*) FILTER (WHERE {})").format(
                sql.SQL(" OR ").join([*too_large, sql.SQL("false")])
            ),
            *(each for place in range(len(self._columns)) for each in self._asked(place)),
        ]
        statement = sql.SQL("SELECT {} FROM {} WHERE {}").format(
            sql.SQL(", ").join(selected), self._rows, pages
        )
        result = self._connection.execute(statement, binary=True).pgresult
        assert result is not None  # noqa: S101 - a query has one
        values = [result.get_value(0, place) or b"" for place in range(len(selected))]
        rows, large, *pieces = values
        return int.from_bytes(rows), int.from_bytes(large), iter(pieces)

    def _asked(self, place: int) -> Iterator[sql.Composable]:
        """`string_agg` passes over NULL."""
        name, form = self._columns[place]
        value = sql.SQL(form.sql).format(name)
        if form.fits is not None:
            value = sql.SQL("CASE WHEN {} THEN {} END").format(
                sql.SQL(form.fits).format(name), value
            )
        between = sql.SQL("'\\x00'" if form.number is None else "''")
        yield sql.SQL("count({})").format(name)
        yield sql.SQL("string_agg({}, {})").format(value, between)
        if place in self._with_nulls:
            yield sql.SQL("string_agg(boolsend({} IS NOT NULL), '')").format(name)

    def _column(self, place: int, pieces: Iterator[bytes]) -> Packed:
        count, data = int.from_bytes(next(pieces)), next(pieces)
        valid = next(pieces) if place in self._with_nulls else None
        return Packed(self._columns[place][1], data, count, valid)
