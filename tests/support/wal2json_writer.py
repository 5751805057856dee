"""Documents as wal2json 2.5 writes them, for changes that a test makes up.

An oracle for the translation, written from wal2json's own output, with what pgoutput would say of
the same change beside it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from penstock.names import TableName

NUMBERS = (21, 23, 20, 26, 700, 701, 1700)
_SPECIAL = (b"NaN", b"Infinity", b"-Infinity")
_KINDS = {"I": "insert", "U": "update", "D": "delete"}

XID = 740
BEGIN = {
    "xid": XID,
    "timestamp": "2026-11-18 12:14:13.858327+00",
    "lsn": "0/15555F0",
    "nextlsn": "0/1555620",
}


@dataclass(frozen=True)
class Field:
    name: str
    type_text: str | None
    oid: int
    nullable: bool = True
    toasted: bool = False


@dataclass(frozen=True)
class Source:
    """A table; `identity` as in pg_class, `key` the columns of its primary key or index."""

    name: TableName
    fields: tuple[Field, ...]
    identity: Literal["d", "i", "f"]
    key: tuple[str, ...]
    pk: tuple[str, ...]


Row = dict[str, bytes | None]


@dataclass(frozen=True)
class RowChange:
    """A change of one row. `omitted`: TOASTed values that an update did not touch."""

    kind: Literal["I", "U", "D"]
    source: Source
    new: Row
    old: Row
    omitted: frozenset[str] = frozenset()


def literal(value: bytes | None, oid: int) -> str:
    """The JSON of a value."""
    if value is None or (oid in NUMBERS and value in _SPECIAL):
        return "null"
    if oid in NUMBERS:
        return value.decode()
    if oid == 16:
        return "true" if value == b"t" else "false"
    text = value.decode(errors="surrogateescape")
    return json.dumps(text[2:] if oid == 17 else text, ensure_ascii=False)


def format_2(change: RowChange) -> bytes:
    source = change.source
    parts = [f'{{"action":"{change.kind}"', f'"xid":{XID}', f'"timestamp":"{BEGIN["timestamp"]}"']
    parts += ['"lsn":"0/1555390"', f'"schema":{_quoted(source.name.schema)}']
    parts.append(f'"table":{_quoted(source.name.name)}')
    if change.kind != "D":
        shown = [one for one in source.fields if one.name not in change.omitted]
        cells = [_cell(one, change.new[one.name], ends=_optional(one)) for one in shown]
        parts.append(f'"columns":[{",".join(cells)}]')
    if change.kind != "I":
        cells = [_cell(one, change.old[one.name]) for one in _identity(change)]
        parts.append(f'"identity":[{",".join(cells)}]')
    pk = [_head(one) + "}" for one in source.fields if one.name in source.pk]
    return (",".join(parts) + f',"pk":[{",".join(pk)}]}}').encode(errors="surrogateescape")


def control_2(action: str, **facts: Any) -> bytes:
    """A document of format 2 that is no row: B, C, T or M."""
    return json.dumps({"action": action, **facts}, separators=(",", ":")).encode()


def begin_2() -> bytes:
    return control_2("B", **BEGIN)


def commit_2() -> bytes:
    return control_2("C", **BEGIN)


def format_1(changes: Sequence[RowChange], *, pretty: bool = False) -> bytes:
    """A transaction of format 1."""
    body = ",".join(map(_change_1, changes))
    text = (
        f'{{"xid":{XID},"nextlsn":"{BEGIN["nextlsn"]}","timestamp":"{BEGIN["timestamp"]}",'
        f'"change":[{body}]}}'
    )
    if pretty:
        # Numbers keep their digits.
        found = json.loads(text, parse_float=_Digits, parse_int=_Digits)
        text = json.dumps(found, indent="\t", ensure_ascii=False)
        text = text.replace('"\ue000', "").replace('\ue000"', "")
    return text.encode(errors="surrogateescape")


class _Digits(str):
    """A number in a document that is written anew."""

    def __new__(cls, digits: str) -> _Digits:
        return super().__new__(cls, f"\ue000{digits}\ue000")


def _change_1(change: RowChange) -> str:
    source = change.source
    parts = [f'{{"kind":"{_KINDS[change.kind]}"', f'"schema":{_quoted(source.name.schema)}']
    parts.append(f'"table":{_quoted(source.name.name)}')
    if change.kind != "D":
        shown = [one for one in source.fields if one.name not in change.omitted]
        parts += _lists("column", shown, change.new)
        optional = ("true" if one.nullable else "false" for one in shown)
        # Behind the types and oids, before the values.
        parts.insert(-1, f'"columnoptionals":[{",".join(optional)}]')
    if source.identity == "d":
        pk = [one for one in source.fields if one.name in source.pk]
        names, types = _join(one.name for one in pk), _join(one.type_text for one in pk)
        parts.append(f'"pk":{{"pknames":[{names}],"pktypes":[{types}]}}')
    if change.kind != "I":
        shown = [one for one in _identity(change) if change.old[one.name] is not None]
        parts.append(f'"oldkeys":{{{",".join(_lists("key", shown, change.old))}}}')
    return ",".join(parts) + "}"


def _lists(what: str, shown: Sequence[Field], row: Row) -> list[str]:
    values = ",".join(literal(row[one.name], one.oid) for one in shown)
    return [
        f'"{what}names":[{_join(one.name for one in shown)}]',
        f'"{what}types":[{_join(one.type_text for one in shown)}]',
        f'"{what}typeoids":[{",".join(str(one.oid) for one in shown)}]',
        f'"{what}values":[{values}]',
    ]


def _identity(change: RowChange) -> list[Field]:
    source = change.source
    return [one for one in source.fields if source.identity == "f" or one.name in source.key]


def _cell(field: Field, value: bytes | None, ends: str = "") -> str:
    return f'{_head(field)},"value":{literal(value, field.oid)}{ends}}}'


def _head(field: Field) -> str:
    return f'{{"name":{_quoted(field.name)},"type":{_quoted(field.type_text)},"typeoid":{field.oid}'


def _optional(field: Field) -> str:
    return f',"optional":{"true" if field.nullable else "false"}'


def _join(texts: Any) -> str:
    return ",".join(map(_quoted, texts))


def _quoted(text: str | None) -> str:
    return json.dumps(text, ensure_ascii=False)
