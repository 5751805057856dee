"""From messages to whole transactions, as the buffered path does it, and all of it in memory."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from pathlib import Path

from penstock.capture.builder import MEMORY_BYTES, TransactionBuilder
from penstock.capture.whole import WholeTransaction
from penstock.lsn import ZERO, Lsn
from penstock.postgres.fragments import Fragmenter
from penstock.postgres.transaction import Transaction
from support import wire

# Nothing is ever left in it, so tests may share it.
DIRECTORY = Path(tempfile.gettempdir())
# Every change goes to disk at once; and none ever does.
ALWAYS, NEVER = 0, MEMORY_BYTES


def in_memory(whole: WholeTransaction) -> Transaction:
    """As a value to compare; closes it."""
    with whole:
        payloads = tuple(whole.payloads())
        assert whole.changes == sum(payload[:1] in b"IUDT" for payload in payloads)
        return Transaction(whole.xid, whole.commit_lsn, whole.committed_us, payloads)


class Building:
    """One connection: a fragmenter and a builder."""

    def __init__(self, memory_bytes: int = NEVER, durable_lsn: Lsn = ZERO) -> None:
        self._fragmenter = Fragmenter(durable_lsn)
        self.builder = TransactionBuilder(DIRECTORY, memory_bytes)

    def feed(self, *runs: Iterable[bytes | memoryview]) -> list[Transaction]:
        views = ([memoryview(message) for message in run] for run in runs)
        events = (event for run in views for event in self._fragmenter.feed(run))
        return [in_memory(whole) for event in events if (whole := self.builder.add(event))]


def build(
    *runs: Iterable[bytes | memoryview], memory_bytes: int = NEVER, durable_lsn: Lsn = ZERO
) -> list[Transaction]:
    """What committed in these runs of one connection."""
    building = Building(memory_bytes, durable_lsn)
    with building.builder:
        return building.feed(*runs)


def memory_grown(directory: Path, memory_bytes: int, streamed: bool, changes: int) -> int:
    """By how many bytes this process grows, at most, while it builds and reads one transaction.

    For a process of its own: the system keeps only the highest value.
    """
    row = wire.insert("x" * 60, xid=7 if streamed else None)
    if streamed:
        first, last = wire.stream_start(7), [wire.stream_stop(), wire.stream_commit(7, 0x200)]
    else:
        first, last = wire.begin(), [wire.commit(0x200)]
    run = [memoryview(row)] * 1000
    before = _peak_bytes()
    fragmenter = Fragmenter(ZERO)
    with TransactionBuilder(directory, memory_bytes) as builder:
        for event in fragmenter.feed([memoryview(wire.relation()), memoryview(first)]):
            builder.add(event)
        for _ in range(changes // len(run)):
            for event in fragmenter.feed(run):
                builder.add(event)
                assert builder.memory_bytes <= memory_bytes
        (event,) = fragmenter.feed([memoryview(message) for message in last])
        whole = builder.add(event)
        assert whole is not None
        with whole:
            assert whole.changes == changes
            assert sum(1 for _ in whole.payloads()) == 1 + changes
    return _peak_bytes() - before


def _peak_bytes() -> int:
    (line,) = (
        line
        for line in Path("/proc/self/status").read_text().splitlines()
        if line.startswith("VmHWM")
    )
    return int(line.split()[1]) * 1024
