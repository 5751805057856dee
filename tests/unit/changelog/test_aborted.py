"""Transactions with very many subtransactions that were rolled back."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from penstock.changelog.aborted import is_aborted
from penstock.changelog.writer import LogWriter
from penstock.lsn import Lsn
from penstock.postgres.fragments import Fragmenter
from penstock.testing import MemoryStorage
from support import wire
from support.logs import IDENTITY, apply, read
from support.repeats import repeats

TOP = 7
END = 0x9000
_XIDS = st.lists(st.one_of(st.integers(0, 12), st.integers(2**32 - 3, 2**32 - 1)))


@given(_XIDS, _XIDS)
def test_the_sorted_list_finds_the_same_as_a_set(xids: list[int], aborted: list[int]) -> None:
    found = is_aborted(np.array(xids, np.uint32), np.unique(np.array(aborted, np.uint32)))
    assert found.tolist() == [xid in set(aborted) for xid in xids]


def rolled_back(subtransactions: int, each: int = 100) -> Iterator[list[memoryview]]:
    """The runs of a transaction of which all but its last change was rolled back.

    As the server sends it: after each rollback it describes the table again.
    """
    for first in range(0, subtransactions, each):
        run: list[bytes] = []
        for xid in range(1000 + first, 1000 + min(first + each, subtransactions)):
            run += [
                wire.stream_start(TOP, first=xid == 1000),
                wire.xlog(replace(wire.ITEMS, xid=xid)),
                wire.insert("x" * 1000, xid=xid),
                wire.stream_stop(),
                wire.stream_abort(TOP, xid),
            ]
        yield [memoryview(message) for message in run]
    kept = (wire.xlog(replace(wire.ITEMS, xid=TOP)), wire.insert("kept", xid=TOP))
    run = [wire.stream_start(TOP, first=False), *kept, wire.stream_stop()]
    yield [memoryview(message) for message in run]


def test_the_commit_costs_little_beside_what_was_received() -> None:
    storage = MemoryStorage()
    writer = LogWriter(storage, IDENTITY)
    fragmenter = Fragmenter(writer.complete_lsn)
    began = time.process_time()
    for number, run in enumerate(rolled_back(repeats(60_000, soak=300_000))):
        apply(writer, fragmenter, run)
        if number % 10 == 0:
            writer.flush(writer.complete_lsn)
    received_s = time.process_time() - began
    began = time.process_time()
    apply(writer, fragmenter, [memoryview(wire.stream_commit(TOP, END))])
    committed_s = time.process_time() - began
    # It was a fifth with 60,000, and more than half with 300,000.
    assert committed_s < received_s / 20
    writer.flush(Lsn(END))
    (transaction,) = read(storage)
    assert [payload[:1] for payload in transaction.payloads] == [b"R", b"I"]
    assert b"kept" in transaction.payloads[1]
