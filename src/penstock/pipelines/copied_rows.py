"""Columns of rows of a table, as text, in the blocks in which COPY sends them."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

import psycopg
import pyarrow as pa
from psycopg import sql
from pyarrow import csv

from penstock.postgres.copying import copied_blocks


def copied_rows(
    connection: psycopg.Connection[Any],
    rows: sql.Composable,
    columns: Sequence[sql.Composable],
    condition: sql.Composable,
) -> Generator[pa.RecordBatch, None, None]:
    statement = sql.SQL("COPY (SELECT {} FROM {} WHERE {}) TO STDOUT (FORMAT csv)").format(
        sql.SQL(", ").join(columns), rows, condition
    )
    names = [str(number) for number in range(len(columns))]
    with connection.cursor() as cursor, cursor.copy(statement):
        for block in copied_blocks(connection.pgconn):
            yield from _parsed(block, names).to_batches()


def _parsed(block: bytes, names: Sequence[str]) -> pa.Table:
    """A block has whole rows, and is read at one go: one row may be larger than all others."""
    return csv.read_csv(
        pa.BufferReader(block),
        csv.ReadOptions(column_names=names, block_size=len(block) + 1, use_threads=False),
        # A line of one column that is NULL is empty, and a row all the same.
        csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False),
        csv.ConvertOptions(
            column_types=dict.fromkeys(names, pa.string()),
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    )
