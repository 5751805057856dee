"""Large results wait in the target's database, in `penstock.staged`, until they are merged.

Invariant: only the parts that a `Staged` names are merged, and only if all of their rows are there.
A task that was tried twice, or that goes on after its job has died, leaves a part nobody names;
the table does not survive a crash of its server, and the count of rows tells.
"""

from __future__ import annotations

import io
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

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
    """What one task wrote."""

    name: str
    rows: int = 0
    # Of keys that the database cannot hold: they are spelled, under a name of their own.
    spelled_name: str = ""
    spelled_rows: int = 0


@dataclass(frozen=True, slots=True)
class Staged:
    """Sums in `penstock.staged`."""

    of_tasks: tuple[Part, ...]
    # Those of the arrays there.
    dimensions: tuple[str, ...]
    measures: tuple[str, ...]

    @property
    def parts(self) -> list[str]:
        """All but what is spelled."""
        return [part.name for part in self.of_tasks]

    @property
    def spelled_parts(self) -> list[str]:
        return [part.spelled_name for part in self.of_tasks if part.spelled_rows]

    @property
    def rows(self) -> int:
        return sum(part.rows + part.spelled_rows for part in self.of_tasks)


def put(
    connection: psycopg.Connection[Any],
    aggregate: str,
    tables: Iterable[pa.Table],
    width: int,
    *,
    all_fit: bool = False,
) -> Part:
    """Copy sums there, of `width` dimensions and then measures.

    `all_fit`: it is known that the database can hold all keys as they are.
    """
    name, spelled_name = str(uuid.uuid4()), str(uuid.uuid4())
    rows = spelled_rows = 0
    bad = unwritable(connection.info.parameter_status("server_encoding"))
    with connection.cursor() as cursor, cursor.copy(_COPY) as copy:
        for table in tables:
            plain, others = _writable(table, 0 if all_fit else width, bad.pattern)
            copy.write(_lines(aggregate, name, plain, width))
            copy.write(_lines(aggregate, spelled_name, others, width))
            rows += len(plain)
            spelled_rows += len(others)
    return Part(name, rows, spelled_name, spelled_rows)


def _writable(table: pa.Table, width: int, bad: str) -> tuple[pa.Table, pa.Table]:
    """Rows whose keys can be written as they are; and the others, with all keys spelled."""
    is_bad = pa.repeat(False, len(table))
    for column in table.columns[:width]:
        is_bad = pc.or_(is_bad, pc.fill_null(pc.match_substring_regex(column, bad), False))
    if not pc.any(is_bad).as_py():
        return table, table.slice(0, 0)
    others = table.filter(is_bad)
    for number, column in enumerate(others.columns[:width]):
        texts = [text if text is None else spelled(text) for text in column.to_pylist()]
        others = others.set_column(number, others.field(number).name, pa.array(texts, pa.string()))
    return table.filter(pc.invert(is_bad)), others


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
    part = put(connection, aggregate, tables, len(dimensions))
    return Staged((part,), tuple(dimensions), tuple(measures))


def clear(connection: psycopg.Connection[Any], aggregate: str) -> None:
    """Whatever an aggregate has there, of earlier attempts too."""
    connection.execute("DELETE FROM penstock.staged WHERE aggregate = %s", [aggregate])


def check_complete(connection: psycopg.Connection[Any], staged: Staged) -> None:
    """Raises what makes the job try again, if the server has lost some of it."""
    (rows,) = connection.execute(
        "SELECT count(*) FROM penstock.staged WHERE part = ANY (%s::uuid[])",
        [staged.parts + staged.spelled_parts],
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
        [staged.parts],
    )
    return [tuple(row) for row in found]


def portions(
    connection: psycopg.Connection[Any], staged: Staged, target: TargetTable
) -> Iterator[dict[Key, Amounts]]:
    """Rolled up for one target, as many at a time as the driver takes; without what is spelled. In
    a transaction.
    """
    return _portions(connection, staged, target, staged.parts)


def spelled_portions(
    connection: psycopg.Connection[Any], staged: Staged, target: TargetTable
) -> Iterator[dict[Key, Amounts]]:
    """What `portions` leaves out, as it is meant."""
    for portion in _portions(connection, staged, target, staged.spelled_parts):
        yield {
            tuple(part if part is None else meant(part) for part in key): amounts
            for key, amounts in portion.items()
        }


def _portions(
    connection: psycopg.Connection[Any],
    staged: Staged,
    target: TargetTable,
    parts: Sequence[str],
) -> Iterator[dict[Key, Amounts]]:
    if not parts:
        return
    keys = _keys(staged, target)
    sums = [f"coalesce(sum({_amount(staged, column.name)}), 0)" for column in target.measures]
    width = len(keys)
    with connection.cursor(name="staged") as cursor:
        cursor.execute(
            f"SELECT {', '.join([*keys, *sums])} FROM penstock.staged"  # noqa: S608 - numbers
            f" WHERE part = ANY (%s::uuid[]) GROUP BY {', '.join(keys)}".encode(),
            [parts],
        )
        while rows := cursor.fetchmany(MOST_IN_DRIVER):
            yield {row[:width]: row[width:] for row in rows if any(row[width:])}


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
