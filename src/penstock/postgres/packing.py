"""Columns of many rows at one go: the server puts the values of each one behind the other.

Row by row, a client takes longer to take rows than the server takes to make them. One value for
each column of a hundred thousand rows costs next to nothing, and numbers and moments need not be
printed and read again. Rows that are equal in some columns can come together: then these columns
have one value for all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import psycopg
from psycopg import sql

from penstock.postgres.forms import Form

# Until the transaction ends: a range is found without the others, and read in one order. Rows come
# together by hash, which takes half of the time that sorting them does, and have room for it: the
# server reckons eight times what groups take, and would not keep more of them than fit by that.
_SETTINGS = {
    "enable_tidscan": "on",
    "max_parallel_workers_per_gather": "0",
    "jit": "off",
    "enable_sort": "off",
    "enable_hashagg": "on",
    "work_mem": "256MB",
}
# Groups of rows, and then all of them. Of rows that have no column in common, there is one group.
_STATEMENT = sql.SQL(
    "SELECT {outer} FROM (SELECT {inner} FROM {rows} WHERE {pages} GROUP BY {keys}) AS groups"
)
_SIZE, _SIZES = sql.SQL("count(*)"), sql.SQL("string_agg(int8send({}), '')")
_TOTAL, _BYTES = sql.SQL("sum({})::bigint"), sql.SQL("string_agg({}, '')")
_TEXTS_TOGETHER = sql.SQL("string_agg({}, '\\x00')")


@dataclass(frozen=True, slots=True)
class Packed:
    """The values of a column that are not NULL, in the order of the rows, or of the groups."""

    form: Form
    data: bytes
    count: int
    # A byte for each row or group, 0 where it is NULL. None: none is.
    valid: bytes | None


@dataclass(frozen=True, slots=True)
class PackedRows:
    """Those of the first group come first."""

    # How many rows each group has.
    sizes: npt.NDArray[np.int64]
    columns: Sequence[Packed]
    # The places of those in which the rows of a group are equal: they have a value for each group.
    shared: frozenset[int]

    @property
    def count(self) -> int:
        return int(self.sizes.sum())


@dataclass(frozen=True, slots=True)
class _Column:
    name: sql.Identifier
    form: Form
    place: int

    def asked(self, with_nulls: bool) -> Iterator[tuple[sql.Composable, sql.SQL]]:
        """What is asked of rows, and how that of several groups is put together: the values, and of
        texts how many there are, and how many of them fit. `string_agg` passes over NULL.
        """
        value = sql.SQL(self.form.sql).format(self.name)
        fits = sql.SQL(self.form.fits or "true").format(self.name)
        if self.form.fits is not None:
            value = sql.SQL("CASE WHEN {} THEN {} END").format(fits, value)
        together = _TEXTS_TOGETHER if self.form.number is None else _BYTES
        yield together.format(value), together
        if self.form.number is None:
            yield sql.SQL("count({})").format(self.name), _TOTAL
        if self.form.fits is not None:
            yield sql.SQL("count(*) FILTER (WHERE {})").format(fits), _TOTAL
        if with_nulls:
            valid = sql.SQL("boolsend({} IS NOT NULL)").format(self.name)
            yield _BYTES.format(valid), _BYTES


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
        self._columns = [
            _Column(sql.Identifier(name), form, place) for place, (name, form) in enumerate(columns)
        ]
        # In which a NULL was seen: nothing is said of the rows of the others.
        self._with_nulls: set[int] = set()
        for name, value in _SETTINGS.items():
            connection.execute("SELECT set_config(%s, %s, true)", [name, value])

    def packed(
        self, pages: sql.Composable, shared: frozenset[int] = frozenset()
    ) -> PackedRows | None:
        """`shared`: the places of columns by which rows come together; equal values of theirs are
        packed alike. None: a value is too large.
        """
        sizes, pieces = self._ask(pages, shared)
        columns = [self._packed(column, pieces) for column in self._columns]
        if None in columns:
            return None
        found = PackedRows(sizes, [each for each in columns if each is not None], shared)
        nulls = {
            place
            for place, each in enumerate(found.columns)
            if each.count < (len(sizes) if place in shared else found.count)
        }
        if nulls <= self._with_nulls:
            return found
        self._with_nulls |= nulls
        return self.packed(pages, shared)

    def _ask(
        self, pages: sql.Composable, shared: frozenset[int]
    ) -> tuple[npt.NDArray[np.int64], Iterator[bytes]]:
        """The number of rows in each group, then what each column has."""
        keys = [column.name for column in self._columns if column.place in shared]
        inner: list[sql.Composable] = []
        outer: list[sql.Composable] = [_SIZES.format(_selected(_SIZE, inner))]
        for column in self._columns:
            with_nulls = column.place in self._with_nulls
            if column.place in shared:
                alone = replace(column, name=_selected(column.name, inner))
                outer += [expression for expression, _ in alone.asked(with_nulls)]
            else:
                outer += [
                    of_groups.format(_selected(expression, inner))
                    for expression, of_groups in column.asked(with_nulls)
                ]
        statement = _STATEMENT.format(
            outer=sql.SQL(", ").join(outer),
            inner=sql.SQL(", ").join(inner),
            rows=self._rows,
            pages=pages,
            keys=sql.SQL(", ").join(keys) if keys else sql.SQL("()"),
        )
        result = self._connection.execute(statement, binary=True).pgresult
        assert result is not None  # noqa: S101 - a query has one
        values = [result.get_value(0, place) or b"" for place in range(len(outer))]
        sizes, *pieces = values
        return np.frombuffer(sizes, ">i8").astype(np.int64), iter(pieces)

    def _packed(self, column: _Column, pieces: Iterator[bytes]) -> Packed | None:
        """None: a value is too large."""
        data = next(pieces)
        if column.form.number is None:
            count = int.from_bytes(next(pieces))
        else:
            count = len(data) // np.dtype(column.form.number).itemsize
        fitting = int.from_bytes(next(pieces)) if column.form.fits is not None else count
        valid = next(pieces) if column.place in self._with_nulls else None
        return Packed(column.form, data, count, valid) if fitting == count else None


def _selected(expression: sql.Composable, inner: list[sql.Composable]) -> sql.Identifier:
    """As one of these; its name there, whatever the table's columns are named."""
    name = sql.Identifier(f"_{len(inner)}")
    inner.append(sql.SQL("{} AS {}").format(expression, name))
    return name
