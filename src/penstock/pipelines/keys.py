"""Keys as a target holds them: one value may be written in several ways.

The log, the source's own tables and what is parked each write a key as text: 1.5 and 1.50 are one
key of a column of numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any

import psycopg
from psycopg import errors as pg

from penstock.pipelines.merging import TargetTable
from penstock.pipelines.sifting import sift
from penstock.pipelines.spelling import has_zero
from penstock.pipelines.sums import Amounts, Key, added

_MOST_TRIES = 500


def as_held(
    connection: psycopg.Connection[Any], target: TargetTable, amounts: dict[Key, Amounts]
) -> dict[Key, Amounts]:
    """The same amounts, each key once, as the target would print it."""
    found: dict[Key, Amounts] = {}
    for key, shown in zip(amounts, printed(connection, target, list(amounts)), strict=True):
        found[shown] = added(found[shown], amounts[key]) if shown in found else amounts[key]
    return found


def printed(connection: psycopg.Connection[Any], target: TargetTable, keys: list[Key]) -> list[Key]:
    """Each key as the target would print it; one that it cannot hold stays as it is.

    So does one that is not come to, where it cannot hold very many. In a batch, nothing else is
    applied meanwhile, and what is parked under two texts of one key adds up to the same.
    """
    pairs = zip(keys, _held(connection, target, keys, iter(range(_MOST_TRIES))), strict=True)
    return [key if shown is None else shown for key, shown in pairs]


def parted(
    connection: psycopg.Connection[Any], target: TargetTable, amounts: dict[Key, Amounts]
) -> tuple[dict[Key, Amounts], dict[Key, Amounts]]:
    """Those of keys that the target's columns can hold, and the others."""
    shown = _held(connection, target, list(amounts), count())
    can: dict[Key, Amounts] = {}
    cannot: dict[Key, Amounts] = {}
    for (key, amount), held in zip(amounts.items(), shown, strict=True):
        (cannot if held is None else can)[key] = amount
    return can, cannot


def _held(
    connection: psycopg.Connection[Any], target: TargetTable, keys: list[Key], tries: Iterator[int]
) -> list[Key | None]:
    """None: the target's columns cannot hold it, or there are no tries left to know."""
    numbers = range(len(target.dimensions))
    texts = ", ".join(f"k{n}::{column.type}::text" for n, column in enumerate(target.dimensions))
    arrays = ", ".join("%s::text[]" for _ in numbers)
    names = ", ".join(f"k{n}" for n in numbers)
    # Types are the server's own words, values are parameters.
    sql = f"SELECT {texts} FROM unnest({arrays}) WITH ORDINALITY AS u ({names}, place)"  # noqa: S608
    shown: dict[int, Key] = {}

    def refusal(places: Sequence[int]) -> str | None:
        columns = [list(column) for column in zip(*(keys[n] for n in places), strict=True)]
        try:
            with connection.transaction():
                rows = connection.execute(f"{sql} ORDER BY place".encode(), columns).fetchall()
        except pg.DataError as error:
            return type(error).__name__
        shown.update(zip(places, rows, strict=True))
        return None

    places = [place for place, key in enumerate(keys) if not has_zero(key)]
    if places and refusal(places) is not None:
        sift(places, refusal, tries)
    return [shown.get(place) for place in range(len(keys))]
