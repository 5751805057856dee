"""A dump shows every transaction as one object, and holds only a small part of a large one."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path

import pytest

from penstock.changelog.format import Compression
from penstock.changelog.reader import LogReader
from penstock.changelog.settings import LogSettings
from penstock.errors import LogCorrupt
from penstock.ops.dump import transactions
from penstock.ops.log_view import transaction_json, transaction_lines
from support.notes import NotesLog

FRAMES = LogSettings(frame_bytes=50_000, compression=Compression.NONE)


def a_log(path: Path, *sizes: int, body: bytes = b"text") -> LogReader:
    with NotesLog(path, FRAMES) as log:
        for size in sizes:
            log.insert_large(size, body=body)
    return LogReader(path)


def test_the_pieces_of_an_object_are_what_json_makes_of_the_whole(tmp_path: Path) -> None:
    reader = a_log(tmp_path, 1, 2, 5_000)
    everything = reader.start(), reader.end()
    shown = [
        "".join(transaction_json(transaction, changes, json.dumps))
        for transaction, changes in transactions(reader, *everything)
    ]
    whole = [
        json.dumps({**transaction, "changes": list(changes)})
        for transaction, changes in transactions(reader, *everything)
    ]
    assert shown == whole
    read = [json.loads(line) for line in shown]
    assert [len(transaction["fragments"]) > 1 for transaction in read] == [False, False, True]
    seqs = [change["seq"] for change in read[2]["changes"]]
    assert seqs == list(range(5_000))


def test_memory_stays_flat_whatever_the_size_of_a_transaction(tmp_path: Path) -> None:
    body = bytes(1_000).replace(b"\0", b"x")
    peaks = []
    for size in (1_000, 10_000):
        reader = a_log(tmp_path / str(size), size, body=body)
        tracemalloc.start()
        ((transaction, changes),) = transactions(reader, reader.start(), reader.end())
        assert sum(map(len, transaction_lines(transaction, changes))) > size * 1_000
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 2_000_000, "of 10 MB"
    assert peaks[1] < 2 * peaks[0]


def test_nothing_is_shown_of_a_transaction_that_cannot_be_read_to_its_end(tmp_path: Path) -> None:
    reader = a_log(tmp_path, 5_000)
    (commit,) = reader.commits(reader.start(), reader.end())
    damaged = commit.fragments[-1]
    segment = tmp_path / "segments" / f"{damaged.segment:010d}.seg"
    data = bytearray(segment.read_bytes())
    data[data.index(b"text", damaged.byte_pos)] ^= 1
    segment.write_bytes(data)
    with pytest.raises(LogCorrupt):
        next(iter(transactions(reader, reader.start(), reader.end())))
