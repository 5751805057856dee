"""From runs of the log to Arrow batches: one table's changes, typed, with their metadata. Pure.

`reference.py` says the same one row at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.changelog.runs import BatchRange, Run
from penstock.decode.columns import Mask, Texts, column
from penstock.decode.definition import Definition
from penstock.decode.images import CHANGES, TRUNCATE, Images, images
from penstock.decode.metadata import (
    in_order,
    metadata,
    range_row,
    schema,
    truncated,
    words,
)
from penstock.decode.octets import Octets, Positions
from penstock.decode.tuples import TEXT
from penstock.decode.types import Kind, ValueType
from penstock.errors import SchemaMismatch, ValueUnrepresentable
from penstock.lsn import Lsn
from penstock.names import TableName


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is asked of one table."""

    table: TableName
    columns: tuple[tuple[str, ValueType], ...]
    # The table has these columns since some time before this commit.
    after_lsn: Lsn
    preimages: bool = True
    on_truncate: Literal["error", "skip", "emit"] = "error"
    on_unrepresentable: Literal["error", "null"] = "error"
    prefix: str = "_"


class TableChanges:
    """Decodes run after run."""

    def __init__(self, wanted: Wanted) -> None:
        self._wanted = wanted
        self._plans: dict[tuple[bytes, ...], _Plan] = {}
        fields = [pa.field(name, kind.arrow) for name, kind in wanted.columns]
        self.schema = schema(fields, wanted.prefix)

    def range_row(self, covered: BatchRange) -> pa.RecordBatch:
        return range_row(self.schema, self._wanted.prefix, covered)

    def batches(self, runs: Iterable[Run]) -> Iterator[pa.RecordBatch]:
        return (batch for batch in map(self.batch, runs) if batch.num_rows)

    def batch(self, run: Run) -> pa.RecordBatch:
        """The table's changes in the run, in order."""
        octets = Octets(run.buffer)
        plans = [self._plan(definition) for definition in run.definitions]
        parts: list[tuple[Positions, list[pa.Array]]] = []
        for ordinal, plan in enumerate(plans):
            index = np.flatnonzero(run.definition == ordinal) if plan.is_wanted else ()
            if len(index):
                parts.append(self._rows(octets, run, np.asarray(index), plan))
        if self._wanted.on_truncate != "skip":
            emptied = [message for message, which in run.emptied if plans[which].is_wanted]
            if emptied:
                parts.append(self._emptied(run, emptied))
        return in_order(self.schema, parts)

    def _plan(self, messages: tuple[bytes, ...]) -> _Plan:
        if messages not in self._plans:
            self._plans[messages] = _Plan(Definition.parse(messages), self._wanted)
        return self._plans[messages]

    def _rows(
        self, octets: Octets, run: Run, index: Positions, plan: _Plan
    ) -> tuple[Positions, list[pa.Array]]:
        plan.check(run.commit_lsn[index])
        found = images(
            octets,
            run,
            index,
            plan.definition.relation,
            [place for place in plan.places if place is not None],
            preimages=self._wanted.preimages,
        )
        arrays = [
            self._column(octets, run, found, name, kind, plan.source(place))
            for (name, kind), place in zip(self._wanted.columns, plan.places, strict=True)
        ]
        change_type = words(found.change, CHANGES)
        unchanged = plan.named(found.unchanged)
        absent = plan.named(found.absent, otherwise=np.ones(len(found.message), bool))
        return found.message, [
            *arrays,
            *metadata(run, found.message, change_type, unchanged, absent),
        ]

    def _column(
        self,
        octets: Octets,
        run: Run,
        found: Images,
        name: str,
        kind: ValueType,
        source: tuple[int, ValueType] | None,
    ) -> pa.Array:
        if source is None:
            return pa.nulls(len(found.message), kind.arrow)
        place, given = source
        cells = found.cells[place]
        valid = (cells.kind == TEXT) & ~found.absent[place]
        reading = kind.reading(given)
        array, bad = column(Texts(octets, cells.start, cells.length, valid), reading)
        if self._wanted.on_unrepresentable == "error" and bad.any():
            lsn = Lsn(int(run.commit_lsn[found.message[bad.argmax()]]))
            raise unrepresentable(self._wanted.table, name, kind, lsn)
        return array if reading == kind else array.cast(kind.arrow)

    def _emptied(self, run: Run, messages: list[int]) -> tuple[Positions, list[pa.Array]]:
        if self._wanted.on_truncate == "error":
            raise truncated(run, messages[0], self._wanted.table)
        index = np.array(messages, np.int64)
        nulls = [pa.nulls(len(index), kind.arrow) for _, kind in self._wanted.columns]
        change_type = words(np.full(len(index), TRUNCATE), CHANGES)
        return index, [*nulls, *metadata(run, index, change_type, {}, {})]


class _Plan:
    """How one description of a table gives the wanted columns."""

    def __init__(self, definition: Definition, wanted: Wanted) -> None:
        self.definition = definition
        self.is_wanted = definition.table == wanted.table
        self._wanted = wanted

    @cached_property
    def places(self) -> list[int | None]:
        """Where each wanted column is; None: the table does not have it."""
        return [self.definition.index(name) for name, _ in self._wanted.columns]

    def source(self, place: int | None) -> tuple[int, ValueType] | None:
        return None if place is None else (place, self.definition.types[place])

    def named(self, masks: dict[int, Mask], otherwise: Mask | None = None) -> dict[str, Mask]:
        """By name; `otherwise` is for columns that the table does not have."""
        found: dict[str, Mask] = {}
        for (name, _), place in zip(self._wanted.columns, self.places, strict=True):
            mask = otherwise if place is None else masks[place]
            if mask is not None:
                found[name] = mask
        return found

    def check(self, commit_lsns: npt.NDArray[np.uint64]) -> None:
        """The table is what the reader expects, or what it was before.

        A column that came later is absent. One that has gone since is an error: to go on without it
        would be a wrong value in silence.
        """
        for (name, kind), place in zip(self._wanted.columns, self.places, strict=True):
            if place is not None:
                given = self.definition.types[place]
                if not kind.holds(given):
                    raise self._mismatch(f"is {given} and not {kind}", name, commit_lsns[0])
            elif (newer := commit_lsns > self._wanted.after_lsn).any():
                raise self._mismatch("is gone: dropped or renamed", name, commit_lsns[newer][0])

    def _mismatch(self, what: str, name: str, lsn: np.uint64) -> SchemaMismatch:
        return SchemaMismatch(
            f"column {name} of {self._wanted.table} {what} in the change that commits at "
            f"{Lsn(int(lsn))}",
            remedy=(
                "Start the query again: it takes the table's columns as they are now. Changes from "
                "before that do not fit them can be read without this column, by the option "
                "columns, or as JSON, by the option tables"
            ),
            lsn=Lsn(int(lsn)),
            column=name,
        )


def unrepresentable(table: TableName, name: str, kind: ValueType, lsn: Lsn) -> ValueUnrepresentable:
    # What is not UTF-8 is no text either.
    or_text = "" if kind.kind is Kind.TEXT else ", or to string to read such columns as text"
    return ValueUnrepresentable(
        f"column {name} of {table} holds a value at {lsn} that {kind} cannot hold: {_sort(kind)}",
        remedy=f"Set onUnrepresentable to null{or_text}",
        lsn=lsn,
        column=name,
    )


def _sort(kind: ValueType) -> str:
    """What such a value may be; never which it is."""
    match kind.kind:
        case Kind.ARRAY:
            assert kind.element is not None  # noqa: S101 - an array has one
            within = _SORTS.get(kind.element.kind)
            shape = "an array of several dimensions, or one that does not start at 1"
            return f"{shape}, or with an element that is {within}" if within else shape
        case other:
            return f"one that is {_SORTS.get(other, 'not UTF-8')}"


_TIMES = "infinite, BC or beyond the year 9999"
_SORTS = {
    Kind.DECIMAL: "NaN or infinite",
    Kind.DATE: _TIMES,
    Kind.TIMESTAMP: _TIMES,
    Kind.TIMESTAMPTZ: _TIMES,
    Kind.TEXT: "not UTF-8",
}
