"""From runs of the log to Arrow batches: one table's changes, typed, with their metadata. Pure.

`reference.py` says the same one row at a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.changelog.runs import Run
from penstock.decode.columns import Mask, Texts, column
from penstock.decode.definition import Definition
from penstock.decode.images import CHANGES, TRUNCATE, Images, images
from penstock.decode.metadata import in_order, metadata, schema, truncated, truncates, words
from penstock.decode.octets import Octets, Positions
from penstock.decode.tuples import TEXT
from penstock.decode.types import ValueType
from penstock.errors import SchemaMismatch, ValueUnrepresentable
from penstock.lsn import Lsn
from penstock.names import TableName


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is asked of one table."""

    table: TableName
    columns: tuple[tuple[str, ValueType], ...]
    # The columns are those that the table has after this commit.
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
            ours = {plan.oid: self._wanted.table for plan in plans if plan.is_wanted}
            if emptied := [message for message, _ in truncates(octets, run, ours)]:
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
            self._column(octets, run, found, name, kind, place)
            for (name, kind), place in zip(self._wanted.columns, plan.places, strict=True)
        ]
        change_type = words(found.change, CHANGES)
        unchanged, absent = plan.named(found.unchanged), plan.named(found.absent)
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
        place: int | None,
    ) -> pa.Array:
        if place is None:
            return pa.nulls(len(found.message), kind.arrow)
        cells = found.cells[place]
        valid = (cells.kind == TEXT) & ~found.absent[place]
        array, bad = column(Texts(octets, cells.start, cells.length, valid), kind)
        if self._wanted.on_unrepresentable == "error" and bad.any():
            lsn = Lsn(int(run.commit_lsn[found.message[bad.argmax()]]))
            raise unrepresentable(self._wanted.table, name, kind, lsn)
        return array

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
        self.oid = definition.relation.oid
        self.is_wanted = definition.table == wanted.table
        self._wanted = wanted

    @cached_property
    def places(self) -> list[int | None]:
        """Where each wanted column is; None: the table does not have it."""
        return [self.definition.index(name) for name, _ in self._wanted.columns]

    def named(self, masks: dict[int, Mask]) -> dict[str, Mask]:
        columns = self.definition.relation.columns
        return {columns[place].name: mask for place, mask in masks.items()}

    def check(self, commit_lsns: npt.NDArray[np.uint64]) -> None:
        """The table is what the reader expects, or was so before: a column that came later is NULL.

        One that has gone since is not: to go on with NULLs would be a wrong value in silence.
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
                "Start the query again: it takes the table's columns as they are now. For changes "
                "from before, name other columns in the option columns, or set startingPosition"
            ),
            lsn=Lsn(int(lsn)),
            column=name,
        )


def unrepresentable(table: TableName, name: str, kind: ValueType, lsn: Lsn) -> ValueUnrepresentable:
    return ValueUnrepresentable(
        f"column {name} of {table} holds a value at {lsn} that {kind} cannot hold (infinite, NaN, "
        "BC, too large, not UTF-8, or an array of another shape)",
        remedy="Set onUnrepresentable to null, or to string to read such columns as text",
        lsn=lsn,
        column=name,
    )
