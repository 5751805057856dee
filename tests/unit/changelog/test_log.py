"""The first change log: what was flushed is there, whatever happened to the rest."""

from __future__ import annotations

import errno
import os
import resource
import signal
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.capture.transactions import Transaction
from penstock.changelog.log import LogHeader, LogReader, LogWriter, Position
from penstock.errors import LogCorrupt, LogMissing, LogNotWritten
from penstock.lsn import Lsn

HEADER = LogHeader(Lsn(0x100), 1, "7300000000000000001")


def transaction(n: int, *payloads: bytes) -> Transaction:
    return Transaction(n, Lsn(0x100 + 0x10 * n), 1_000 * n, payloads or (b"I%d" % n, b"", b"x" * n))


def file_of(directory: Path) -> Path:
    (file,) = directory.iterdir()
    return file


def write(directory: Path, *flushes: list[Transaction], notes: tuple[Lsn, ...] = ()) -> list[int]:
    """Flush each list of transactions; returns the length of the file after each flush."""
    writer = LogWriter(directory, HEADER)
    lengths = [file_of(directory).stat().st_size]
    for done in flushes:
        for one in done:
            writer.append(one)
        writer.flush(done[-1].commit_lsn if done else writer.durable_lsn)
        lengths.append(file_of(directory).stat().st_size)
    for note in notes:
        writer.flush(note)
        lengths.append(file_of(directory).stat().st_size)
    writer.close()
    return lengths


def contents(directory: Path) -> list[Transaction]:
    reader = LogReader(directory)
    return list(reader.transactions(reader.start(), reader.end()))


# --- what is kept -------------------------------------------------------------------------------


def test_a_new_log_is_complete_up_to_where_the_slot_begins(tmp_path: Path) -> None:
    write(tmp_path / "log")
    reader = LogReader(tmp_path / "log")
    assert reader.header == HEADER
    assert reader.start().lsn == reader.end().lsn == HEADER.start_lsn
    assert contents(tmp_path / "log") == []


@settings(max_examples=25)
@given(flushes=st.lists(st.lists(st.lists(st.binary(max_size=20), max_size=3), max_size=3)))
def test_what_was_flushed_is_read_back_in_order(
    tmp_path_factory: pytest.TempPathFactory, flushes: list[list[list[bytes]]]
) -> None:
    directory = tmp_path_factory.mktemp("log") / "log"
    numbers = iter(range(1, 1000))
    written = [
        [
            Transaction(n, Lsn(0x100 + n), -n, tuple(payloads))
            for payloads, n in zip(batch, numbers, strict=False)
        ]
        for batch in flushes
    ]
    write(directory, *written)
    assert contents(directory) == [one for batch in written for one in batch]


def test_nobody_sees_what_is_appended_before_the_flush(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path / "log", HEADER)
    writer.append(transaction(1))
    assert contents(tmp_path / "log") == []
    assert writer.durable_lsn == HEADER.start_lsn
    writer.flush(Lsn(0x110))
    assert contents(tmp_path / "log") == [transaction(1)]
    assert writer.durable_lsn == 0x110
    writer.close()


def test_a_position_can_be_noted_without_a_transaction(tmp_path: Path) -> None:
    # M3.8
    write(tmp_path / "log", [transaction(1)], notes=(Lsn(0x900), Lsn(0xA00)))
    assert LogReader(tmp_path / "log").end().lsn == 0xA00
    writer = LogWriter(tmp_path / "log")
    assert writer.durable_lsn == 0xA00
    writer.close()


def test_an_existing_log_keeps_its_header_and_goes_on_at_its_end(tmp_path: Path) -> None:
    write(tmp_path / "log", [transaction(1)])
    writer = LogWriter(tmp_path / "log", LogHeader(Lsn(0x999), 9, "another"))
    assert writer.header == HEADER
    assert writer.durable_lsn == 0x110
    writer.append(transaction(2))
    writer.flush(Lsn(0x120))
    writer.close()
    assert contents(tmp_path / "log") == [transaction(1), transaction(2)]


def test_a_reader_goes_on_from_a_position(tmp_path: Path) -> None:
    write(tmp_path / "log", [transaction(1)])
    first = LogReader(tmp_path / "log").end()
    writer = LogWriter(tmp_path / "log")
    writer.append(transaction(2))
    writer.append(transaction(3))
    writer.flush(Lsn(0x130))
    second = LogReader(tmp_path / "log").end(first)
    writer.append(transaction(4))
    writer.flush(Lsn(0x140))
    writer.close()
    reader = LogReader(tmp_path / "log")
    assert [t.xid for t in reader.transactions(first, second)] == [2, 3]
    assert [t.xid for t in reader.transactions(second, reader.end(second))] == [4]
    assert list(reader.transactions(second, second)) == []


def test_the_rows_in_it_are_for_its_owner_only(tmp_path: Path) -> None:
    # M7.3
    write(tmp_path / "log", [transaction(1)])
    for path in (tmp_path / "log", file_of(tmp_path / "log")):
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0


# --- what a crash leaves ------------------------------------------------------------------------


def test_a_tail_torn_at_any_byte_gives_exactly_what_was_flushed(tmp_path: Path) -> None:
    # M3.4
    flushes = [[transaction(1)], [transaction(2), transaction(3)], [transaction(4)]]
    lengths = write(tmp_path / "whole", *flushes)
    whole = file_of(tmp_path / "whole").read_bytes()
    torn = tmp_path / "torn"
    torn.mkdir()
    for length in range(lengths[0], len(whole) + 1):
        (torn / "changes.log").write_bytes(whole[:length])
        flushed = sum(end <= length for end in lengths) - 1
        expected = [one for batch in flushes[:flushed] for one in batch]
        assert contents(torn) == expected, length

        writer = LogWriter(torn)
        assert writer.durable_lsn == (expected[-1].commit_lsn if expected else HEADER.start_lsn)
        writer.append(transaction(9))
        writer.flush(Lsn(0x999))
        writer.close()
        assert contents(torn) == [*expected, transaction(9)], length


def test_a_tail_of_zeros_is_cut_off_too(tmp_path: Path) -> None:
    # Some file systems extend a file before its data arrives.
    write(tmp_path / "log", [transaction(1)])
    with file_of(tmp_path / "log").open("ab") as file:
        file.write(bytes(4096))
    assert contents(tmp_path / "log") == [transaction(1)]
    write(tmp_path / "log", [transaction(2)])
    assert contents(tmp_path / "log") == [transaction(1), transaction(2)]


def test_a_flipped_bit_before_the_tail_is_named_with_its_place(tmp_path: Path) -> None:
    # M3.4
    lengths = write(tmp_path / "log", [transaction(1), transaction(2)], [transaction(3)])
    file = file_of(tmp_path / "log")
    whole = file.read_bytes()
    for byte_pos in range(lengths[1]):
        for bit in (0x01, 0x80):
            damaged = bytearray(whole)
            damaged[byte_pos] ^= bit
            file.write_bytes(damaged)
            with pytest.raises(LogCorrupt) as caught:
                contents(tmp_path / "log")
            facts = vars(caught.value)
            assert facts["path"] == str(file)
            assert facts["byte_pos"] <= byte_pos < facts["byte_pos"] + 64
            with pytest.raises(LogCorrupt):
                LogWriter(tmp_path / "log", HEADER)
            assert len(file.read_bytes()) == len(whole), "a damaged log is left as it is"


def test_a_crash_at_the_birth_of_a_log_leaves_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", _fails(errno.EIO))
        with pytest.raises(LogNotWritten):
            LogWriter(tmp_path / "log", HEADER)
    with pytest.raises(LogMissing):
        LogReader(tmp_path / "log")
    write(tmp_path / "log", [transaction(1)])
    assert contents(tmp_path / "log") == [transaction(1)]


def test_a_reader_sees_a_consistent_prefix_while_the_writer_works(tmp_path: Path) -> None:
    lengths = write(tmp_path / "whole", *([transaction(n)] for n in range(1, 20)))
    whole = file_of(tmp_path / "whole").read_bytes()
    growing = tmp_path / "growing"
    growing.mkdir()
    position: Position | None = None
    seen: list[Transaction] = []
    with (growing / "changes.log").open("ab", buffering=0) as file:
        file.write(whole[: lengths[0]])
        for start in range(lengths[0], len(whole), 7):
            reader = LogReader(growing)
            position = position or reader.start()
            end = reader.end(position)
            # More arrives between the look at the end and the reading.
            file.write(whole[start : start + 7])
            seen += reader.transactions(position, end)
            assert [t.xid for t in seen] == list(range(1, len(seen) + 1))
            assert end.lsn == (seen[-1].commit_lsn if seen else HEADER.start_lsn)
            position = end
    assert contents(growing) == contents(tmp_path / "whole")


# --- what is missing or fails -------------------------------------------------------------------


def test_a_log_that_is_not_there_is_named(tmp_path: Path) -> None:
    for attempt in (LogReader, LogWriter):
        with pytest.raises(LogMissing, match="no change log") as caught:
            attempt(tmp_path / "nowhere")
        assert str(tmp_path / "nowhere") in str(caught.value)


def _fails(code: int) -> Callable[[int], None]:
    def fail(_: int) -> None:
        raise OSError(code, os.strerror(code))

    return fail


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC], ids=errno.errorcode.get)
def test_a_sync_that_fails_leaves_nothing_that_could_be_confirmed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    # M7.3: what the kernel dropped looks as if it were on disk.
    write(tmp_path / "log", [transaction(1)])
    writer = LogWriter(tmp_path / "log")
    writer.append(transaction(2))
    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", _fails(code))
        with pytest.raises(LogNotWritten, match=os.strerror(code)) as caught:
            writer.flush(Lsn(0x120))
    assert str(file_of(tmp_path / "log")) in str(caught.value)
    assert writer.durable_lsn == 0x110
    assert contents(tmp_path / "log") == [transaction(1)]
    with pytest.raises(ValueError, match="closed"):
        writer.flush(Lsn(0x120))  # a failed sync is never tried again
    assert contents(tmp_path / "log") == [transaction(1)]


def test_a_disk_that_takes_only_a_part_leaves_nothing_that_could_be_confirmed(
    tmp_path: Path,
) -> None:
    # M7.3: a limit on the file's size is a full disk that tests can have.
    write(tmp_path / "log", [transaction(1)])
    size = file_of(tmp_path / "log").stat().st_size
    writer = LogWriter(tmp_path / "log")
    writer.append(transaction(2, b"x" * 10_000))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 5_000, limits[1]))
    try:
        with pytest.raises(LogNotWritten):
            writer.flush(Lsn(0x120))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert file_of(tmp_path / "log").stat().st_size == size
    write(tmp_path / "log", [transaction(2, b"x" * 10_000)])
    assert [t.xid for t in contents(tmp_path / "log")] == [1, 2]


def test_what_a_killed_writer_left_is_synced_before_it_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It wrote and was killed before the sync: only the page cache has it.
    write(tmp_path / "log", [transaction(1)])
    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", _fails(errno.EIO))
        with pytest.raises(LogNotWritten):
            LogWriter(tmp_path / "log")
