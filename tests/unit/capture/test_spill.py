"""Transactions that do not fit into memory: what is on disk, for how long, and when it fails."""

from __future__ import annotations

import errno
import os
import resource
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.capture.builder import TransactionBuilder
from penstock.capture.spill import Spill
from penstock.capture.whole import WholeTransaction
from penstock.errors import ProtocolViolation, SpillFailed
from penstock.lsn import ZERO
from penstock.postgres.fragments import Event, Fragment, Fragmenter
from support.building import DIRECTORY, in_memory
from support.wire import (
    begin,
    insert,
    relation,
    stream_abort,
    stream_commit,
    stream_start,
    stream_stop,
    transaction,
)

MIB = 2**20
TESTS = Path(__file__).parents[2]


def events(*messages: bytes) -> list[Event]:
    return Fragmenter(ZERO).feed([memoryview(message) for message in messages])


def add_all(builder: TransactionBuilder, *messages: bytes) -> list[WholeTransaction]:
    return [whole for event in events(*messages) if (whole := builder.add(event))]


def chunk(xid: int, *values: object) -> list[bytes]:
    return [stream_start(xid), *(insert(value, xid=xid) for value in values), stream_stop()]


def spill_files(directory: Path) -> list[os.stat_result]:
    """The files below that this process holds open, which nobody else can see."""
    found = []
    for descriptor in Path("/proc/self/fd").iterdir():
        try:
            target, facts = str(descriptor.readlink()), descriptor.stat()
        except FileNotFoundError:
            continue  # the one that lists them
        if target.startswith(f"{directory}/"):
            found.append(facts)
    return found


def run_python(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program],
        check=False,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(TESTS)},
    )


# --- memory -------------------------------------------------------------------------------------


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
def test_memory_stays_flat_while_a_large_transaction_is_built_and_read(
    tmp_path: Path, streamed: bool
) -> None:
    # M3.6: the changes are more than 20 MiB; in memory they may be one.
    program = f"""
from pathlib import Path
from support.building import memory_grown
print(memory_grown(Path({str(tmp_path)!r}), {MIB}, {streamed}, 300_000))
"""
    grown = int(run_python(program).stdout)
    assert grown < 4 * MIB, f"{grown / MIB:.1f} MiB"


def test_the_limit_is_for_all_open_transactions_and_the_largest_goes_to_disk(
    tmp_path: Path,
) -> None:
    # M3.6
    with TransactionBuilder(tmp_path, memory_bytes=10_000) as builder:
        add_all(builder, relation(), *chunk(1, *["a" * 1_000] * 3), *chunk(2, *["b" * 1_000] * 5))
        assert spill_files(tmp_path) == []
        add_all(builder, relation(), *chunk(3, "c" * 3_000))
        (file,) = spill_files(tmp_path)
        assert 5_000 < file.st_size < 6_000, "the second"
        assert builder.memory_bytes < 7_000
        for xid, values in ((3, 1), (1, 3), (2, 5)):
            (whole,) = add_all(builder, stream_commit(xid, 0x200 + xid))
            with whole:
                assert whole.changes == values
        assert builder.memory_bytes == 0


# --- what is read back --------------------------------------------------------------------------


@given(
    entries=st.lists(st.tuples(st.integers(0, 2**32 - 1), st.integers(0, 200_000), st.booleans()))
)
def test_entries_of_any_size_come_back_in_order_wherever_they_were_spilled(
    entries: list[tuple[int, int, bool]],
) -> None:
    # M3.6
    spill = Spill(DIRECTORY)
    expected = []
    for number, (xid, size, to_disk) in enumerate(entries):
        payload = bytes([number % 256]) * size
        spill.add(xid, payload[:3], memoryview(payload)[3:])
        expected.append((xid, payload))
        if to_disk:
            spill.to_disk()
    assert list(spill.entries()) == expected
    assert list(spill.entries()) == expected, "as often as one likes"
    spill.close()


def test_a_transaction_can_be_read_twice_and_by_two_at_a_time(tmp_path: Path) -> None:
    # M3.6: what could not be published is published again.
    with TransactionBuilder(tmp_path, memory_bytes=200) as builder:
        (whole,) = add_all(builder, *transaction(0x200, *range(50)))
    with whole:
        pairs = list(zip(whole.payloads(), whole.payloads(), strict=True))
        assert [first for first, _ in pairs] == [second for _, second in pairs]
        assert len(pairs) == 51
        assert list(whole.payloads()) == [first for first, _ in pairs]


@pytest.mark.parametrize("memory_bytes", [0, MIB], ids=["on disk", "in memory"])
def test_a_closed_transaction_does_not_look_like_an_empty_one(
    tmp_path: Path, memory_bytes: int
) -> None:
    with TransactionBuilder(tmp_path, memory_bytes=memory_bytes) as builder:
        (whole,) = add_all(builder, *transaction(0x200, "a"))
    whole.close()
    with pytest.raises(ValueError, match="closed"):
        list(whole.payloads())


def test_a_file_that_was_damaged_is_noticed(tmp_path: Path) -> None:
    spill = Spill(tmp_path)
    spill.add(1, b"a")
    spill.to_disk()
    assert spill._file is not None
    spill._file.truncate(5)
    with pytest.raises(SpillFailed, match="shorter"):
        list(spill.entries())
    spill.close()


# --- how long the files are there ---------------------------------------------------------------


def test_rows_on_disk_can_be_seen_by_nobody_else(tmp_path: Path) -> None:
    # M7.3
    directory = tmp_path / "made" / "here"
    with TransactionBuilder(directory, memory_bytes=0) as builder:
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700
        add_all(builder, relation(), *chunk(7, "a"))
        (file,) = spill_files(directory)
        assert stat.S_IMODE(file.st_mode) == 0o600
        assert file.st_nlink == 0
        assert list(directory.iterdir()) == []


def test_the_file_goes_with_its_transaction(tmp_path: Path) -> None:
    # M3.6
    builder = TransactionBuilder(tmp_path, memory_bytes=0)
    add_all(builder, relation(), *chunk(1, "a"), *chunk(2, "b"), *chunk(3, "c"))
    assert len(spill_files(tmp_path)) == 3
    add_all(builder, stream_abort(1))
    assert len(spill_files(tmp_path)) == 2
    (whole,) = add_all(builder, stream_commit(2, 0x200))
    builder.close()
    assert len(spill_files(tmp_path)) == 1, "the one that was handed out"
    assert len(in_memory(whole).payloads) == 2
    assert spill_files(tmp_path) == []


def test_after_an_error_nothing_is_left_and_nothing_more_is_handed_out(tmp_path: Path) -> None:
    # M3.6
    builder = TransactionBuilder(tmp_path, memory_bytes=0)
    add_all(builder, relation(), *chunk(1, "a"))
    with pytest.raises(ProtocolViolation):
        add_all(builder, begin(), insert("b", oid=4711))
    assert spill_files(tmp_path) == []
    (last,) = events(stream_commit(1, 0x200))
    with pytest.raises(RuntimeError, match="closed or has failed"):
        builder.add(last)


def test_a_process_that_is_killed_leaves_nothing(tmp_path: Path) -> None:
    # M3.6
    program = f"""
import os, pathlib, signal
from penstock.capture.spill import Spill
spill = Spill(pathlib.Path({str(tmp_path)!r}))
spill.add(1, b"a" * 100_000)
spill.to_disk()
os.kill(os.getpid(), signal.SIGKILL)
"""
    assert run_python(program).returncode == -signal.SIGKILL
    assert list(tmp_path.iterdir()) == []


# --- a disk that fails --------------------------------------------------------------------------


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """The system itself refuses to let a file grow larger."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_disk_without_room_is_named_and_given_back(tmp_path: Path) -> None:
    # M3.6, M7.3: in the middle of an entry, which is then not whole.
    builder = TransactionBuilder(tmp_path, memory_bytes=1_000)
    rows = [row for _ in range(100) for row in chunk(7, *range(20))]
    with largest_file(2_500), pytest.raises(SpillFailed, match="File too large") as caught:
        add_all(builder, relation(), *rows)
    assert str(tmp_path) in caught.value.problem
    assert isinstance(caught.value.__cause__, OSError)
    assert spill_files(tmp_path) == []
    with pytest.raises(RuntimeError):
        add_all(builder, stream_commit(7, 0x200))


def test_after_room_was_made_the_same_transaction_goes_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # M3.6: with a new connection, and so with a new builder.
    def full(_descriptor: int, _data: memoryview) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    messages = transaction(0x200, *range(100))
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(SpillFailed, match="No space left"):
            add_all(TransactionBuilder(tmp_path, memory_bytes=500), *messages)
    with TransactionBuilder(tmp_path, memory_bytes=500) as builder:
        (whole,) = add_all(builder, *messages)
        assert len(in_memory(whole).payloads) == 101


def test_a_write_that_takes_only_a_part_is_continued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda file, data: write(file, data[:7]))
    with TransactionBuilder(tmp_path, memory_bytes=500) as builder:
        (whole,) = add_all(builder, *transaction(0x200, *range(100)))
        assert len(in_memory(whole).payloads) == 101


def test_a_directory_that_cannot_be_used_is_refused_at_the_start(tmp_path: Path) -> None:
    # M7.3
    (tmp_path / "file").write_text("")
    with pytest.raises(SpillFailed, match="file"):
        TransactionBuilder(tmp_path / "file")


def test_a_fragment_of_no_transaction_that_is_open_begins_one(tmp_path: Path) -> None:
    # A first chunk without changes is not a fragment, so the next one does not say that it begins.
    with TransactionBuilder(tmp_path) as builder:
        found = events(relation(), stream_start(7), stream_stop(), *chunk(7, "a"))
        assert [event.xid for event in found if isinstance(event, Fragment)] == [7]
        for event in found:
            builder.add(event)
        assert builder.open_transactions == 1
