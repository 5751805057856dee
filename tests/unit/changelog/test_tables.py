"""The file that says how each table looks: what is in it, from when on, and after damage."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.changelog.building import relation_frame
from penstock.changelog.maintenance import prune
from penstock.changelog.reader import LogReader
from penstock.changelog.settings import LogSettings, RetentionSettings
from penstock.changelog.tables import FILE
from penstock.changelog.writer import LogWriter
from penstock.errors import LogCorrupt
from penstock.lsn import Lsn
from penstock.postgres.fragments import Fragmenter
from penstock.postgres.messages import Column, Insert
from penstock.testing import MemoryAppender, MemoryStorage
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


class CountingStorage(MemoryStorage):
    """Counts the bytes that are written to the file."""

    written = 0

    def replace(self, name: str, data: bytes) -> None:
        self.written += len(data) if name == FILE else 0
        super().replace(name, data)

    def append_to(self, name: str) -> MemoryAppender:
        appender = super().append_to(name)
        if name == FILE:
            write = appender.write

            def counting(data: bytes) -> None:
                self.written += len(data)
                write(data)

            appender.write = counting  # type: ignore[method-assign]
        return appender


def test_each_new_table_is_appended() -> None:
    storage = CountingStorage()
    writer = LogWriter(storage, IDENTITY)
    tables = [replace(wire.ITEMS, oid=2000 + n, name=f"items_{n}") for n in range(500)]
    for number, table in enumerate(tables):
        append_transaction(writer, 0x2000 + 0x100 * number, table)
    writer.close()
    assert [message for _, message in described(storage)] == [encode(table) for table in tables]
    assert storage.written == storage.size(FILE)


def test_a_table_that_changes_all_the_time_does_not_make_the_file_grow() -> None:
    storage = CountingStorage()
    writer = LogWriter(storage, IDENTITY)
    append_transaction(writer, 0x2000, replace(wire.ITEMS, oid=999, name="quiet"))
    changing = [
        replace(wire.ITEMS, columns=(Column(True, f"id_{n}", 23, -1),)) for n in range(3_000)
    ]
    for number, table in enumerate(changing):
        append_transaction(writer, 0x3000 + 0x100 * number, table)
    writer.close()
    assert [message[5:].split(b"\0")[1] for _, message in described(storage)] == [
        b"quiet",
        b"items",
    ]
    assert described(storage)[-1][1] == encode(changing[-1])
    assert storage.size(FILE) < 100_000
    assert storage.written < 2_000_000


def two_tables_and_a_third() -> tuple[MemoryStorage, int, int]:
    """Returns the storage, and where the definitions that were appended begin and end."""
    storage = MemoryStorage()
    writer = LogWriter(storage, IDENTITY)
    append_transaction(writer, 0x2000, wire.ITEMS)
    first = storage.size(FILE)
    append_transaction(writer, 0x3000, replace(wire.ITEMS, oid=999, name="others"))
    append_transaction(writer, 0x4000, WIDER)
    writer.close()
    return storage, first, storage.size(FILE)


def test_a_reader_that_comes_while_a_table_is_appended_sees_those_before_it() -> None:  # M3.4
    storage, first, end = two_tables_and_a_third()
    whole = described(storage)
    assert [lsn for lsn, _ in whole] == [0x3000, 0x4000]
    for size in range(first, end):
        del storage._files[FILE].data[size:]
        storage._files[FILE].data += bytes(end - size - 1)  # as a power cut may leave it
        found = described(storage)
        assert [lsn for lsn, _ in found] in ([0x2000], [0x2000, 0x3000])
        storage, first, end = two_tables_and_a_third()


def test_a_writer_goes_on_after_a_torn_end() -> None:  # M3.4
    storage, first, end = two_tables_and_a_third()
    for size in range(first, end):
        del storage._files[FILE].data[size:]
        writer = LogWriter(storage, IDENTITY)
        append_transaction(writer, 0x5000, replace(wire.ITEMS, oid=998, name="new"))
        append_transaction(writer, 0x6000, WIDER)
        writer.close()
        assert [lsn for lsn, _ in described(storage)][-2:] == [0x5000, 0x6000]
        storage, first, end = two_tables_and_a_third()


def test_damage_before_a_table_that_was_appended_later_is_named() -> None:
    storage, first, _ = two_tables_and_a_third()
    for at in range(first):
        storage._files[FILE].data[at] ^= 1
        with pytest.raises(LogCorrupt, match="tables"):
            LogReader(storage).tables()
        storage._files[FILE].data[at] ^= 1


def test_a_file_of_an_older_version_is_read_and_continued() -> None:  # M7.4
    storage, _, _ = two_tables_and_a_third()
    wider = encode(WIDER)
    old = b"".join(
        relation_frame((message,), epoch=0, complete_lsn=Lsn(lsn), synced_pos=0)
        for lsn, message in (
            (0x2000, encode(wire.ITEMS)[:5] + b"public\0old\0d\0\0"),
            (0x3000, wider),
        )
    )
    storage.replace(FILE, old)
    assert [lsn for lsn, _ in described(storage)] == [0x2000, 0x3000]
    writer = LogWriter(storage, IDENTITY)
    append_transaction(writer, 0x5000, WIDER)
    assert [lsn for lsn, _ in described(storage)] == [0x2000, 0x3000], "nothing new"
    append_transaction(writer, 0x6000, replace(wire.ITEMS, oid=998, name="new"))
    writer.close()
    assert [lsn for lsn, _ in described(storage)] == [0x2000, 0x3000, 0x6000]
    storage._files[FILE].data[len(old) - 1] ^= 1
    with pytest.raises(LogCorrupt, match="tables"):
        LogReader(storage).tables()


def names(storage: MemoryStorage) -> list[tuple[int, str]]:
    return [
        (int.from_bytes(message[1:5], "big"), message[5:].split(b"\0")[1].decode())
        for _, message in described(storage)
    ]


def test_what_only_removed_segments_needed_is_dropped() -> None:
    storage = MemoryStorage()
    # Each transaction fills a segment.
    writer = LogWriter(storage, IDENTITY, LogSettings(segment_bytes=100))
    row = Insert(1000, (b"1",))
    quiet = replace(wire.ITEMS, oid=999, name="quiet")
    renamed = replace(wire.ITEMS, name="renamed")
    again = replace(wire.ITEMS, oid=1001)
    append_transaction(writer, 0x2000, quiet, Insert(999, (b"1",)))
    append_transaction(writer, 0x3000, wire.ITEMS, row)
    append_transaction(writer, 0x4000, renamed, row)
    append_transaction(writer, 0x5000, replace(again, name="again"), Insert(1001, (b"1",)))
    append_transaction(
        writer, 0x6000, replace(again, oid=1002, name="again"), Insert(1002, (b"1",))
    )
    everything = [
        (999, "quiet"),
        (1000, "items"),
        (1000, "renamed"),
        (1001, "again"),
        (1002, "again"),
    ]
    assert names(storage) == everything
    first = writer.segment_facts()[0].number
    writer.remove_segments([first])
    assert names(storage) == everything, "one that changes rarely keeps its columns"
    writer.remove_segments([first + 1])
    assert names(storage) == everything, "the next segment begins with what was in force"
    writer.remove_segments([first + 2])
    assert names(storage) == [(999, "quiet"), (1000, "renamed"), (1001, "again"), (1002, "again")]
    writer.remove_segments([first + 3])
    assert names(storage) == [(999, "quiet"), (1000, "renamed"), (1002, "again")]
    # Known again with its next change.
    append_transaction(writer, 0x7000, again, Insert(1001, (b"1",)))
    assert names(storage)[-1] == (1001, "items")
    writer.close()
    # A new writer does not know what older segments use: it keeps all until they are gone.
    writer = LogWriter(storage, IDENTITY, LogSettings(segment_bytes=100))
    append_transaction(writer, 0x8000, replace(again, name="other"), Insert(1001, (b"1",)))
    before = writer.segment_facts()
    writer.remove_segments([each.number for each in before[:1]])
    assert (1001, "items") in names(storage)
    writer.remove_segments([each.number for each in before[1:-1]])
    assert (1001, "items") not in names(storage)
    assert (1001, "other") in names(storage)
    writer.close()


def test_tables_that_come_and_go_do_not_pile_up() -> None:
    storage = MemoryStorage()
    writer = LogWriter(storage, IDENTITY, LogSettings(segment_bytes=100_000))
    keep_little = RetentionSettings(min_age_s=0.0)
    for number in range(3_000):
        table = replace(wire.ITEMS, oid=2000 + number, name=f"day_{number}")
        append_transaction(writer, 0x2000 + 0x100 * number, table, Insert(table.oid, (b"1",)))
        if number % 100 == 0:
            prune(writer, keep_little)
    prune(writer, keep_little)
    kept = names(storage)
    assert 1_000 <= len(kept) <= 1_600
    assert kept[-1] == (4999, "day_2999")
    writer.close()
