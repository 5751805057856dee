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
    assert described(storage) == [(Lsn(0x2000), encode(wire.ITEMS))]
    append_transaction(writer, 0x4000, WIDER)
    assert described(storage) == [(Lsn(0x4000), encode(WIDER))]
    writer.close()
    # Another writer, another connection: the same description is not a new one.
    writer = LogWriter(storage, IDENTITY)
    append_transaction(writer, 0x5000, WIDER)
    assert described(storage) == [(Lsn(0x4000), encode(WIDER))]
    append_transaction(writer, 0x6000, replace(wire.ITEMS, oid=999))
    assert [lsn for lsn, _ in described(storage)] == [0x4000, 0x6000]
    writer.close()


def test_a_renamed_table_is_there_by_each_of_its_names() -> None:  # M4.6
    storage = MemoryStorage()
    first, second = wire.ITEMS, replace(WIDER, oid=999, name="others")
    swapped = replace(first, name="others"), replace(second, name="items")
    # Two tables swap their names, and swap them back; with a new writer each time.
    for lsn, relations in ((0x2000, (first, second)), (0x3000, swapped), (0x4000, (first, second))):
        writer = LogWriter(storage, IDENTITY)
        append_transaction(writer, lsn, *relations)
        writer.close()
        found = described(storage)
        assert {encode(relation) for relation in relations} <= {message for _, message in found}
        newest = {message[5:].split(b"\0")[1]: message for _, message in found}
        assert newest == {each.name.encode(): encode(each) for each in relations}
    assert [at for at, _ in described(storage)] == [0x3000, 0x3000, 0x4000, 0x4000]


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
    assert described(storage) == [(Lsn(0x3000), encode(wire.ITEMS))]
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
    # One that is not streamed has committed, but the log does not have all of it yet.
    assert send(wire.begin(0x4FF8, 13), wire.relation(), wire.insert(1)) == after
    assert send(wire.commit(0x5000)) == before
    # Of one that the log has already nothing is awaited.
    renamed = replace(wire.ITEMS, name="renamed")
    again = wire.begin(0xFF0, 14), wire.relation(renamed), wire.insert(1), wire.commit(0xFF8)
    following = wire.begin(0x5FF8, 15), wire.insert(2), wire.commit(0x6000)
    assert send(*again, *following) == [*before, encode(renamed)]
    writer.close()
