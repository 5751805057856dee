"""From runs of the log to Arrow batches: changes of many tables, their rows as JSON. Pure.

Numbers and booleans are JSON's own; everything else is a string with the text that Postgres prints.
A column whose value is not known is left out of its row.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.changelog.runs import BatchRange, Run
from penstock.decode.changes import unrepresentable
from penstock.decode.columns import Mask, Texts, column
from penstock.decode.definition import Definition
from penstock.decode.images import INSERT, POSTIMAGE, Images, images
from penstock.decode.metadata import (
    in_order,
    metadata,
    range_row,
    schema,
    truncated,
    words,
)
from penstock.decode.octets import Octets, Positions
from penstock.decode.tuples import NULL
from penstock.decode.tuples import TEXT as HAS_TEXT
from penstock.decode.types import TEXT, Kind
from penstock.lsn import Lsn
from penstock.names import TableName

# The table; the row's identity; what is known of the row before and after.
ROW_COLUMNS = ("table", "key", "before", "after")
_CHANGES = ("insert", "update", "delete", "truncate")
_NUMBERS = (Kind.SMALLINT, Kind.INTEGER, Kind.BIGINT, Kind.REAL, Kind.DOUBLE, Kind.DECIMAL)
# What JSON writes with a backslash.
_ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t"}


@dataclass(frozen=True, slots=True)
class WantedTables:
    """Which tables; none: all of them."""

    tables: tuple[TableName, ...]
    on_truncate: Literal["error", "skip", "emit"] = "error"
    on_unrepresentable: Literal["error", "null"] = "error"
    prefix: str = "_"


class JsonChanges:
    """Decodes run after run."""

    def __init__(self, wanted: WantedTables) -> None:
        self._wanted = wanted
        self._definitions: dict[tuple[bytes, ...], Definition] = {}
        fields = [pa.field(name, pa.string()) for name in ROW_COLUMNS]
        self.schema = schema(fields, wanted.prefix)

    def range_row(self, covered: BatchRange) -> pa.RecordBatch:
        return range_row(self.schema, self._wanted.prefix, covered)

    def batches(self, runs: Iterable[Run]) -> Iterator[pa.RecordBatch]:
        return (batch for batch in map(self.batch, runs) if batch.num_rows)

    def batch(self, run: Run) -> pa.RecordBatch:
        octets = Octets(run.buffer)
        parts = []
        names: dict[int, TableName] = {}  # of the definitions that are wanted
        for ordinal, messages in enumerate(run.definitions):
            if messages not in self._definitions:
                self._definitions[messages] = Definition.parse(messages)
            definition = self._definitions[messages]
            if self._wanted.tables and definition.table not in self._wanted.tables:
                continue
            names[ordinal] = definition.table
            index = np.flatnonzero(run.definition == ordinal)
            if len(index):
                parts.append(self._rows(octets, run, index, definition))
        emptied = [(message, names[which]) for message, which in run.emptied if which in names]
        if self._wanted.on_truncate != "skip" and emptied:
            parts.append(self._emptied(run, emptied))
        return in_order(self.schema, parts)

    def _rows(
        self, octets: Octets, run: Run, index: Positions, definition: Definition
    ) -> tuple[Positions, list[pa.Array]]:
        columns = definition.relation.columns
        every = range(len(columns))
        found = images(octets, run, index, definition.relation, every, preimages=True)
        parts = [self._column(octets, run, found, definition, place) for place in every]
        rows = _objects(parts, len(found.message))
        # The primary key where it is known to differ from the identity.
        key = [place for place in every if columns[place].in_primary_key] or [
            place for place in every if columns[place].in_identity
        ]
        is_new = (found.change == INSERT) | (found.change == POSTIMAGE)
        # Of each message the row before and the row after, as far as there is one.
        which = np.searchsorted(index, found.message)
        after, before = _row_of(which, is_new, len(index)), _row_of(which, ~is_new, len(index))
        either = np.where(after >= 0, after, before)
        masks = [
            {columns[place].name: mask[rows_of] & (rows_of >= 0) for place, mask in known.items()}
            for known, rows_of in ((found.unchanged, after), (found.absent, before))
        ]
        kinds = np.where(before < 0, 0, np.where(after < 0, 2, 1))
        return index, [
            pa.array([str(definition.table)] * len(index)),
            _objects([parts[place] for place in key], len(found.message)).take(pa.array(either)),
            _taken(rows, before),
            _taken(rows, after),
            *metadata(run, index, words(kinds, _CHANGES), *masks),
        ]

    def _column(
        self, octets: Octets, run: Run, found: Images, definition: Definition, place: int
    ) -> pa.Array:
        """`"name":value` for each image, NULL where it is not known."""
        cells, absent = found.cells[place], found.absent[place]
        valid = (cells.kind == HAS_TEXT) & ~absent
        name = definition.relation.columns[place].name
        text, bad = column(Texts(octets, cells.start, cells.length, valid), TEXT)
        if bad.any() and self._wanted.on_unrepresentable == "error":
            lsn = Lsn(int(run.commit_lsn[found.message[bad.argmax()]]))
            raise unrepresentable(definition.table, name, TEXT, lsn)
        value = _json_values(text, definition.types[place].kind)
        is_null = ((cells.kind == NULL) | bad) & ~absent
        value = pc.if_else(pa.array(is_null), "null", value)
        return pc.binary_join_element_wise(json.dumps(name, ensure_ascii=False) + ":", value, "")

    def _emptied(
        self, run: Run, emptied: list[tuple[int, TableName]]
    ) -> tuple[Positions, list[pa.Array]]:
        if self._wanted.on_truncate == "error":
            raise truncated(run, *emptied[0])
        index = np.array([message for message, _ in emptied], np.int64)
        nulls = pa.nulls(len(index), pa.string())
        return index, [
            pa.array([str(table) for _, table in emptied]),
            *(nulls, nulls, nulls),
            *metadata(run, index, words(np.full(len(index), 3), _CHANGES), {}, {}),
        ]


def _json_values(text: pa.Array, kind: Kind) -> pa.Array:
    if kind is Kind.BOOLEAN:
        return pc.if_else(pc.equal(text, "t"), "true", "false")
    if kind in _NUMBERS:
        # NaN and the infinities are not numbers in JSON.
        return pc.if_else(pc.match_substring_regex(text, r"^-?\d"), text, _quoted(text))
    return _quoted(text)


def _quoted(text: pa.Array) -> pa.Array:
    if pc.any(pc.match_substring_regex(text, r"[\x00-\x08\x0b\x0c\x0e-\x1f]")).as_py():
        dumped = [
            None if each is None else json.dumps(each, ensure_ascii=False)
            for each in text.to_pylist()
        ]
        return pa.array(dumped, pa.string())
    for plain, escaped in _ESCAPES.items():
        text = pc.replace_substring(text, plain, escaped)
    return pc.binary_join_element_wise('"', text, '"', "")


def _objects(parts: Sequence[pa.Array], rows: int) -> pa.Array:
    if not parts:
        return pa.array(["{}"] * rows)
    # A first part that is never NULL: Arrow drops rows in which all of them are.
    inner = pc.binary_join_element_wise("", *parts, ",", null_handling="skip")
    return pc.binary_join_element_wise("{", pc.utf8_slice_codeunits(inner, 1), "}", "")


def _row_of(which: Positions, mask: Mask, messages: int) -> Positions:
    """For each message the image that `mask` marks, or -1."""
    found = np.full(messages, -1, np.int64)
    found[which[mask]] = np.flatnonzero(mask)
    return found


def _taken(rows: pa.Array, index: Positions) -> pa.Array:
    return rows.take(pa.array(index, mask=index < 0))
