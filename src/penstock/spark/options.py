"""The options of one `load()`, read and checked. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, TypeAlias

from penstock.changelog.consumers import is_name
from penstock.errors import BadOption
from penstock.lsn import Lsn
from penstock.names import TableName, column_name, split_names

Place: TypeAlias = Literal["earliest", "latest"] | Lsn | datetime

# So much of the log in one batch, unless told otherwise: a backlog is worked off in steps.
_MAX_BYTES = 256 * 2**20
_UNITS = {"": 1, "b": 1, "k": 2**10, "m": 2**20, "g": 2**30}


@dataclass(frozen=True, slots=True)
class SourceOptions:
    path: Path
    # One table, typed; or several (none: all), with rows as JSON.
    table: TableName | None
    tables: tuple[TableName, ...]
    columns: tuple[str, ...] | None
    consumer: str | None
    starting: Place
    ending: Place
    max_bytes: int
    max_rows: int | None
    preimages: bool
    on_truncate: Literal["error", "skip", "emit"]
    on_unrepresentable: Literal["error", "null", "string"]
    prefix: str
    batch_range: bool

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> SourceOptions:
        """Raises `BadOption`, which lists the valid ones."""
        # Of a table made with SQL, Spark gives each option a second time under this prefix.
        values = {
            name.lower(): value
            for name, value in given.items()
            if not name.lower().startswith("option.")
        }
        known = {name.lower(): name for name in _OPTIONS}
        for name in values:
            if name not in known:
                raise _bad(f"unknown option {name!r}", name)
        found: dict[str, Any] = {}
        for name, (field, read, default) in _OPTIONS.items():
            text = values.get(name.lower())
            if text is None:
                found[field] = default
                continue
            try:
                found[field] = read(text.strip())
            except ValueError as error:
                raise _bad(f"option {name!r}: {error}", name) from None
        if found["path"] is None:
            raise _bad("option 'path' is missing: the directory of the change log", "path")
        if (found["table"] is None) == (found["tables"] is None):
            raise _bad("give either 'table' (one, typed) or 'tables' (several, as JSON)", "table")
        if found["columns"] is not None and found["table"] is None:
            raise _bad("option 'columns' goes with 'table'", "columns")
        return cls(**{**found, "tables": found["tables"] or ()})


def _bad(problem: str, option: str) -> BadOption:
    return BadOption(problem, remedy=f"The options are: {', '.join(_OPTIONS)}", option=option)


def _one_of(*words: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text.lower() not in words:
            raise ValueError(f"{text!r} is none of: {', '.join(words)}")
        return text.lower()

    return read


def _flag(text: str) -> bool:
    return _one_of("true", "false")(text) == "true"


def _count(text: str) -> int:
    if not re.fullmatch(r"[1-9]\d*", text):
        raise ValueError(f"{text!r} is not a whole number above 0")
    return int(text)


def _size(text: str) -> int:
    found = re.fullmatch(r"([1-9]\d*)\s*([bkmg]?)b?", text.lower())
    if found is None:
        raise ValueError(f"{text!r} is not a size such as 1048576, 512k, 256m or 1g")
    return int(found[1]) * _UNITS[found[2]]


def _path(text: str) -> Path:
    # Spark may have made a URI of it.
    path = re.sub(r"^file:(//)?", "", text)
    if not path:
        raise ValueError("it is empty")
    if scheme := re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", path):
        raise ValueError(f"the log is read from a folder, not from {scheme[0]}")
    return Path(path).absolute()


def _place(text: str) -> Place:
    if text.lower() == "earliest":
        return "earliest"
    if text.lower() == "latest":
        return "latest"
    if re.fullmatch(r"[0-9A-Fa-f]{1,8}/[0-9A-Fa-f]{1,8}", text):
        return Lsn.parse(text)
    if text.isdecimal():  # as in _commit_version
        return Lsn(int(text))
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(
            f"{text!r} is none of: earliest, latest, an LSN such as 0/16B3748, "
            "a time such as 2026-11-16T12:00:00+00:00"
        ) from None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def _tables(text: str) -> tuple[TableName, ...]:
    return () if text == "*" else tuple(map(TableName.parse, split_names(text)))


def _consumer(text: str) -> str:
    if not is_name(text):
        raise ValueError(f"{text!r} is not a name of up to 100 letters, digits, - and _")
    return text


def _columns(text: str) -> tuple[str, ...]:
    names = tuple(map(column_name, split_names(text)))
    if len(set(names)) < len(names):
        raise ValueError("a column is named twice")
    return names


# Name, where it goes, how it is read, and what it is if it is not given.
_OPTIONS: dict[str, tuple[str, Callable[[str], Any], Any]] = {
    "path": ("path", _path, None),
    "table": ("table", TableName.parse, None),
    "tables": ("tables", _tables, None),
    "columns": ("columns", _columns, None),
    "consumer": ("consumer", _consumer, None),
    "startingPosition": ("starting", _place, "earliest"),
    "endingPosition": ("ending", _place, "latest"),
    "maxBytesPerTrigger": ("max_bytes", _size, _MAX_BYTES),
    "maxRowsPerTrigger": ("max_rows", _count, None),
    "preimages": ("preimages", _flag, True),
    "onTruncate": ("on_truncate", _one_of("error", "skip", "emit"), "error"),
    "onUnrepresentable": ("on_unrepresentable", _one_of("error", "null", "string"), "error"),
    "metadataPrefix": ("prefix", str, "_"),
    "batchRange": ("batch_range", _flag, False),
}
