"""Random stretches of replication, as a server would send them, for tests of what comes behind.

Transactions come whole or streamed and interleaved, with subtransactions of which some roll back;
tables are described, change, and are described again.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from penstock.capture.transactions import Transaction, TransactionBuilder
from penstock.postgres.messages import Column, Relation
from support import wire


@dataclass(frozen=True)
class Story:
    """The messages, and where each transaction's last one is."""

    messages: list[memoryview]

    def truth(self) -> list[Transaction]:
        """What committed, by the plain builder that keeps everything in memory."""
        builder = TransactionBuilder(4)
        committed = [t for message in self.messages for t in builder.add(message)]
        return [transaction for transaction in committed if transaction.payloads]

    def runs(self, chance: random.Random) -> list[list[memoryview]]:
        """The messages, cut where a socket might have been drained."""
        runs, at = [], 0
        while at < len(self.messages):
            size = chance.choice([1, 2, 5, 20])
            runs.append(self.messages[at : at + size])
            at += size
        return runs


def tell(chance: random.Random, transactions: int = 12) -> Story:
    """A story with about so many transactions."""
    return _Teller(chance).tell(transactions)


class _Teller:
    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._lsn = 0x1000
        self._xid = 700
        self._value = 0
        self._version = 0
        self._messages: list[bytes] = []
        # Streamed transactions that are open: top xid → the subtransactions so far.
        self._open: dict[int, list[int]] = {}

    def tell(self, transactions: int) -> Story:
        self._describe(None)
        for _ in range(transactions):
            self._chance.choice([self._whole, self._whole, self._chunk, self._chunk, self._idle])()
            if self._open and self._chance.random() < 0.4:
                self._end(self._chance.choice(list(self._open)))
        for xid in list(self._open):
            if self._chance.random() < 0.7:
                self._end(xid)
        return Story([memoryview(message) for message in self._messages])

    def _whole(self) -> None:
        xid = self._new_xid()
        end = self._step()
        self._messages.append(wire.begin(end - 8, xid))
        if self._chance.random() < 0.2:
            self._describe(None)
        self._changes(None, self._chance.choice([0, 1, 3, 30]))
        self._messages.append(wire.commit(end))

    def _chunk(self) -> None:
        if self._open and self._chance.random() < 0.6:
            xid, first = self._chance.choice(list(self._open)), False
        else:
            xid, first = self._new_xid(), True
            self._open[xid] = []
        self._messages.append(wire.stream_start(xid, first=first))
        for _ in range(self._chance.randint(1, 3)):
            if self._chance.random() < 0.3:
                self._open[xid].append(self._new_xid())
            writer = self._chance.choice([xid, *self._open[xid]])
            if self._chance.random() < 0.2:
                self._describe(writer)
            self._changes(writer, self._chance.choice([1, 4, 25]))
        self._messages.append(wire.stream_stop())
        if self._open[xid] and self._chance.random() < 0.5:
            gone = self._open[xid].pop(self._chance.randrange(len(self._open[xid])))
            self._messages.append(wire.stream_abort(xid, gone))

    def _end(self, xid: int) -> None:
        del self._open[xid]
        if self._chance.random() < 0.75:
            self._messages.append(wire.stream_commit(xid, self._step()))
        else:
            self._messages.append(wire.stream_abort(xid))

    def _idle(self) -> None:
        self._messages.append(wire.keepalive(self._step()))

    def _describe(self, xid: int | None) -> None:
        """The table as before, or with another column; sometimes as it was."""
        self._version = self._chance.choice([self._version, self._version + 1, 0])
        columns = (Column(True, "id", 23, -1), Column(False, f"v{self._version}", 25, -1))
        self._messages.append(
            wire.xlog(Relation(wire.ITEMS.oid, "public", "items", "d", columns, xid))
        )

    def _changes(self, xid: int | None, count: int) -> None:
        for _ in range(count):
            self._value += 1
            self._messages.append(wire.insert(self._value, xid=xid))

    def _new_xid(self) -> int:
        self._xid += 1
        return self._xid

    def _step(self) -> int:
        """The next commit often starts where the last one ended."""
        self._lsn += self._chance.choice([8, 8, 100])
        return self._lsn
