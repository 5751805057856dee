"""From a stream of messages to whole, committed transactions. Pure; one builder per connection.

In: CopyData messages in the order received. Out: a `Transaction` for each commit, which decodes by
itself: every change stands behind the Relation message that was in force when it was received.

A change uses the last Relation for its oid *received on this connection*, whichever transaction
carried it, even one that was aborted. So versions are resolved at receipt and never taken back.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from penstock.errors import ProtocolViolation
from penstock.lsn import Lsn
from penstock.postgres.envelope import PAYLOAD_POS, XLOG_DATA
from penstock.postgres.messages import (
    Begin,
    Commit,
    Message,
    StreamAbort,
    StreamCommit,
    StreamStart,
    StreamStop,
)
from penstock.postgres.pgoutput import Decoder

_RELATION = ord("R")
_ROWS = frozenset(b"IUD")
_TRUNCATE = ord("T")
# Messages without a row; an Origin or a Type says nothing that a later stage needs so far, and
# logical messages are not part of a table.
_IGNORED = frozenset(b"OYM")


@dataclass(frozen=True, slots=True)
class Transaction:
    """A committed transaction; payloads are pgoutput's, in the form without an xid."""

    xid: int
    commit_lsn: Lsn
    committed_us: int
    payloads: tuple[bytes, ...]


@dataclass(slots=True)
class _Open:
    """A transaction that has not ended: each change, its subtransaction, and its relations."""

    xid: int
    entries: list[tuple[int | None, bytes, tuple[bytes, ...]]] = field(default_factory=list)


class TransactionBuilder:
    """Keeps open transactions in memory, interleaved ones apart."""

    def __init__(self, protocol_version: int) -> None:
        self._decoder = Decoder(protocol_version, "on")
        self._relations: dict[int, bytes] = {}
        self._open: dict[int, _Open] = {}
        self._current: _Open | None = None
        self._in_chunk = False

    def add(self, message: memoryview | bytes) -> Iterator[Transaction]:
        """Take one CopyData message; yields the transaction that it commits, if it does."""
        if message[0] != XLOG_DATA:
            return
        payload = bytes(message[PAYLOAD_POS:])
        kind = payload[0]
        if kind in _ROWS or kind in (_RELATION, _TRUNCATE):
            self._change(kind, payload)
        elif kind not in _IGNORED:
            yield from self._control(self._decoder.decode(payload))

    def _change(self, kind: int, payload: bytes) -> None:
        xid = None
        if self._in_chunk:
            # Inside a chunk an xid stands behind the kind; without it the two forms are the same.
            xid = int.from_bytes(payload[1:5], "big")
            payload = payload[:1] + payload[5:]
        if kind == _RELATION:
            oid = int.from_bytes(payload[1:5], "big")
            # The same description comes again after aborts and invalidations: one copy is enough.
            if self._relations.get(oid) != payload:
                self._relations[oid] = payload
            return
        if self._current is None:
            raise ProtocolViolation("a change outside a transaction", byte_pos=0, kind=chr(kind))
        try:
            relations = tuple(self._relations[oid] for oid in _relation_oids(kind, payload))
        except KeyError as error:
            raise ProtocolViolation(
                f"a change of relation {error}, which was not described",
                byte_pos=1,
                kind=chr(kind),
            ) from None
        self._current.entries.append((xid, payload, relations))

    def _control(self, message: Message) -> Iterator[Transaction]:
        match message:
            case Begin(xid=xid):
                self._current = _Open(xid)
            case Commit():
                transaction, self._current = self._current, None
                if transaction is not None:
                    yield _close(transaction, message)
            case StreamStart(xid=xid):
                self._current = self._open.setdefault(xid, _Open(xid))
                self._in_chunk = True
            case StreamStop():
                self._current = None
                self._in_chunk = False
            case StreamCommit(xid=xid):
                yield _close(self._open.pop(xid, _Open(xid)), message)
            case StreamAbort(xid=xid, subxid=subxid):
                self._abort(xid, subxid)
            case _:
                raise ProtocolViolation(
                    f"an unexpected {type(message).__name__}", byte_pos=0, kind=None
                )

    def _abort(self, xid: int, subxid: int) -> None:
        """Forget a transaction, or what one of its subtransactions did; it may be unknown."""
        if subxid == xid:
            self._open.pop(xid, None)
        elif xid in self._open:
            transaction = self._open[xid]
            transaction.entries = [entry for entry in transaction.entries if entry[0] != subxid]


def _close(transaction: _Open, commit: Commit | StreamCommit) -> Transaction:
    """Relations are put in only now: what was rolled back leaves no trace, streamed or not."""
    payloads: list[bytes] = []
    in_force: dict[bytes, bytes] = {}
    for _, payload, relations in transaction.entries:
        for relation in relations:
            oid = relation[1:5]
            if in_force.get(oid) != relation:
                in_force[oid] = relation
                payloads.append(relation)
        payloads.append(payload)
    return Transaction(transaction.xid, commit.end_lsn, commit.committed_us, tuple(payloads))


def _relation_oids(kind: int, payload: bytes) -> list[int]:
    if kind != _TRUNCATE:
        return [int.from_bytes(payload[1:5], "big")]
    count = int.from_bytes(payload[1:5], "big")
    return [int.from_bytes(payload[6 + 4 * i : 10 + 4 * i], "big") for i in range(count)]
