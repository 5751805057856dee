"""Translates wal2json's documents into the records of the change log. Pure: no socket, no clock.

In comes what `pg_logical_slot_peek_changes` returns for a slot with wal2json, read with the options
of `wal2json_options` and the session's `VALUE_SETTINGS`; out come CopyData messages as a walsender
with pgoutput sends them (protocol 1, not streamed). What the documents do not say is in
`docs/polling.md`.

A transaction without a change of a wanted table makes no records, as with pgoutput.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from penstock.errors import DocumentInvalid
from penstock.lsn import ZERO, Lsn
from penstock.postgres.polling import records
from penstock.postgres.polling.wal2json_documents import (
    Began,
    Change,
    Document,
    Ended,
    Heading,
    Told,
    Transactions,
    Truncated,
    document,
)
from penstock.postgres.polling.wal2json_layout import Layout
from penstock.postgres.polling.wal2json_options import FormatVersion
from penstock.postgres.polling.wal2json_shapes import Shapes
from penstock.postgres.polling.wal2json_tables import Table, Tables

_MOST_LAYOUTS = 4096


class Translator:
    """Translates the documents of one peek after the other, in their order.

    Make a new one for each connection, after an error, and after a peek that was cut off inside a
    transaction, because the next one brings that again from its start.
    """

    def __init__(
        self,
        format_version: FormatVersion,
        *,
        message_prefix: str | None = None,
        known: Iterable[Sequence[bytes]] = (),
    ) -> None:
        """`message_prefix`: logical messages with another are dropped.

        `known`: the tables as the log describes them (`TableEntry.messages`), the newest last.
        Without them the first update of a table lacks the columns that it left unchanged.
        """
        self._format_version = format_version
        self._message_prefix = message_prefix
        self._tables = Tables(format_version, known)
        self._shapes = Shapes()
        self._transactions = Transactions()
        # In format 1, by heading: the table's version and the layout.
        self._layouts: dict[Heading, tuple[Any, Layout]] = {}
        self._transaction: Began | None = None
        # Its Begin, until the first change needs it.
        self._begin: bytes | None = None
        # The end of the last transaction that was read whole, also of one without changes.
        self.complete_lsn = ZERO

    @property
    def half_read(self) -> bool:
        """Whether a transaction has begun and not ended."""
        return self._transaction is not None

    def feed(self, lsn: Lsn, data: bytes) -> list[bytes]:
        """Return the records of one row of the peek: its `lsn` and its `data`, as bytes.

        A document of format 2 is one change; one of format 1 is a transaction.
        """
        if self._format_version == 1:
            found = self._transactions.read(lsn, data)
            return [record for one in found for record in self._take(lsn, one, None)]
        record = self._shapes.record(lsn, data) if self._transaction is not None else None
        if record is None:
            return list(self._take(lsn, document(lsn, data), data))
        if self._begin is None:
            return [record]
        begin, self._begin = self._begin, None
        return [begin, record]

    def _take(self, lsn: Lsn, found: Document, data: bytes | None) -> Iterator[bytes]:
        match found:
            case Change():
                yield from self._change(lsn, found, data)
            case Began():
                self._enter(lsn, found)
            case Ended():
                yield from self._leave(lsn)
            case Truncated():
                self._expect_transaction(lsn)
                table = self._tables.table(found.table)
                yield from self._described(table)
                yield records.truncate(lsn, [table.oid])
            case Told():
                yield from self._told(lsn, found)

    def _enter(self, lsn: Lsn, found: Began) -> None:
        if self._transaction is not None:
            raise DocumentInvalid("begins a transaction inside another", lsn=lsn)
        self._transaction = found
        self._begin = records.begin(
            lsn,
            final_lsn=_commit_lsn(found),
            committed_us=found.committed_us,
            xid=found.xid,
        )

    def _leave(self, lsn: Lsn) -> Iterator[bytes]:
        ended = self._expect_transaction(lsn)
        has_changes = self._begin is None
        self._transaction = self._begin = None
        self.complete_lsn = ended.end_lsn
        if has_changes:
            yield records.commit(
                lsn,
                commit_lsn=_commit_lsn(ended),
                end_lsn=ended.end_lsn,
                committed_us=ended.committed_us,
            )

    def _change(self, lsn: Lsn, change: Change, data: bytes | None) -> Iterator[bytes]:
        self._expect_transaction(lsn)
        heading = change.heading
        version, layout = self._layouts.get(heading, (None, None))
        if layout is None or version is not self._tables.table(heading.table).version:
            table, layout = self._tables.take(lsn, change)
            yield from self._described(table)
            if data is None:
                self._remember(heading, table, layout)
            else:
                self._shapes.learn(data, layout, table.version)
        layout.check(lsn, change.values)
        yield from self._begun()
        yield layout.record(lsn, change.values)

    def _remember(self, heading: Heading, table: Table, layout: Layout) -> None:
        if len(self._layouts) >= _MOST_LAYOUTS:
            self._layouts.clear()
        self._layouts[heading] = table.version, layout

    def _described(self, table: Table) -> Iterator[bytes]:
        """The transaction's Begin, if it is due, and the table's description, if it is news."""
        yield from self._begun()
        yield from self._tables.describe(table)

    def _begun(self) -> Iterator[bytes]:
        if self._begin is not None:
            yield self._begin
            self._begin = None

    def _told(self, lsn: Lsn, message: Told) -> Iterator[bytes]:
        if message.prefix != self._message_prefix:
            return
        if message.transactional:
            self._expect_transaction(lsn)
            yield from self._begun()
        yield records.logical_message(
            lsn,
            transactional=message.transactional,
            prefix=message.prefix,
            content=message.content,
        )

    def _expect_transaction(self, lsn: Lsn) -> Began:
        if self._transaction is None:
            raise DocumentInvalid("stands outside of a transaction", lsn=lsn)
        return self._transaction


def _commit_lsn(transaction: Began) -> Lsn:
    """Return the start of the commit record.

    Format 1 has its end Y only. What is compared with it is a position D of the log: a transaction
    is there already if Y <= D, and Y - 1 < D says the same.
    """
    if transaction.commit_lsn is not None:
        return transaction.commit_lsn
    return Lsn(transaction.end_lsn - 1)
