"""Reads wal2json's documents: JSON text in, values out, each number as its digits. Pure.

Format 2 has one document for each change, and for the begin and the commit of a transaction. Format
1 has one for a whole transaction, which is read change by change: it may be nearly a gigabyte.

A value is text as Postgres prints it, or None. wal2json changes some on the way, which is undone
here: booleans are JSON's, and a bytea lacks its `\\x`. Bytes that are no UTF-8 stay as they are.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, NamedTuple, TypeAlias

from penstock.errors import DocumentInvalid
from penstock.lsn import Lsn
from penstock.names import TableName

Kind: TypeAlias = Literal["I", "U", "D"]

BYTEA_OID = 17
_KINDS: dict[str, Kind] = {"insert": "I", "update": "U", "delete": "D"}
_HEADER = re.compile(r'\{(.*?),?\s*"change":\s*\[', re.DOTALL)
_COLUMN_LISTS = ("columnnames", "columntypes", "columntypeoids", "columnoptionals")
_KEY_LISTS = ("keynames", "keytypes", "keytypeoids")
# Rows with NULLs in other places have other old keys.
_MOST_HEADINGS = 4096
_BETWEEN = re.compile(r"[\s,]*")
_END = re.compile(r"\s*\]\s*\}\s*")
# wal2json does not escape the name of a type that begins with a quote: "type":"Odd schema".mood
_TYPE = r'(?:"(?:[^"\\]|\\.)*"|\([^)]*\)|[^",()\[\]\s])+'
_TYPE_FIELD = re.compile(rf'(?<="type":){_TYPE}(?=,"typeoid":)')
_LISTED_TYPE = re.compile(_TYPE)
_TYPE_LISTS = (
    re.compile(r'(?<="columntypes":)\s*\[.*?\](?=,\s*"columntypeoids")', re.DOTALL),
    re.compile(r'(?<="keytypes":)\s*\[.*?\](?=,\s*"keytypeoids")', re.DOTALL),
    re.compile(r'(?<="pktypes":)\s*\[.*?\](?=\s*\})', re.DOTALL),
)
_MOMENT = re.compile(r"(\d+)(-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d+)?[-+][\d:]+)( BC)?")
_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
# The calendar repeats itself.
_CYCLE_YEARS = 400
_CYCLE_DAYS = 146_097


class Shown(NamedTuple):
    """A column that a document names. `type_text` is None without type names, `nullable` where
    that is not said.
    """

    name: str
    type_text: str | None
    type_oid: int
    nullable: bool | None


@dataclass(frozen=True, slots=True, eq=False)
class Heading:
    """All that a changed row's document says besides the values. Compared by identity, so that what
    follows from it can be remembered with it.
    """

    kind: Kind
    table: TableName
    new: tuple[Shown, ...]
    # Its identity or all of it, which the document does not say. Empty: all of it was NULL.
    old: tuple[Shown, ...]
    has_old: bool
    # The names of the primary key's columns; None: not said.
    pk: tuple[str, ...] | None


@dataclass(frozen=True, slots=True)
class Change:
    """A changed row: the values of the new row, then those of the old one."""

    heading: Heading
    values: list[bytes | None]


@dataclass(frozen=True, slots=True)
class Truncated:
    table: TableName


@dataclass(frozen=True, slots=True)
class Told:
    """A logical message."""

    transactional: bool
    prefix: str
    content: bytes


@dataclass(frozen=True, slots=True)
class Began:
    """The start of a transaction, with what its end will be. `commit_lsn` is not in format 1."""

    xid: int
    committed_us: int
    commit_lsn: Lsn | None
    end_lsn: Lsn


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of a transaction."""


Document: TypeAlias = Began | Ended | Change | Truncated | Told


def _no_constant(name: str) -> Any:
    """`NaN` and `Infinity` are no JSON, though Python reads them."""
    raise json.JSONDecodeError(name, "", 0)


_DECODER = json.JSONDecoder(parse_int=str, parse_float=str, parse_constant=_no_constant)


# --- format 2 -----------------------------------------------------------------------------------


def document(lsn: Lsn, data: bytes) -> Document:
    """Read one document of format 2."""
    text = data.decode(errors="surrogateescape")
    try:
        return _document(_whole(text))
    except json.JSONDecodeError as error:
        raise DocumentInvalid("is not JSON", lsn=lsn, at=error.pos) from None
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise DocumentInvalid(_lacking(error, 2), lsn=lsn) from None


def _whole(text: str) -> dict[str, Any]:
    try:
        value, end = _DECODER.raw_decode(text)
    except json.JSONDecodeError:
        text = _repaired_type(text)
        value, end = _DECODER.raw_decode(text)
    if text[end:].strip():
        raise json.JSONDecodeError("more than one document", text, end)
    return dict(value)


def _document(found: dict[str, Any]) -> Document:
    match found["action"]:
        case "B":
            return Began(
                int(found["xid"]),
                microseconds(found["timestamp"]),
                Lsn.parse(found["lsn"]),
                Lsn.parse(found["nextlsn"]),
            )
        case "C":
            return Ended()
        case "I" | "U" | "D" as kind:
            new, old = found.get("columns", []), found.get("identity", [])
            heading = Heading(
                kind,
                _table(found),
                tuple(map(_shown, new)),
                tuple(map(_shown, old)),
                "identity" in found,
                tuple(one["name"] for one in found["pk"]) if "pk" in found else None,
            )
            oids = [one.type_oid for one in (*heading.new, *heading.old)]
            return Change(heading, _texts([one["value"] for one in (*new, *old)], oids))
        case "T":
            return Truncated(_table(found))
        case "M":
            return _told(found)
        case _:
            raise ValueError("action")


def _shown(found: dict[str, Any]) -> Shown:
    # The oid is printed as a signed number.
    oid = int(found["typeoid"]) & 0xFFFF_FFFF
    return Shown(found["name"], found.get("type"), oid, found.get("optional"))


# --- format 1 -----------------------------------------------------------------------------------


class Transactions:
    """Reads documents of format 1: a transaction each, or a message outside of one."""

    def __init__(self) -> None:
        # By the lists of a change's columns: the headings that have been made.
        self._headings: dict[tuple[Any, ...], Heading] = {}

    def read(self, lsn: Lsn, data: bytes) -> Iterator[Document]:
        """Return what a document holds, in its order."""
        text = data.decode(errors="surrogateescape")
        try:
            yield from self._read(text)
        except json.JSONDecodeError as error:
            raise DocumentInvalid("is not JSON", lsn=lsn, at=error.pos) from None
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise DocumentInvalid(_lacking(error, 1), lsn=lsn) from None

    def _read(self, text: str) -> Iterator[Document]:
        header = _HEADER.match(text)
        if header is None:
            raise json.JSONDecodeError("no start", "", 0)
        about = _DECODER.decode("{" + header[1] + "}")
        if about:
            committed_us = microseconds(about["timestamp"])
            yield Began(int(about["xid"]), committed_us, None, Lsn.parse(about["nextlsn"]))
        at = _skip(text, header.end())
        while text.startswith("{", at):
            try:
                found, end = _DECODER.raw_decode(text, at)
            except json.JSONDecodeError:
                # What stands before stays as it is, so `at` does too.
                text = _repaired_types(text)
                found, end = _DECODER.raw_decode(text, at)
            yield self._change(found)
            at = _skip(text, end)
        if _END.fullmatch(text, at) is None:
            raise json.JSONDecodeError("no end", "", at)
        if about:
            yield Ended()

    def _change(self, found: dict[str, Any]) -> Document:
        if found["kind"] == "message":
            return _told(found)
        old = found.get("oldkeys", {})
        signature = (
            found["kind"],
            found["schema"],
            found["table"],
            *(tuple(found.get(name, ())) for name in _COLUMN_LISTS),
            *(tuple(old.get(name, ())) for name in _KEY_LISTS),
            "pk" in found and tuple(found["pk"]["pknames"]),
        )
        heading = self._headings.get(signature)
        if heading is None:
            if len(self._headings) >= _MOST_HEADINGS:
                self._headings.clear()
            heading = self._headings[signature] = _heading(found, old)
        values = [*found.get("columnvalues", ()), *old.get("keyvalues", ())]
        oids = [shown.type_oid for shown in heading.new]
        oids += [shown.type_oid for shown in heading.old]
        return Change(heading, _texts(values, oids))


def _heading(found: dict[str, Any], old: dict[str, Any]) -> Heading:
    kind = _KINDS[found["kind"]]
    new = () if kind == "D" else _columns(found, "column", found.get("columnoptionals"))
    pk = tuple(found["pk"]["pknames"]) if "pk" in found else None
    keys = _columns(old, "key", None) if old else ()
    return Heading(kind, _table(found), new, keys, bool(old), pk)


def _columns(
    found: dict[str, Any], what: str, optionals: Sequence[bool] | None
) -> tuple[Shown, ...]:
    names: list[str] = found[f"{what}names"]
    # Without type names the list of what may be null is there, and empty.
    nothing = (None,) * len(names)
    types = found.get(f"{what}types") or nothing
    oids = map(int, found[f"{what}typeoids"])
    return tuple(map(Shown._make, zip(names, types, oids, optionals or nothing, strict=True)))


def _skip(text: str, at: int) -> int:
    found = _BETWEEN.match(text, at)
    return found.end() if found is not None else at


# --- both ---------------------------------------------------------------------------------------


def _repaired_type(text: str) -> str:
    """Escape the types of format 2. Inside a JSON string no quote stands without its backslash,
    so `"type":` is never part of a value.
    """
    return _TYPE_FIELD.sub(_escaped_type, text)


def _repaired_types(text: str) -> str:
    """Escape the types in the lists of format 1."""
    for types in _TYPE_LISTS:
        text = types.sub(lambda found: _LISTED_TYPE.sub(_escaped_type, found[0]), text)
    return text


def _escaped_type(found: re.Match[str]) -> str:
    try:
        json.loads(found[0])
    except json.JSONDecodeError:
        return json.dumps(found[0])
    return found[0]


def _table(found: dict[str, Any]) -> TableName:
    return TableName(found["schema"], found["table"])


def _told(found: dict[str, Any]) -> Told:
    content = found["content"].encode(errors="surrogateescape")
    return Told(found["transactional"] is True, found["prefix"], content)


def _texts(values: Sequence[Any], type_oids: Sequence[int]) -> list[bytes | None]:
    return [
        None
        if value is None
        else b"t"
        if value is True
        else b"f"
        if value is False
        else b"\\x" + value.encode(errors="surrogateescape")
        if oid == BYTEA_OID
        else value.encode(errors="surrogateescape")
        for value, oid in zip(values, type_oids, strict=True)
    ]


def microseconds(moment: str) -> int:
    """Return microseconds since 2000 of a timestamp with time zone, as Postgres prints it.

    >>> microseconds("2000-01-01 01:00:00.5+01")
    500000
    """
    if moment.endswith("infinity"):
        return -(2**63) if moment.startswith("-") else 2**63 - 1
    found = _MOMENT.fullmatch(moment)
    if found is None:
        raise ValueError("timestamp")
    year = 1 - int(found[1]) if found[3] else int(found[1])
    # `datetime` has the years 1 to 9999; a commit may claim any that Postgres has.
    cycles = (year - _CYCLE_YEARS * 5) // _CYCLE_YEARS
    near = datetime.fromisoformat(f"{year - cycles * _CYCLE_YEARS:04}{found[2]}")
    return (near - _EPOCH + timedelta(cycles * _CYCLE_DAYS)) // timedelta(microseconds=1)


def _lacking(error: Exception, format_version: int) -> str:
    """Name the field, never its value: `ValueError` may quote that."""
    field = f" (field {error.args[0]!r})" if isinstance(error, KeyError) else ""
    return f"has not the form of format {format_version}{field}"
