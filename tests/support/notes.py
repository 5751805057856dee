"""A log of one table, `notes`, that a test writes: what it holds is easy to count."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from penstock.changelog.settings import LogSettings
from penstock.changelog.writer import LogWriter
from penstock.closing import Closing
from penstock.lsn import Lsn
from penstock.postgres.fragments import Fragmenter
from penstock.postgres.messages import Column, Insert, Message, Relation
from support import wire
from support.logs import IDENTITY, append_transaction, apply

NOTES = Relation(
    oid=16400,
    namespace="public",
    name="notes",
    replica_identity="d",
    columns=(
        Column(in_identity=True, name="id", type_oid=20, type_modifier=-1),
        Column(in_identity=False, name="body", type_oid=25, type_modifier=-1),
    ),
)


class NotesLog(Closing):
    """Notes with the numbers 0, 1, 2, …, each inserted once."""

    def __init__(self, path: Path, settings: LogSettings | None = None) -> None:
        self.path = path
        self.written = 0
        self.writer = LogWriter(path, replace(IDENTITY, start_lsn=Lsn(0x100)), settings)
        self._lsn = 0x100

    def close(self) -> None:
        self.writer.close()

    def insert(self, count: int, *, body: bytes = b"text") -> None:
        """One transaction of so many notes, durable and visible."""
        append_transaction(self.writer, self._next_lsn(), *self._notes(count, body))

    def insert_large(self, count: int, *, body: bytes, run: int = 100) -> None:
        """The same, received in pieces: its parts are all over the log."""
        lsn = self._next_lsn()
        fragmenter = Fragmenter(self.writer.complete_lsn)
        messages = [wire.xlog(message) for message in self._notes(count, body)]
        messages = [wire.begin(lsn - 8), *messages, wire.commit(lsn)]
        for at in range(0, len(messages), run):
            apply(self.writer, fragmenter, [memoryview(m) for m in messages[at : at + run]])
        self.writer.flush(Lsn(lsn))

    def _next_lsn(self) -> int:
        self._lsn += 0x100
        return self._lsn

    def _notes(self, count: int, body: bytes) -> Iterable[Message]:
        first, self.written = self.written, self.written + count
        numbers = range(first, first + count)
        return [NOTES, *(Insert(NOTES.oid, (str(n).encode(), body)) for n in numbers)]
