"""The newest definition of each table in the log, in one small file, so that none must be searched.

The file is a row of relation frames, in the order in which the tables were described: one for each
name that a table has had, because changes made under an old name can still be read. Their
`complete_lsn` says from when on the definition is in force: whatever committed at or below may have
been described otherwise. A frame replaces an earlier one of the same table and name.

New definitions are appended. The file is written anew when most of it has been replaced, or when a
definition is dropped. Readers take no lock: a frame at the end that is not whole is being appended.

Invariant: `synced_pos` of each frame is a size up to which the file was on disk before the frame
was visible. A file that is written anew is on disk to its end. So a frame that is not whole is
damage if it lies before the `synced_pos` of any frame, and else it was never synced.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from dataclasses import dataclass

from penstock.changelog.building import relation_frame
from penstock.changelog.format import (
    FRAME_HEADER_SIZE,
    FormatError,
    FrameHeader,
    unpack_messages,
)
from penstock.changelog.recovery import synced_beyond
from penstock.changelog.storage import Storage
from penstock.lsn import Lsn

FILE = "tables"
# The file is written anew when more than this, and more than half of it, has been replaced.
_LITTLE_BYTES = 2**16
# Definitions of tables that have no change in the log any more: kept so that a table that changes
# once a month can be read, and bounded because tables may be made and dropped every minute.
_MOST_UNUSED = 1000


@dataclass(frozen=True, slots=True)
class TableEntry:
    """A table as it was described last by this name: a Relation message and its Types."""

    after_lsn: Lsn
    messages: tuple[bytes, ...]

    @property
    def oid(self) -> int:
        return int.from_bytes(self.messages[0][1:5], "big")

    @property
    def key(self) -> bytes:
        """Oid, schema and name, as they stand at the start of a Relation."""
        return _key(self.messages[0])


class TableBook:
    """The writer's side of the file."""

    def __init__(self, storage: Storage, segment: int) -> None:
        """`segment`: the last one. It may use any of the definitions that are there."""
        self._storage = storage
        try:
            data = storage.read(FILE)
        except FileNotFoundError:
            data = b""
        try:
            entries, whole = _parse(data)
        except FormatError:
            # The server describes each table again: with its next change it will be there.
            entries, whole = [], 0
        self._size = len(data)
        # What is not whole, and what an older version wrote, cannot be appended to.
        self._rewrite = not data or whole < len(data) or _is_of_older_version(data)
        self._new: list[TableEntry] = []
        # By oid and name, the newest last.
        self._entries = {entry.key: entry for entry in _latest(entries)}
        self._in_force = {entry.oid: entry.messages for entry in self._entries.values()}
        # The last segment that uses each definition, by oid and name.
        self._used_in = dict.fromkeys(self._entries, segment)

    def note(self, entry: TableEntry, segment: int) -> None:
        """Take a definition that committed; `segment` is the last one."""
        if self._in_force.get(entry.oid) == entry.messages:
            return
        self._in_force[entry.oid] = entry.messages
        # Behind all others: of two tables that had one name, the last one is that name's.
        self._entries.pop(entry.key, None)
        self._entries[entry.key] = entry
        self._used_in[entry.key] = segment
        self._new.append(entry)

    def used(self, messages: tuple[bytes, ...], segment: int) -> None:
        """Changes in `segment` are described so."""
        key = _key(messages[0])
        if key in self._entries:
            self._used_in[key] = segment

    def _is_in_force(self, key: bytes) -> bool:
        """Whether the table is described so now, and not by another name."""
        messages = self._in_force.get(self._entries[key].oid)
        return messages is not None and _key(messages[0]) == key

    def forget_before(self, first_segment: int) -> None:
        """Drop definitions that nobody needs, now that the log begins with that segment.

        The newest one of each table and name stays, as far as there are not very many: who reads a
        table that changes rarely has to know its columns.
        """
        unused = [key for key in self._entries if self._used_in[key] < first_segment]
        newest_of_name = {_name(key): key for key in self._entries}
        replaced = [
            key for key in unused if newest_of_name[_name(key)] != key or not self._is_in_force(key)
        ]
        rest = [key for key in unused if key not in set(replaced)]
        for key in (*replaced, *rest[: max(0, len(rest) - _MOST_UNUSED)]):
            entry = self._entries.pop(key)
            del self._used_in[key]
            if self._in_force.get(entry.oid) == entry.messages:
                del self._in_force[entry.oid]
            self._rewrite = True

    def save(self) -> None:
        """Make what was noted durable."""
        if not self._new and not (self._rewrite and self._size):
            return
        added = _frames(self._new, synced_pos=self._size)
        live = sum(map(_frame_size, self._entries.values()))
        if self._rewrite or self._size + len(added) > 2 * live + _LITTLE_BYTES:
            self._storage.replace(FILE, _frames(self._entries.values(), synced_pos=live))
            self._size, self._rewrite = live, not live
        else:
            file = self._storage.append_to(FILE)
            try:
                file.write(added)
                file.sync()
            finally:
                file.close()
            self._size += len(added)
        self._new.clear()


def read_tables(storage: Storage) -> list[TableEntry]:
    """Return the tables as they were described last, oldest first.

    Raises `FormatError` if the file is damaged.
    """
    try:
        data = storage.read(FILE)
    except FileNotFoundError:
        return []
    entries, _ = _parse(data)
    return _latest(entries)


def _parse(data: bytes) -> tuple[list[TableEntry], int]:
    """Return the entries, and where the last whole one ends."""
    entries: list[TableEntry] = []
    at = 0
    while at < len(data):
        try:
            entry, size = _entry_at(data, at)
        except FormatError:
            if at == 0 or _is_of_older_version(data) or synced_beyond(data[at:], at):
                raise
            break
        entries.append(entry)
        at += size
    return entries, at


def _entry_at(data: bytes, at: int) -> tuple[TableEntry, int]:
    header = FrameHeader.unpack(data, at)
    content = data[at + FRAME_HEADER_SIZE : at + header.size]
    if zlib.crc32(content) != header.data_checksum:
        raise FormatError("a table's description does not match its checksum")
    messages = unpack_messages(content, header.messages)
    entry = TableEntry(
        header.complete_lsn, tuple(messages[index] for index in range(len(messages)))
    )
    return entry, header.size


def _is_of_older_version(data: bytes) -> bool:
    """Older versions always wrote the file anew, and left `synced_pos` at 0."""
    return bool(data) and FrameHeader.unpack(data, 0).synced_pos == 0


def _latest(entries: Iterable[TableEntry]) -> list[TableEntry]:
    """Return the last entry of each table and name, in the order in which they were described."""
    found: dict[bytes, TableEntry] = {}
    for entry in entries:
        found.pop(entry.key, None)
        found[entry.key] = entry
    return list(found.values())


def _key(relation: bytes) -> bytes:
    end_of_schema = relation.index(b"\0", 5)
    return relation[: relation.index(b"\0", end_of_schema + 1)]


def _name(key: bytes) -> bytes:
    """Return schema and name."""
    return key[5:]


def _frames(entries: Iterable[TableEntry], synced_pos: int) -> bytes:
    return b"".join(
        relation_frame(entry.messages, epoch=0, complete_lsn=entry.after_lsn, synced_pos=synced_pos)
        for entry in entries
    )


def _frame_size(entry: TableEntry) -> int:
    # The length of each message stands before them.
    return FRAME_HEADER_SIZE + sum(4 + len(message) for message in entry.messages)
