"""The newest definition of each table in the log, in one small file, so that none must be searched.

The file is a row of relation frames, in the order in which the tables were described: one for each
name that a table has had, for what was written under an old name can still be read. Their
`complete_lsn` says from when on the definition is in force: whatever committed at or below may have
been described otherwise.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass

from penstock.changelog.building import relation_frame
from penstock.changelog.format import (
    FRAME_HEADER_SIZE,
    FormatError,
    FrameHeader,
    unpack_messages,
)
from penstock.changelog.storage import Storage
from penstock.lsn import Lsn

FILE = "tables"


@dataclass(frozen=True, slots=True)
class TableEntry:
    """A table as it was described last by this name: a Relation message and its Types."""

    after_lsn: Lsn
    messages: tuple[bytes, ...]


class TableBook:
    """What the writer keeps of it."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._changed = False
        try:
            entries = read_tables(storage)
        except FormatError:
            # The server describes each table again: with its next change it will be there.
            entries = []
        # By oid and name, the newest last; and how each oid is described now.
        self._frames = {_key(entry): _frame(entry) for entry in entries}
        self._in_force = {_oid(entry): entry.messages for entry in entries}

    def note(self, entry: TableEntry) -> None:
        if self._in_force.get(_oid(entry)) != entry.messages:
            self._in_force[_oid(entry)] = entry.messages
            # Behind all others: of two tables that had one name, the last one is that name's.
            self._frames.pop(_key(entry), None)
            self._frames[_key(entry)] = _frame(entry)
            self._changed = True

    def save(self) -> None:
        if self._changed:
            self._storage.replace(FILE, b"".join(self._frames.values()))
            self._changed = False


def read_tables(storage: Storage) -> list[TableEntry]:
    """As they were described, oldest first. Raises `FormatError` if the file is not whole."""
    try:
        data = storage.read(FILE)
    except FileNotFoundError:
        return []
    entries, at = [], 0
    while at < len(data):
        header = FrameHeader.unpack(data, at)
        content = data[at + FRAME_HEADER_SIZE : at + header.size]
        if zlib.crc32(content) != header.data_checksum:
            raise FormatError("a table's description does not match its checksum")
        messages = unpack_messages(content, header.messages)
        entries.append(
            TableEntry(
                header.complete_lsn, tuple(messages[index] for index in range(len(messages)))
            )
        )
        at += header.size
    return entries


def _oid(entry: TableEntry) -> int:
    return int.from_bytes(entry.messages[0][1:5], "big")


def _key(entry: TableEntry) -> bytes:
    """Oid, schema and name, as they stand at the start of a Relation."""
    relation = entry.messages[0]
    end_of_schema = relation.index(b"\0", 5)
    return relation[: relation.index(b"\0", end_of_schema + 1)]


def _frame(entry: TableEntry) -> bytes:
    return relation_frame(entry.messages, epoch=0, complete_lsn=entry.after_lsn, synced_pos=0)
