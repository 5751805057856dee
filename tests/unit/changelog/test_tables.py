"""The file that says how each table looks: what is in it, from when on, and after damage."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.changelog.reader import LogReader
from penstock.changelog.tables import FILE
from penstock.changelog.writer import LogSettings, LogWriter
from penstock.errors import LogCorrupt
from penstock.lsn import Lsn
from penstock.postgres.messages import Column
from penstock.testing import MemoryStorage
from support import wire
from support.logs import IDENTITY, append_transaction
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
    storage._files[FILE].data[10] ^= 1
    with pytest.raises(LogCorrupt, match="tables"):
        LogReader(storage).tables()
    writer = LogWriter(storage, IDENTITY)
    append_transaction(writer, 0x3000, wire.ITEMS)
    assert described(storage) == [(Lsn(0x2000), encode(wire.ITEMS))]
    writer.close()
