"""Keys as a target holds them: one value may be written in several ways.

The log, the source's own tables and what is parked each write a key as text: 1.5 and 1.50 are one
key of a column of numbers.
"""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg import errors as pg

from penstock.pipelines.merging import TargetTable
from penstock.pipelines.sums import Amounts, Key, added


def as_held(
    connection: psycopg.Connection[Any], target: TargetTable, amounts: dict[Key, Amounts]
) -> dict[Key, Amounts]:
    """The same amounts, each key once, as the target would print it."""
    found: dict[Key, Amounts] = {}
    for key, shown in zip(amounts, printed(connection, target, list(amounts)), strict=True):
        found[shown] = added(found[shown], amounts[key]) if shown in found else amounts[key]
    return found


def printed(connection: psycopg.Connection[Any], target: TargetTable, keys: list[Key]) -> list[Key]:
    """Each key as the target would print it; one that it cannot hold stays as it is."""
    pairs = zip(keys, _held(connection, target, keys), strict=True)
    return [key if shown is None else shown for key, shown in pairs]


def parted(
    connection: psycopg.Connection[Any], target: TargetTable, amounts: dict[Key, Amounts]
) -> tuple[dict[Key, Amounts], dict[Key, Amounts]]:
    """Those of keys that the target's columns can hold, and the others."""
    shown = _held(connection, target, list(amounts))
    can: dict[Key, Amounts] = {}
    cannot: dict[Key, Amounts] = {}
    for (key, amount), held in zip(amounts.items(), shown, strict=True):
        (cannot if held is None else can)[key] = amount
    return can, cannot


def _held(
    connection: psycopg.Connection[Any], target: TargetTable, keys: list[Key]
) -> list[Key | None]:
    """None: the target's columns cannot hold it."""
    if not keys:
        return []
    numbers = range(len(target.dimensions))
    shown = ", ".join(f"k{n}::{column.type}::text" for n, column in enumerate(target.dimensions))
    arrays = ", ".join("%s::text[]" for _ in numbers)
    names = ", ".join(f"k{n}" for n in numbers)
    # Types are the server's own words, values are parameters.
    sql = f"SELECT {shown} FROM unnest({arrays}) WITH ORDINALITY AS u ({names}, place)"  # noqa: S608
    columns = [list(column) for column in zip(*keys, strict=True)]
    try:
        with connection.transaction():
            found: list[Key | None] = [
                *connection.execute(f"{sql} ORDER BY place".encode(), columns).fetchall()
            ]
            return found
    except pg.DataError:
        if len(keys) == 1:
            return [None]
        half = len(keys) // 2
        return [*_held(connection, target, keys[:half]), *_held(connection, target, keys[half:])]
