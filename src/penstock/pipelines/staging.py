"""Large results wait in the target's database, in `penstock.staged`, until they are merged.

Invariant: only the parts that a `Staged` names are merged, and only if all of their rows are there.
A task that was tried twice, or that goes on after its job has died, leaves a part nobody names;
the table does not survive a crash of its server, and the count of rows tells.
"""

from __future__ import annotations

import io
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import psycopg
import pyarrow as pa
import pyarrow.compute as pc
from psycopg import errors as pg
from pyarrow import csv

from penstock.pipelines.merging import TargetTable
from penstock.pipelines.spelling import meant, spelled, unwritable
from penstock.pipelines.sums import Amounts, Key

# What the driver takes in one piece: some 50 MB of Python's memory.
MOST_IN_DRIVER = 100_000
_COPY = "COPY penstock.staged (aggregate, part, keys, amounts) FROM STDIN (FORMAT csv)"
_CSV = csv.WriteOptions(include_header=False)


@dataclass(frozen=True, slots=True)
class Part:
    """What one task wrote in one way."""

    name: str
    rows: int
    # Dimensions of which the database cannot hold the texts, and has them spelled.
    spelled: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Staged:
    """Sums in `penstock.staged`."""

    parts: tuple[Part, ...]
    # Those of the arrays there.
    dimensions: tuple[str, ...]
    measures: tuple[str, ...]

    @property
    def rows(self) -> int:
        return sum(part.rows for part in self.parts)

    def plain(self, target: TargetTable) -> list[str]:
        """The parts that have nothing spelled for a target, as a parameter."""
        return self.by_spelling(target).get((), [])

    def by_spelling(self, target: TargetTable) -> dict[tuple[str, ...], list[str]]:
        """The parts, by the target's dimensions that are spelled in them."""
        ours = {column.name for column in target.dimensions}
        found: dict[tuple[str, ...], list[str]] = {}
        for part in self.parts:
            spelled_here = tuple(name for name in part.spelled if name in ours)
            found.setdefault(spelled_here, []).append(part.name)
        return found


def put(
    connection: psycopg.Connection[Any], aggregate: str, tables: Iterable[pa.Table], width: int
) -> tuple[Part, ...]:
    """Copy sums there, of `width` dimensions and then measures."""
    encoding = connection.info.parameter_status("server_encoding")
    ways = (way for table in tables for way in _by_spelling(table, width, encoding))
    return _put(connection, aggregate, ways, width)


def put_as_it_is(
    connection: psycopg.Connection[Any], aggregate: str, table: pa.Table, width: int
) -> tuple[Part, ...]:
    """As `put`, where the server has said that it can hold all of these keys."""
    return _put(connection, aggregate, [((), table)], width)


def _put(
    connection: psycopg.Connection[Any],
    aggregate: str,
    ways: Iterable[tuple[tuple[str, ...], pa.Table]],
    width: int,
) -> tuple[Part, ...]:
    parts: dict[tuple[str, ...], Part] = {}
    with connection.cursor() as cursor, cursor.copy(_COPY) as copy:
        for bad, rows in ways:
            part = parts.get(bad) or Part(str(uuid.uuid4()), 0, bad)
            copy.write(_lines(aggregate, part.name, rows, width))
            parts[bad] = replace(part, rows=part.rows + len(rows))
    return tuple(parts.values())


def _by_spelling(
    table: pa.Table, width: int, encoding: str | None
) -> Iterator[tuple[tuple[str, ...], pa.Table]]:
    """Rows by which of their dimensions have to be spelled, and are."""
    found = ((name, unwritable(table[name], encoding)) for name in table.column_names[:width])
    are_bad = {name: np.asarray(mask, bool) for name, mask in found if mask is not None}
    if not are_bad:
        yield (), table
        return
    by_row = np.stack(list(are_bad.values()), axis=1)
    for pattern in np.unique(by_row, axis=0):
        rows = table.filter(pa.array((by_row == pattern).all(axis=1)))
        bad = tuple(name for name, is_bad in zip(are_bad, pattern, strict=True) if is_bad)
        for name in bad:
            texts = pa.array([spelled(text) for text in rows[name].to_pylist()], pa.string())
            rows = rows.set_column(rows.column_names.index(name), name, texts)
        yield bad, rows


def put_table(
    connection: psycopg.Connection[Any],
    aggregate: str,
    sums: pa.Table,
    dimensions: Sequence[str],
    measures: Sequence[str],
) -> Staged:
    """Of one that is here already; some at a time, for as text it is many times as large."""
    ordered = sums.select([*dimensions, *measures])
    some = ordered.to_batches(max_chunksize=MOST_IN_DRIVER)
    tables = (pa.Table.from_batches([batch]) for batch in some)
    parts = put(connection, aggregate, tables, len(dimensions))
    return Staged(parts, tuple(dimensions), tuple(measures))


def clear(connection: psycopg.Connection[Any], aggregate: str) -> None:
    """Whatever an aggregate has there, of earlier attempts too."""
    connection.execute("DELETE FROM penstock.staged WHERE aggregate = %s", [aggregate])


def check_complete(connection: psycopg.Connection[Any], staged: Staged) -> None:
    """Raises what makes the job try again, if the server has lost some of it."""
    (rows,) = connection.execute(
        "SELECT count(*) FROM penstock.staged WHERE part = ANY (%s::uuid[])",
        [[part.name for part in staged.parts]],
    ).fetchone() or (0,)
    if rows != staged.rows:
        raise pg.OperationalError(f"{rows} of {staged.rows} staged rows are there")


def source_sql(staged: Staged, target: TargetTable, pattern: Sequence[bool] | None = None) -> str:
    """For `merge_sql`: the rows in which those dimensions of the target are NULL; for `compare_sql`
    all. One parameter.
    """
    keys = _keys(staged, target)
    columns = [
        *(f"{key} AS k{number}" for number, key in enumerate(keys)),
        *(f"{_amount(staged, column.name)} AS m{n}" for n, column in enumerate(target.measures)),
    ]
    conditions = ["part = ANY (%s::uuid[])"]
    if pattern is not None:
        for key, null in zip(keys, pattern, strict=True):
            conditions.append(f"{key} IS NULL" if null else f"{key} IS NOT NULL")
    # Numbers and the server's own words.
    return (
        f"(SELECT {', '.join(columns)} FROM penstock.staged WHERE {' AND '.join(conditions)}) AS u"  # noqa: S608
    )


def patterns(
    connection: psycopg.Connection[Any], staged: Staged, target: TargetTable
) -> list[tuple[bool, ...]]:
    """Which dimensions of the target are NULL together."""
    nulls = [f"{key} IS NULL" for key in _keys(staged, target)]
    found = connection.execute(
        f"SELECT DISTINCT {', '.join(nulls)} FROM penstock.staged"  # noqa: S608 - numbers
        " WHERE part = ANY (%s::uuid[])".encode(),
        [staged.plain(target)],
    )
    return [tuple(row) for row in found]


def portions(
    connection: psycopg.Connection[Any], staged: Staged, target: TargetTable, *, plain: bool
) -> Iterator[dict[Key, Amounts]]:
    """What has nothing spelled for a target, or all else, as it is meant: rolled up, as many at a
    time as the driver takes. In a transaction.
    """
    keys = _keys(staged, target)
    sums = [f"coalesce(sum({_amount(staged, column.name)}), 0)" for column in target.measures]
    width = len(keys)
    for bad, parts in staged.by_spelling(target).items():
        if bool(bad) == plain:
            continue
        are_spelled = [column.name in bad for column in target.dimensions]
        with connection.cursor(name="staged") as cursor:
            cursor.execute(
                f"SELECT {', '.join([*keys, *sums])} FROM penstock.staged"  # noqa: S608 - numbers
                f" WHERE part = ANY (%s::uuid[]) GROUP BY {', '.join(keys)}".encode(),
                [parts],
            )
            while rows := cursor.fetchmany(MOST_IN_DRIVER):
                yield {
                    _meant(row[:width], are_spelled): row[width:]
                    for row in rows
                    if any(row[width:])
                }


def _meant(key: Key, are_spelled: Sequence[bool]) -> Key:
    if not any(are_spelled):
        return key
    pairs = zip(key, are_spelled, strict=True)
    return tuple(meant(part) if part and is_spelled else part for part, is_spelled in pairs)


def _keys(staged: Staged, target: TargetTable) -> list[str]:
    return [f"keys[{staged.dimensions.index(column.name) + 1}]" for column in target.dimensions]


def _amount(staged: Staged, name: str) -> str:
    return f"amounts[{staged.measures.index(name) + 1}]"


def _lines(aggregate: str, part: str, table: pa.Table, width: int) -> memoryview:
    columns = {
        "aggregate": pa.repeat(aggregate, len(table)),
        "part": pa.repeat(part, len(table)),
        "keys": _array([_quoted(column) for column in table.columns[:width]], len(table)),
        "amounts": _array(
            [column.cast(pa.string()) for column in table.columns[width:]], len(table)
        ),
    }
    buffer = io.BytesIO()
    csv.write_csv(pa.table(columns), buffer, _CSV)
    return buffer.getbuffer()


def _array(columns: Sequence[pa.ChunkedArray], rows: int) -> pa.ChunkedArray | pa.Array:
    """As Postgres reads an array."""
    if not columns:
        return pa.repeat("{}", rows)
    joined = pc.binary_join_element_wise(
        *columns, ",", null_handling="replace", null_replacement="NULL"
    )
    return pc.binary_join_element_wise("{", joined, "}", "")


def _quoted(texts: pa.ChunkedArray) -> pa.ChunkedArray:
    escaped = pc.replace_substring(pc.replace_substring(texts, "\\", "\\\\"), '"', '\\"')
    return pc.binary_join_element_wise('"', escaped, '"', "")
