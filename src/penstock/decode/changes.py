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
from penstock.decode.octets import Octets, Positions
from penstock.decode.tuples import TEXT
from penstock.decode.types import ValueType
from penstock.errors import SchemaMismatch, TableTruncated, ValueUnrepresentable
from penstock.lsn import Lsn
from penstock.names import TableName
from penstock.postgres.fragments import touched

# Microseconds from 1970 to 2000, where Postgres counts from.
_EPOCH_US = 946_684_800_000_000
_NAMES = pa.list_(pa.field("element", pa.string()))

# What stands behind a table's own columns, with a prefix: name, type, whether it may be NULL.
METADATA: tuple[tuple[str, pa.DataType, bool], ...] = (
    ("change_type", pa.string(), False),
    ("commit_version", pa.int64(), False),
    ("commit_timestamp", pa.timestamp("us", "UTC"), True),
    ("seq", pa.int64(), False),
    ("xid", pa.int64(), False),
    ("unchanged", _NAMES, False),
    ("absent", _NAMES, False),
)


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


class TableChanges:
    """Decodes run after run."""

    def __init__(self, wanted: Wanted) -> None:
        self._wanted = wanted
        self._plans: dict[tuple[bytes, ...], _Plan] = {}
        self.schema = pa.schema(
            [pa.field(name, kind.arrow) for name, kind in wanted.columns]
            + [pa.field(f"_{name}", kind, nullable) for name, kind, nullable in METADATA]
        )

    def batch(self, run: Run) -> pa.RecordBatch:
        """The table's changes in the run, in order."""
        octets = Octets(run.buffer)
        plans = [self._plan(definition) for definition in run.definitions]
        ours = np.array([plan.is_wanted for plan in plans] + [False], bool)
        parts: list[tuple[Positions, list[pa.Array]]] = []
        for ordinal in np.flatnonzero(ours):
            index = np.flatnonzero(run.definition == ordinal)
            if len(index):
                parts.append(self._rows(octets, run, index, plans[ordinal]))
        truncates = self._truncates(octets, run, plans)
        if len(truncates):
            parts.append(self._emptied(run, truncates))
        return self._joined(parts)

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
        names = [
            _names(len(found.message), plan.named(masks))
            for masks in (found.unchanged, found.absent)
        ]
        return found.message, [*arrays, *_metadata(run, found.message, found.change), *names]

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
            raise ValueUnrepresentable(
                f"column {name} of {self._wanted.table} holds a value at {lsn} that {kind} cannot "
                "hold (infinite, NaN, BC, too large, or an array of another shape)",
                remedy="Set onUnrepresentable to null, or to string to read such columns as text",
                lsn=lsn,
                column=name,
            )
        return array

    def _truncates(self, octets: Octets, run: Run, plans: list[_Plan]) -> Positions:
        """The messages that empty this table."""
        if self._wanted.on_truncate == "skip":
            return np.empty(0, np.int64)
        ours = {plan.definition.relation.oid for plan in plans if plan.is_wanted}
        found = []
        for index in np.flatnonzero(run.definition < 0).tolist():
            start, end = int(run.start[index]), int(run.end[index])
            payload = octets.slice(start, end - start)
            if ours.intersection(touched(payload, bool(run.streamed[index]))):
                found.append(index)
        if found and self._wanted.on_truncate == "error":
            lsn = Lsn(int(run.commit_lsn[found[0]]))
            raise TableTruncated(
                f"{self._wanted.table} was truncated at {lsn}",
                remedy="Set onTruncate to emit, which gives a row of its own, or to skip",
                lsn=lsn,
            )
        return np.array(found, np.int64)

    def _emptied(self, run: Run, index: Positions) -> tuple[Positions, list[pa.Array]]:
        nulls = [pa.nulls(len(index), kind.arrow) for _, kind in self._wanted.columns]
        change = np.full(len(index), TRUNCATE, np.uint8)
        names = [_names(len(index), {})] * 2
        return index, [*nulls, *_metadata(run, index, change), *names]

    def _joined(self, parts: list[tuple[Positions, list[pa.Array]]]) -> pa.RecordBatch:
        """Parts of one run, their rows in the order of its messages."""
        if len(parts) == 1:
            return pa.RecordBatch.from_arrays(parts[0][1], schema=self.schema)
        if not parts:
            return _empty(self.schema)
        columns = [pa.concat_arrays(column) for column in zip(*(p for _, p in parts), strict=True)]
        order = np.argsort(np.concatenate([message for message, _ in parts]), kind="stable")
        return pa.RecordBatch.from_arrays(columns, schema=self.schema).take(pa.array(order))


class _Plan:
    """How one description of a table gives the wanted columns."""

    def __init__(self, definition: Definition, wanted: Wanted) -> None:
        self.definition = definition
        self._wanted = wanted

    @property
    def is_wanted(self) -> bool:
        return self.definition.table == self._wanted.table

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


def _metadata(run: Run, message: Positions, change: npt.NDArray[np.uint8]) -> list[pa.Array]:
    time_us = run.commit_us[message]
    # A transaction that was replicated from elsewhere may have committed at `infinity`.
    finite = np.abs(time_us) < np.iinfo(np.int64).max - _EPOCH_US
    return [
        pa.DictionaryArray.from_arrays(pa.array(change), list(CHANGES)).cast(pa.string()),
        pa.array(run.commit_lsn[message].astype(np.int64)),
        pa.array(np.where(finite, time_us, 0) + _EPOCH_US, METADATA[2][1], mask=~finite),
        pa.array(run.seq[message]),
        pa.array(run.xid[message]),
    ]


def _names(rows: int, masks: dict[str, Mask]) -> pa.Array:
    """For each row, the names of the columns whose mask is set."""
    masks = {name: mask for name, mask in masks.items() if mask.any()}
    if not masks:
        offsets = pa.array(np.zeros(rows + 1, np.int32))
        return pa.ListArray.from_arrays(offsets, pa.array([], pa.string()), type=_NAMES)
    matrix = np.column_stack(list(masks.values()))
    row, which = np.nonzero(matrix)
    offsets = np.zeros(rows + 1, np.int32)
    np.cumsum(np.bincount(row, minlength=rows), out=offsets[1:])
    values = pa.array(list(masks)).take(pa.array(which))
    return pa.ListArray.from_arrays(pa.array(offsets), values, type=_NAMES)


def _empty(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([], kind) for kind in schema.types], schema=schema)
