"""What changes add to an aggregate, one change at a time, as M4.5 says it: for the real one to be
held against."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from decimal import localcontext
from typing import Any

import pyarrow as pa

from penstock.decode.definition import Definition
from penstock.decode.deltas import AGGREGATE, COUNTED, NOTE, ROWS, Input, Summed, sum_name
from penstock.decode.text import Unrepresentable, parse
from penstock.decode.types import ValueType
from penstock.postgres.messages import (
    UNCHANGED,
    Delete,
    Insert,
    Message,
    Relation,
    Update,
)
from support.pgoutput_encoder import encode

_UNKNOWN = object()


@dataclass
class Totals:
    """Of one aggregate: count and sums by the values of its keys; changes that did not count."""

    rows: dict[tuple[str, ...], tuple[Any, ...]] = field(default_factory=dict)
    notes: Counter[str] = field(default_factory=Counter)

    def add(self, key: Iterable[Any], amounts: Sequence[Any]) -> None:
        # As text: NaN is equal to itself there, and -0 is not 0.
        shown = tuple(
            value.isoformat() if isinstance(value, datetime) else repr(value) for value in key
        )
        before = self.rows.get(shown, (0,) * len(amounts))
        with localcontext(prec=80):
            self.rows[shown] = tuple(a + b for a, b in zip(before, amounts, strict=True))
        if not any(self.rows[shown]):
            del self.rows[shown]


def totals_of(batches: Iterable[pa.RecordBatch], wanted: Sequence[Summed]) -> list[Totals]:
    """What the vectorised one gives."""
    found = [Totals() for _ in wanted]
    for batch in batches:
        batch.validate(full=True)
        for row in batch.to_pylist():
            of, one = found[row[AGGREGATE]], wanted[row[AGGREGATE]]
            if row[NOTE] is not None:
                of.notes[row[NOTE]] += row[ROWS]
            else:
                sums = [row[sum_name(each)] or 0 for each in one.sums]
                of.add((row[each.key] for each in one.keys), (row[ROWS], *sums))
    return found


def counted(changes: Iterable[tuple[Message, Sequence[Message]]], wanted: Summed) -> Totals:
    """Changes, each with the definition it came under."""
    totals = Totals()
    for change, (relation, *types) in changes:
        assert isinstance(relation, Relation)
        definition = Definition.parse([encode(relation), *map(encode, types)])
        for source in wanted.sources:
            if source.table == definition.table:
                _count(totals, change, definition, wanted, source)
    totals.notes = Counter({note: n for note, n in totals.notes.items() if n})
    return totals


def _count(
    totals: Totals, change: Message, definition: Definition, wanted: Summed, source: Any
) -> None:
    rule = type(change).__name__.lower()
    table = source.table
    if rule not in source.rules:
        totals.notes[f"{rule} of {table}: the rule is off"] += 1
        return
    old: dict[Input, Any] = {}
    new: dict[Input, Any] = {}
    for each in wanted.inputs:
        names = source.aliases.get(each.name, (each.name,))
        places = [place for name in names if (place := definition.index(name)) is not None]
        if not places:
            totals.notes[f"{table} had no column {each.name} then"] += 1
            return
        before, after = _first_values(change, definition, each, places)
        if before is _UNKNOWN and rule == "update" and each.name in source.immutable:
            before = after if after is not _UNKNOWN else None
        if before is _UNKNOWN and rule != "insert":
            totals.notes[f"{rule} of {table}: the old {each.name} is not in the WAL"] += 1
            return
        if after is _UNKNOWN and rule == "update":
            totals.notes[f"update of {table}: the unchanged {each.name} is not in the WAL"] += 1
            return
        old[each], new[each] = before, after
    images = {"insert": [(1, new)], "update": [(-1, old), (1, new)], "delete": [(-1, old)]}
    unfit: set[Input] = set()
    for sign, image in images[rule]:
        unfit |= _add(totals, sign, image, wanted)
    # Once for each change, under the first reason.
    first = next((each for each in wanted.inputs if each in unfit), None)
    note = COUNTED if first is None else f"{table}: a {first.name} that Spark cannot hold"
    totals.notes[note] += 1


def _add(
    totals: Totals,
    sign: int,
    image: Mapping[Input, Any],
    wanted: Summed,
) -> set[Input]:
    """Returns what Spark cannot hold, for which the image does not count."""
    values: dict[Input, Any] = {}
    for each, found in image.items():
        with suppress(Unrepresentable):
            values[each] = None if found is None else _as(each, *found)
    if len(values) == len(image):
        sums = [sign * (values[each] or 0) for each in wanted.sums]
        totals.add((values[each] for each in wanted.keys), (sign, *sums))
    return set(image) - set(values)


def _as(each: Input, text: Any, kind: ValueType) -> Any:
    """The value, in the type of the input: another column may have a narrower one."""
    value = parse(text, kind)
    if kind == each.kind:
        return value
    return pa.scalar(value, kind.arrow).cast(each.kind.arrow).as_py()


def _first_values(
    change: Message, definition: Definition, each: Input, places: Sequence[int]
) -> tuple[Any, Any]:
    """Before and after: the first column that is not NULL, as its text and its type."""

    def first(texts: Sequence[Any]) -> Any:
        for place, text in zip(places, texts, strict=True):
            if text is not None:
                kind = each.kind.reading(definition.types[place])
                return _UNKNOWN if text is _UNKNOWN else (text, kind)
        return None

    pairs = [_values(change, definition.relation, place) for place in places]
    return first([before for before, _ in pairs]), first([after for _, after in pairs])


def _values(change: Message, relation: Relation, place: int) -> tuple[Any, Any]:
    """Of one column, before and after."""
    in_identity = relation.columns[place].in_identity

    def sent(row: Any) -> Any:
        return _UNKNOWN if row is None or row[place] is UNCHANGED else row[place]

    def sent_before(key: Any, row: Any) -> Any:
        if row is not None:
            return sent(row)
        # An identity has no NULL: a partition's own has left it out.
        return _UNKNOWN if not in_identity or sent(key) is None else sent(key)

    match change:
        case Insert(new=new):
            return _UNKNOWN, sent(new)
        case Delete(old_key=key, old_row=row):
            return sent_before(key, row), None
        case Update(old_key=None, old_row=None, new=new):
            known = in_identity and relation.replica_identity != "f"
            return (sent(new) if known else _UNKNOWN), sent(new)
        case Update(old_key=key, old_row=row, new=new):
            before = sent_before(key, row)
            after = sent(new)
            return before, before if after is _UNKNOWN else after
    raise AssertionError(change)
