"""The newest definition of each table in the log, in one small file, so that none must be searched.

The file is a row of relation frames, one for each table. Their `complete_lsn` says from when on the
definition is in force: whatever committed at or below was described otherwise.
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
    """A table as it was described last: a Relation message and its Types."""

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
        self._frames = {_oid(entry): _frame(entry) for entry in entries}
        self._contents = {_oid(entry): entry.messages for entry in entries}

    def note(self, entry: TableEntry) -> None:
        oid = _oid(entry)
        if self._contents.get(oid) != entry.messages:
            self._contents[oid] = entry.messages
            self._frames[oid] = _frame(entry)
            self._changed = True

    def save(self) -> None:
        if self._changed:
            self._storage.replace(FILE, b"".join(self._frames.values()))
            self._changed = False


def read_tables(storage: Storage) -> list[TableEntry]:
    """Raises `FormatError` if the file is not whole."""
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


def _frame(entry: TableEntry) -> bytes:
    return relation_frame(entry.messages, epoch=0, complete_lsn=entry.after_lsn, synced_pos=0)
