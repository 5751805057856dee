"""From runs of the log to what they add to aggregates: signed counts and sums. Pure.

Rows with equal values are summed up here, before Spark sees them: dimensions and filters are
functions of these values, so equal rows count alike whatever they compute. What leaves is small,
and to group it once more by the dimensions is little work.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.changelog.runs import BatchRange, Run
from penstock.decode.classify import Counted, Needed, classify, told_once
from penstock.decode.columns import Mask, Texts, column_as
from penstock.decode.definition import Definition
from penstock.decode.images import images
from penstock.decode.minutes import minutes
from penstock.decode.octets import Octets, Positions
from penstock.decode.stops import Stop, StopCode
from penstock.decode.tuples import TEXT
from penstock.decode.types import MAX_PRECISION, Kind, ValueType
from penstock.errors import SchemaMismatch
from penstock.lsn import Lsn
from penstock.names import TableName

# The columns that every row has; a note has nothing else.
AGGREGATE, ROWS, NOTE = "_aggregate", "_rows", "_note"
# Of the note that says which range a batch covers.
NO_AGGREGATE = -1
# The note that tells how many changes counted; every other one is a reason why some did not, or a
# stop.
COUNTED = "counted"
# How the note of a stop begins, before its JSON. Reasons begin with a table or an operation.
STOPPED = "stop "
# How the reason ends that is a value and not the WAL.
CANNOT_HOLD = "that Spark cannot hold"
# Little memory, and long beside what a run has.
_MOST_ROWS = 200_000
_SMALL_INTEGERS = (Kind.SMALLINT, Kind.INTEGER)
# More rows than 10 to this power no log holds.
_DIGITS_OF_COUNTS = 18
# Digits of decimals while they are added up: of 38, Arrow lets what is beyond them go in silence.
WIDE = 76


@dataclass(frozen=True, slots=True)
class Input:
    """A column that an aggregate reads."""

    name: str
    kind: ValueType
    # Of a moment no more than the minute is asked for.
    by_minute: bool = False

    @property
    def key(self) -> str:
        """Its name among all aggregates' columns: one of the same name may have another type."""
        return f"{self.name} {self.kind}{' by the minute' if self.by_minute else ''}"


@dataclass(frozen=True, slots=True)
class SummedSource:
    """One table of an aggregate."""

    table: TableName
    rules: frozenset[str]
    immutable: frozenset[str]
    aliases: Mapping[str, tuple[str, ...]]
    # The table has the columns since some time before this commit.
    after_lsn: int
    # The table that is counted; 0: whichever has the name.
    oid: int = 0


@dataclass(frozen=True, slots=True)
class Summed:
    """What is asked of the log for one aggregate."""

    name: str
    sources: tuple[SummedSource, ...]
    keys: tuple[Input, ...]
    sums: tuple[Input, ...]
    # What commits at or below it is in the targets, and is not looked at: it may be what made a
    # reset necessary.
    applied_lsn: int = 0

    @property
    def inputs(self) -> tuple[Input, ...]:
        return tuple(dict.fromkeys((*self.keys, *self.sums)))


@dataclass(frozen=True, slots=True)
class WantedDeltas:
    """What is asked of the log for all aggregates that are followed together."""

    aggregates: tuple[Summed, ...]


def sum_type(kind: ValueType) -> pa.DataType:
    """Wide enough for as many values as a log can hold."""
    if kind.kind in _SMALL_INTEGERS:
        return pa.int64()
    return pa.decimal128(38, kind.scale)


def sum_name(each: Input) -> str:
    """No key has it, for theirs end with a type or a minute."""
    return f"{each.key} sum"


def cannot_hold(table: TableName, column: str) -> str:
    """The reason why a row does not count."""
    return f"{table}: a {column} {CANNOT_HOLD}"


def delta_schema(wanted: Sequence[Summed]) -> pa.Schema:
    keys = {each.key: each.kind.arrow for one in wanted for each in one.keys}
    sums = {sum_name(each): sum_type(each.kind) for one in wanted for each in one.sums}
    return pa.schema(
        [
            pa.field(AGGREGATE, pa.int32(), nullable=False),
            pa.field(ROWS, pa.int64(), nullable=False),
            pa.field(NOTE, pa.string()),
            *(pa.field(name, kind) for name, kind in (keys | sums).items()),
        ]
    )


class Deltas:
    """Sums up run after run, for all aggregates."""

    def __init__(self, wanted: WantedDeltas) -> None:
        self._wanted = wanted.aggregates
        self._plans: dict[tuple[int, int, tuple[bytes, ...]], _Plan] = {}
        self.schema = delta_schema(wanted.aggregates)

    def batches(self, runs: Iterable[Run]) -> Iterator[pa.RecordBatch]:
        """Sums of several runs together, for what they have in common need not be sent twice."""
        gathered: list[pa.RecordBatch] = []
        rows = 0
        for run in runs:
            gathered.append(self._batch(run))
            rows += gathered[-1].num_rows
            if rows >= _MOST_ROWS:
                gathered = [self._together(gathered)]
                rows = gathered[0].num_rows
                if rows >= _MOST_ROWS // 2:
                    yield gathered.pop()
                    rows = 0
        if rows:
            yield self._together(gathered)

    def _together(self, batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
        sums = list(dict.fromkeys(each for one in self._wanted for each in one.sums))
        added = {ROWS, *(sum_name(each) for each in sums)}
        table = pa.Table.from_batches(batches)
        keys = [name for name in table.column_names if name not in added]
        return _fitted(self.schema, added_up(table, keys, sums))

    def _batch(self, run: Run) -> pa.RecordBatch:
        octets = Octets(run.buffer)
        definitions = [Definition.parse(messages) for messages in run.definitions]
        tables = [
            table
            for ordinal, one in enumerate(self._wanted)
            for table in self._of_aggregate(octets, run, definitions, ordinal, one)
        ]
        whole = pa.concat_tables(tables, promote_options="default") if tables else None
        return _fitted(self.schema, whole)

    def range_row(self, covered: BatchRange) -> pa.RecordBatch:
        lsns = f"{covered.after} {covered.up_to} {covered.planned}"
        note = {AGGREGATE: [NO_AGGREGATE], ROWS: [0], NOTE: [lsns]}
        return _fitted(self.schema, pa.table(note))

    def _of_aggregate(
        self,
        octets: Octets,
        run: Run,
        definitions: Sequence[Definition],
        ordinal: int,
        wanted: Summed,
    ) -> Iterator[pa.Table]:
        """Sums and notes of one aggregate; after a note that stops it, its sums mean nothing."""
        notes: Counter[str] = Counter()
        is_new = run.commit_lsn > wanted.applied_lsn
        for number, source in enumerate(wanted.sources):
            emptied = [
                message
                for message, which in run.emptied
                if definitions[which].table == source.table and is_new[message]
            ]
            if source.rules and emptied:
                yield _notes(ordinal, {_stopped(_truncated(run, emptied[0], source.table)): 1})
                return
            for which, definition in enumerate(definitions):
                index = np.flatnonzero(is_new & (run.definition == which))
                if not len(index):
                    continue
                if (other := _other_table(definition, source)) is not None:
                    lsn = str(Lsn(int(run.commit_lsn[index[0]])))
                    yield _notes(ordinal, {_stopped(replace(other, lsn=lsn)): 1})
                    return
                if definition.table != source.table:
                    continue
                place = (ordinal, number, run.definitions[which])
                plan = self._plans.setdefault(place, _Plan(definition, wanted, source))
                if (stop := plan.stop(run, index)) is not None:
                    yield _notes(ordinal, {_stopped(stop): 1})
                    return
                counted, table = plan.summed(octets, run, index)
                notes.update(counted.skipped)
                notes[COUNTED] += counted.changes
                yield table.append_column(AGGREGATE, _repeat(ordinal, len(table)))
        if noted := {note: count for note, count in notes.items() if count}:
            yield _notes(ordinal, noted)


class _Plan:
    """How one description of a table gives what an aggregate reads."""

    def __init__(self, definition: Definition, wanted: Summed, source: SummedSource) -> None:
        self._definition = definition
        self._wanted = wanted
        self._source = source

    @cached_property
    def _needed(self) -> list[Needed]:
        return [
            Needed(each.name, self._places(each.name), each.name in self._source.immutable)
            for each in self._wanted.inputs
        ]

    def _places(self, name: str) -> tuple[int, ...]:
        places = map(self._definition.index, self._source.aliases.get(name, (name,)))
        return tuple(place for place in places if place is not None)

    def summed(self, octets: Octets, run: Run, index: np.ndarray) -> tuple[Counted, pa.Table]:
        places = {place for need in self._needed for place in need.places}
        found = images(octets, run, index, self._definition.relation, places, preimages=True)
        counted = classify(found, self._needed, self._source.rules, str(self._source.table))
        arrays, bad = self._arrays(octets, counted)
        reasons = {cannot_hold(self._source.table, name): mask for name, mask in bad.items()}
        good = ~np.logical_or.reduce([np.zeros(len(counted.rows), bool), *bad.values()])
        summed = _summed_up(self._wanted, arrays, pa.array(counted.sign), good)
        return told_once(counted, reasons), summed

    def stop(self, run: Run, index: np.ndarray) -> Stop | None:
        """Why these changes cannot be counted. A column that came later is no reason: its changes
        are skipped.
        """
        if not self._source.rules:
            return None  # nothing of it is read
        lsns = run.commit_lsn[index]
        for each, need in zip(self._wanted.inputs, self._needed, strict=True):
            for place in need.places:
                given = self._definition.types[place]
                if not each.kind.holds(given):
                    return self._stop(
                        StopCode.COLUMN_RETYPED,
                        self._definition.relation.columns[place].name,
                        lsns[0],
                        was=str(each.kind),
                        now=str(given),
                    )
            if not need.places and (newer := lsns > self._source.after_lsn).any():
                return self._stop(StopCode.COLUMN_GONE, need.name, lsns[newer][0])
        return None

    def _stop(self, code: StopCode, column: str, lsn: np.uint64, **facts: str) -> Stop:
        return Stop(code, str(self._source.table), column, str(Lsn(int(lsn))), **facts)

    def _arrays(
        self, octets: Octets, counted: Counted
    ) -> tuple[dict[Input, pa.Array], dict[str, Mask]]:
        """The values of the images that count; and which of them have no place in their type."""
        arrays: dict[Input, pa.Array] = {}
        bad: dict[str, Mask] = {}
        rows = counted.rows
        for each, need, values in zip(
            self._wanted.inputs, self._needed, counted.values, strict=True
        ):
            if values is None or not len(rows):  # then no image counts
                arrays[each] = pa.nulls(len(rows), each.kind.arrow)
                continue
            cells = values.cells
            valid = cells.kind[rows] == TEXT
            texts = Texts(octets, cells.start[rows], cells.length[rows], valid)
            arrays[each], mask = self._array(texts, values.place[rows], need, each.kind)
            if mask.any():
                bad[each.name] = mask
        return arrays, bad

    def _array(
        self, texts: Texts, place: Positions, need: Needed, kind: ValueType
    ) -> tuple[pa.Array, Mask]:
        """Read the values of one input, of each column by the column's own type."""
        types = [self._definition.types[each] for each in need.places]
        if len(set(types)) == 1:
            return column_as(texts, types[0], kind)
        found = [
            column_as(texts.where(place == each), given, kind)
            for each, given in zip(need.places, types, strict=True)
        ]
        array = pc.coalesce(*(values for values, _ in found))
        return array, np.logical_or.reduce([bad for _, bad in found])


def _summed_up(
    wanted: Summed, arrays: Mapping[Input, pa.Array], sign: pa.Array, good: Mask
) -> pa.Table:
    """Rows with equal keys as one, with their signed count and sums; nothing that is zero."""
    columns = {
        each.key: minutes(arrays[each]) if each.by_minute else arrays[each] for each in wanted.keys
    }
    columns[ROWS] = sign
    for each in wanted.sums:
        values = arrays[each].cast(sum_type(each.kind))
        columns[sum_name(each)] = pc.if_else(pc.greater(sign, 0), values, pc.negate(values))
    table = pa.table(columns)
    rows = table if good.all() else table.filter(pa.array(good))
    return added_up(rows, [each.key for each in wanted.keys], wanted.sums)


def added_up(table: pa.Table, keys: Sequence[str], sums: Sequence[Input]) -> pa.Table:
    """Rows with equal keys as one; without those in which everything is zero."""
    if any(pa.types.is_nested(table.schema.field(key).type) for key in keys):
        # Arrow cannot group by arrays. Spark groups by what is made of them.
        return table
    added = [ROWS, *(sum_name(each) for each in sums)]
    for each in sums:
        if _may_overflow(each.kind):
            wide = table[sum_name(each)].cast(pa.decimal256(WIDE, each.kind.scale))
            table = _with(table, sum_name(each), wide)
    grouped = table.group_by(list(keys), use_threads=False).aggregate([(n, "sum") for n in added])
    grouped = grouped.rename_columns([*keys, *added])
    for each in sums:
        grouped = _with(grouped, sum_name(each), _as_sum(grouped[sum_name(each)], each))
    some = pc.not_equal(grouped[ROWS], 0)
    for each in sums:
        some = pc.or_(some, pc.not_equal(grouped[sum_name(each)], _zero(each)))
    return grouped.filter(some)


def _may_overflow(kind: ValueType) -> bool:
    """Whether a log could hold enough of the widest values; if so Arrow would not tell."""
    return kind.kind is Kind.DECIMAL and kind.precision > MAX_PRECISION - _DIGITS_OF_COUNTS


def _as_sum(values: pa.ChunkedArray, each: Input) -> pa.ChunkedArray:
    try:
        return pc.fill_null(values.cast(sum_type(each.kind)), _zero(each))
    except pa.ArrowInvalid:  # whose text would show the value
        raise SchemaMismatch(
            f"the sum of {each.name} has more than {MAX_PRECISION} digits, which Spark cannot hold",
            remedy="Give the column a narrower type, or leave the sum out of the aggregate",
            column=each.name,
        ) from None


def _zero(each: Input) -> pa.Scalar:
    return pa.scalar(0, sum_type(each.kind))


def _with(table: pa.Table, name: str, values: pa.ChunkedArray) -> pa.Table:
    return table.set_column(table.column_names.index(name), name, values)


def _other_table(definition: Definition, source: SummedSource) -> Stop | None:
    """A change of another table under the name that counts, or of ours under another one."""
    is_named, is_ours = definition.table == source.table, definition.relation.oid == source.oid
    if not source.rules or not source.oid or is_named == is_ours:
        return None
    if is_named:
        return Stop(StopCode.TABLE_REPLACED, str(source.table))
    return Stop(StopCode.TABLE_RENAMED, str(source.table), now=str(definition.table))


def _truncated(run: Run, message: int, table: TableName) -> Stop:
    return Stop(StopCode.TRUNCATED, str(table), lsn=str(Lsn(int(run.commit_lsn[message]))))


def _stopped(stop: Stop) -> str:
    return f"{STOPPED}{stop.to_json()}"


def _notes(ordinal: int, noted: Mapping[str, int]) -> pa.Table:
    return pa.table(
        {
            AGGREGATE: _repeat(ordinal, len(noted)),
            ROWS: pa.array(list(noted.values()), pa.int64()),
            NOTE: list(noted),
        }
    )


def _repeat(value: int, times: int) -> pa.Array:
    return pa.array(np.full(times, value, np.int32))


def _fitted(schema: pa.Schema, table: pa.Table | None) -> pa.RecordBatch:
    """All columns, in their order."""
    rows = 0 if table is None else len(table)
    columns = [
        table[field.name].combine_chunks().cast(field.type)
        if table is not None and field.name in table.column_names
        else pa.nulls(rows, field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
