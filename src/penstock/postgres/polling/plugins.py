"""The output plugins that polling can read, each as the statement it needs and what its rows mean.

Pure: rows of a binary COPY in, CopyData messages out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Protocol

from penstock.lsn import ZERO, Lsn
from penstock.names import TableName
from penstock.postgres.polling import statements
from penstock.postgres.polling.wal2json import Translator
from penstock.postgres.polling.wal2json_options import FormatVersion, slot_options

# A row of a binary COPY: how many columns it has, then length and bytes of each.
_COLUMN_POS = 2 + 4
# The first column of wal2json's rows is a position.
_LSN_END = _COLUMN_POS + 8
_TEXT_POS = _LSN_END + 4


class PollPlugin(Protocol):
    """One peek at a time: `peek` begins it, `messages` takes its rows in order."""

    name: str

    @property
    def complete_lsn(self) -> Lsn:
        """The end of the last transaction that was read whole, also if it made no messages."""

    def peek(self, slot: str, wal_end: Lsn, most: int) -> str: ...

    def messages(self, rows: Iterable[memoryview]) -> list[memoryview]: ...


class Pgoutput:
    """The server's own plugin: its bytes are what replication would send."""

    name = "pgoutput"

    def __init__(self, publication: str, *, messages: bool) -> None:
        escaped = publication.replace('"', '""')
        self._options = {
            "proto_version": "1",
            "publication_names": f'"{escaped}"',
            # An option of 14 and newer, which are all that we accept.
            "messages": str(messages).lower(),
        }

    @property
    def complete_lsn(self) -> Lsn:
        return ZERO  # it says nothing of transactions without changes

    def peek(self, slot: str, wal_end: Lsn, most: int) -> str:
        return statements.peek_messages(slot, wal_end, most, self._options)

    def messages(self, rows: Iterable[memoryview]) -> list[memoryview]:
        return [row[_COLUMN_POS:] for row in rows]


class Wal2json:
    """wal2json's documents, translated into the bytes of pgoutput."""

    name = "wal2json"

    def __init__(
        self,
        format_version: FormatVersion,
        tables: Sequence[TableName],
        known: Callable[[], Iterable[Sequence[bytes]]],
        *,
        message_prefix: str | None,
    ) -> None:
        """`known`: the tables as the log describes them, asked for at the first peek."""
        self.format_version = format_version
        self._options = slot_options(format_version, tables, message_prefix=message_prefix)
        self._message_prefix = message_prefix
        self._known = known

    @cached_property
    def _translator(self) -> Translator:
        return Translator(
            self.format_version, message_prefix=self._message_prefix, known=self._known()
        )

    @property
    def complete_lsn(self) -> Lsn:
        return self._translator.complete_lsn

    def peek(self, slot: str, wal_end: Lsn, most: int) -> str:
        return statements.peek_texts(slot, wal_end, most, self._options)

    def messages(self, rows: Iterable[memoryview]) -> list[memoryview]:
        feed = self._translator.feed
        return [
            memoryview(record)
            for row in rows
            for record in feed(
                Lsn(int.from_bytes(row[_COLUMN_POS:_LSN_END], "big")), bytes(row[_TEXT_POS:])
            )
        ]
