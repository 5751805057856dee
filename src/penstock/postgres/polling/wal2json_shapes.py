"""Reads documents of format 2 whose shape is known, without parsing them as JSON. Pure.

Between its values, each document of a table has the same bytes as the one before: names, types and
punctuation. So one that was parsed makes a regular expression with a group for each value, and the
next ones are matched, which takes a tenth of the time: `penstock bench polling` asked for it. A
document that does not match is parsed.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from penstock.lsn import Lsn
from penstock.postgres.polling.wal2json_documents import BYTEA_OID
from penstock.postgres.polling.wal2json_layout import NUMBER_OIDS, Layout, Slot

# smallint, integer, bigint, oid: printed without quotes, as the numbers that may be NaN are.
_INTEGER_OIDS = frozenset((20, 21, 23, 26))
_BOOL_OID = 16
# Updates that leave out other TOASTed columns have shapes of their own. More are parsed.
_MOST_SHAPES = 16

_ACTION = b'{"action":"'
_ACTION_AT = len(_ACTION)
# In front of it stand xid, time and position, which differ.
_START = b',"schema":"'
# Inside a JSON string no quote stands without its backslash: this is never part of a value.
_VALUE = re.compile(rb'"value":(?:"(?:[^"\\]|\\.)*"|[^",}]+)')
# Nothing is tried twice where a document does not match.
_TEXT = rb'"([^"\\]*+(?:\\.[^"\\]*+)*+)"'
# From wal2json 2.6 on, numbers may have quotes.
_NUMBER = rb'"?([-+0-9][-+0-9.eE]*|(?<=")(?:NaN|-?Infinity))"?'
_BOOL = rb"(t|f)(?:rue|alse)"


@dataclass(frozen=True, slots=True)
class _Shape:
    matches: re.Pattern[bytes]
    layout: Layout
    # The places of values that lack their `\\x`.
    bytea: tuple[int, ...]
    # The table's, when the layout was made.
    version: object


class Shapes:
    """The shapes that one connection has seen."""

    def __init__(self) -> None:
        self._shapes: dict[bytes, list[_Shape]] = {}
        # The version of each table, by oid: shapes of another one no longer fit.
        self._versions: dict[int, object] = {}

    def record(self, lsn: Lsn, data: bytes) -> bytes | None:
        """Return the record of a change, or None for a document of another shape."""
        start = data.find(_START)
        shapes = self._shapes.get(_key(data, start))
        if shapes is None:
            return None
        for shape in shapes:
            if (found := shape.matches.match(data, start)) is not None:
                if self._versions[shape.layout.oid] is not shape.version:
                    shapes.remove(shape)
                    return None
                values: list[bytes | None] = list(found.groups())
                if b"\\" in data:
                    values = [_unescaped(v) if v and b"\\" in v else v for v in values]
                for place in shape.bytea:
                    value = values[place]
                    values[place] = None if value is None else b"\\x" + value
                return shape.layout.record(lsn, values)
        return None

    def learn(self, data: bytes, layout: Layout, version: object) -> None:
        """Remember the shape of a document that was parsed, and the version of its table."""
        self._versions[layout.oid] = version
        start = data.find(_START)
        shapes = self._shapes.setdefault(_key(data, start), [])
        if start < 0 or len(shapes) >= _MOST_SHAPES:
            return
        constants = _VALUE.split(data[start:])
        if len(constants) != len(layout.slots) + 1:
            return
        pattern = re.escape(constants[0])
        for slot, constant in zip(layout.slots, constants[1:], strict=True):
            pattern += rb'"value":' + _group(slot) + re.escape(constant)
        bytea = [at for at, slot in enumerate(layout.slots) if slot.type_oid == BYTEA_OID]
        shapes.append(_Shape(re.compile(pattern + rb"\Z"), layout, tuple(bytea), version))


def _key(data: bytes, start: int) -> bytes:
    """Return the action, the schema and the table, as they stand in a document."""
    return data[_ACTION_AT : _ACTION_AT + 1] + data[start : data.find(b":[", start)]


def _group(slot: Slot) -> bytes:
    oid = slot.type_oid
    is_number = oid in _INTEGER_OIDS or oid in NUMBER_OIDS
    value = _BOOL if oid == _BOOL_OID else _NUMBER if is_number else _TEXT
    can_be_null = slot.may_be_null and not slot.is_lost_if_null
    return rb"(?:" + value + rb"|null)" if can_be_null else value


def _unescaped(text: bytes) -> bytes:
    quoted = '"' + text.decode(errors="surrogateescape") + '"'
    plain: str = json.loads(quoted)
    return plain.encode(errors="surrogateescape")
