"""Random stretches of replication, as a server would send them, for tests of what comes behind.

Transactions come whole or streamed and interleaved, with subtransactions of which some roll back;
tables are described, change, and are described again.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

from penstock.lsn import Lsn
from penstock.postgres.messages import Column, Insert, Relation
from penstock.postgres.transaction import Transaction
from support import wire
from support.pgoutput_encoder import encode


@dataclass(frozen=True)
class Story:
    """The messages, and what the teller knows to have committed."""

    messages: list[memoryview]
    committed: list[Transaction]

    def truth(self) -> list[Transaction]:
        """What committed and changed something."""
        return [transaction for transaction in self.committed if transaction.payloads]

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


@dataclass
class _Told:
    """What was told of a transaction: each change, who made it, and how its table looked then."""

    changes: list[tuple[int, Insert, Relation]] = field(default_factory=list)
    # Those that were not rolled back.
    subxids: list[int] = field(default_factory=list)

    def roll_back(self, subxid: int) -> None:
        self.subxids.remove(subxid)
        self.changes = [change for change in self.changes if change[0] != subxid]

    def committed(self, xid: int, lsn: int) -> Transaction:
        payloads: list[bytes] = []
        described = None
        for _, change, relation in self.changes:
            if relation != described:
                described = relation
                payloads.append(encode(relation))
            payloads.append(encode(change))
        return Transaction(xid, Lsn(lsn), 0, tuple(payloads))


class _Teller:
    """Keeps what it tells as values, so that the truth does not depend on any parsing."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._lsn = 0x1000
        self._xid = 700
        self._value = 0
        self._version = 0
        self._table = wire.ITEMS
        self._messages: list[bytes] = []
        self._committed: list[Transaction] = []
        # Streamed transactions that are open.
        self._open: dict[int, _Told] = {}

    def tell(self, transactions: int) -> Story:
        self._describe(None)
        for _ in range(transactions):
            self._chance.choice([self._whole, self._whole, self._chunk, self._chunk, self._idle])()
            if self._open and self._chance.random() < 0.4:
                self._end(self._chance.choice(list(self._open)))
        for xid in list(self._open):
            if self._chance.random() < 0.7:
                self._end(xid)
        return Story([memoryview(message) for message in self._messages], self._committed)

    def _whole(self) -> None:
        xid = self._new_xid()
        end = self._step()
        self._messages.append(wire.begin(end - 8, xid))
        if self._chance.random() < 0.2:
            self._describe(None)
        told = _Told()
        self._changes(told, None, self._chance.choice([0, 1, 3, 30]))
        self._messages.append(wire.commit(end))
        self._committed.append(told.committed(xid, end))

    def _chunk(self) -> None:
        if self._open and self._chance.random() < 0.6:
            xid, first = self._chance.choice(list(self._open)), False
        else:
            xid, first = self._new_xid(), True
            self._open[xid] = _Told()
        told = self._open[xid]
        self._messages.append(wire.stream_start(xid, first=first))
        for _ in range(self._chance.randint(1, 3)):
            if self._chance.random() < 0.3:
                told.subxids.append(self._new_xid())
            writer = self._chance.choice([xid, *told.subxids])
            if self._chance.random() < 0.2:
                self._describe(writer)
            self._changes(told, writer, self._chance.choice([1, 4, 25]))
        self._messages.append(wire.stream_stop())
        if told.subxids and self._chance.random() < 0.5:
            gone = self._chance.choice(told.subxids)
            told.roll_back(gone)
            self._messages.append(wire.stream_abort(xid, gone))

    def _end(self, xid: int) -> None:
        told = self._open.pop(xid)
        if self._chance.random() < 0.75:
            lsn = self._step()
            self._messages.append(wire.stream_commit(xid, lsn))
            self._committed.append(told.committed(xid, lsn))
        else:
            self._messages.append(wire.stream_abort(xid))

    def _idle(self) -> None:
        self._messages.append(wire.keepalive(self._step()))

    def _describe(self, xid: int | None) -> None:
        """The table as before, or with another column; sometimes as it was."""
        self._version = self._chance.choice([self._version, self._version + 1, 0])
        columns = (Column(True, "id", 23, -1), Column(False, f"v{self._version}", 25, -1))
        self._table = replace(wire.ITEMS, columns=columns)
        self._messages.append(wire.xlog(replace(self._table, xid=xid)))

    def _changes(self, told: _Told, xid: int | None, count: int) -> None:
        for _ in range(count):
            self._value += 1
            change = Insert(self._table.oid, (str(self._value).encode(),))
            self._messages.append(wire.xlog(replace(change, xid=xid)))
            told.changes.append((xid or 0, change, self._table))

    def _new_xid(self) -> int:
        self._xid += 1
        return self._xid

    def _step(self) -> int:
        """The next commit often starts where the last one ended."""
        self._lsn += self._chance.choice([8, 8, 100])
        return self._lsn
