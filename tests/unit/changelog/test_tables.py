"""The file that says how each table looks: what is in it, from when on, and after damage."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.changelog.reader import LogReader
from penstock.changelog.settings import LogSettings
from penstock.changelog.tables import FILE
from penstock.changelog.writer import LogWriter
from penstock.errors import LogCorrupt
from penstock.lsn import Lsn
from penstock.postgres.fragments import Fragmenter
from penstock.postgres.messages import Column, Insert
from penstock.testing import MemoryStorage
from support import wire
from support.logs import IDENTITY, append_transaction, apply
from support.pgoutput_encoder import encode

WIDER = replace(wire.ITEMS, columns=(*wire.ITEMS.columns, Column(False, "added", 25, -1)))


def described(storage: MemoryStorage) -> list[tuple[int, bytes]]:
    return [(entry.after_lsn, entry.messages[0]) for entry in LogReader(storage).tables()]


def test_each_table_is_there_as_it_was_described_last_and_since_when() -> None:  # M4.6
    storage = MemoryStorage()
    writer = LogWriter(storage, IDENTITY, LogSettings(segment_bytes=100))
    assert described(storage) == []
    append_transaction(writer, 0x2000, wire.ITEMS)
    append_transaction(writer, 0x3000, wire.ITEMS)
    assert described(storage) == [(IDENTITY.start_lsn, encode(wire.ITEMS))]
    append_transaction(writer, 0x4000, WIDER)
    assert described(storage) == [(Lsn(0x3000), encode(WIDER))]
    writer.close()
    # Another writer, another connection: the same description is not a new one.
    writer = LogWriter(storage, IDENTITY)
    append_transaction(writer, 0x5000, WIDER)
    assert described(storage) == [(Lsn(0x3000), encode(WIDER))]
    append_transaction(writer, 0x6000, replace(wire.ITEMS, oid=999))
    assert [lsn for lsn, _ in described(storage)] == [0x3000, 0x5000]
    writer.close()


def test_a_damaged_file_is_named_and_capture_makes_it_anew() -> None:
    storage = MemoryStorage()
    writer = LogWriter(storage, IDENTITY)
    append_transaction(writer, 0x2000, wire.ITEMS)
    writer.close()
    for at in range(storage.size(FILE)):
        storage._files[FILE].data[at] ^= 1
        with pytest.raises(LogCorrupt, match="tables"):
            LogReader(storage).tables()
        storage._files[FILE].data[at] ^= 1
    storage._files[FILE].data[10] ^= 1
    writer = LogWriter(storage, IDENTITY)
    append_transaction(writer, 0x3000, wire.ITEMS)
    assert described(storage) == [(Lsn(0x2000), encode(wire.ITEMS))]
    writer.close()


def test_what_a_transaction_says_of_a_table_counts_when_it_commits() -> None:  # M4.6
    storage = MemoryStorage()
    writer = LogWriter(storage, IDENTITY)
    fragmenter = Fragmenter(writer.complete_lsn)

    def send(*messages: bytes) -> list[bytes]:
        apply(writer, fragmenter, [memoryview(message) for message in messages])
        writer.flush(writer.complete_lsn)
        return [message for _, message in described(storage)]

    def streamed(xid: int, subxid: int) -> list[bytes]:
        wider = wire.relation(replace(WIDER, xid=subxid))
        row = wire.xlog(Insert(1000, (b"1", b"x"), subxid))
        return [wire.stream_start(xid), wider, row, wire.stream_stop()]

    append_transaction(writer, 0x2000, wire.ITEMS, Insert(1000, (b"1",)))
    before, after = [encode(wire.ITEMS)], [encode(WIDER)]
    assert send(*streamed(9, 9)) == before, "it may yet roll back"
    assert send(wire.stream_abort(9)) == before
    assert send(*streamed(10, 11)) == before
    assert send(wire.stream_abort(10, 11), wire.stream_commit(10, 0x3000)) == before
    # The server describes it once more to the next, although we have heard of it before.
    assert send(*streamed(12, 12), wire.stream_commit(12, 0x4000)) == after
    writer.close()
