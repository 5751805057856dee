"""From fragments to whole, committed transactions, for destinations that cannot hide the others.

In: a fragmenter's events, in order. Out: a `WholeTransaction` at each commit. Memory stays below a
limit, whatever the transactions' size: past it the largest open one goes to disk (`spill.py`).

A change uses the last Relation for its oid *received on this connection*, whichever transaction
carried it, even one that was aborted. So versions are resolved at receipt and never taken back.
"""

from __future__ import annotations

from pathlib import Path

from penstock.capture.spill import Spill, prepare_directory
from penstock.capture.whole import Collected, WholeTransaction
from penstock.closing import Closing
from penstock.errors import ProtocolViolation
from penstock.postgres.envelope import PAYLOAD_POS
from penstock.postgres.fragments import Abort, Description, Event, Fragment, touched

# Little beside Python and its libraries, and more than most transactions ever need.
MEMORY_BYTES = 16 * 2**20

_RELATION = ord("R")
_LOGICAL_MESSAGE = ord("M")
# Of a Relation, which belongs to no transaction: it stays when the one that carried it is gone.
_NO_XID = 0


class TransactionBuilder(Closing):
    """Collects open transactions, interleaved ones apart. One for each connection; close it.

    After an error it is closed, for what it holds may be incomplete: connect again, and the server
    sends all that was not confirmed once more.
    """

    def __init__(self, directory: Path, memory_bytes: int = MEMORY_BYTES) -> None:
        """`directory` takes what exceeds `memory_bytes` over all open transactions.

        It should be on a disk with room for the largest of them; /tmp is often memory.
        """
        prepare_directory(directory)
        self._directory = directory
        self._limit_bytes = memory_bytes
        self._relations: dict[int, bytes] = {}
        self._open: dict[int, Collected] = {}
        self._closed = False
        # What the open transactions hold in memory.
        self.memory_bytes = 0

    @property
    def open_transactions(self) -> int:
        return len(self._open)

    def add(self, event: Event) -> WholeTransaction | None:
        """Take what the fragmenter says next; returns the transaction that it commits, if any."""
        if self._closed:
            raise RuntimeError("this builder was closed or has failed")
        try:
            match event:
                case Fragment():
                    collected = self._collect(event)
                    if event.commit is not None:
                        self._remove(event.xid)
                        return WholeTransaction(event.xid, event.commit, collected)
                case Description():
                    self._note(event.payload)
                case Abort():
                    self._abort(event)
        except BaseException:
            self.close()
            raise
        return None

    def close(self) -> None:
        """Forget what has not committed. What was handed out stays with whoever has it."""
        self._closed = True
        for xid in list(self._open):
            self._remove(xid).spill.close()

    def _collect(self, fragment: Fragment) -> Collected:
        collected = self._open.get(fragment.xid)
        if collected is None:
            collected = self._open[fragment.xid] = Collected(Spill(self._directory))
        streamed, xid = fragment.streamed, fragment.xid
        # Inside a chunk an xid stands behind the kind; without it the two forms are the same.
        fields_pos = 5 if streamed else 1
        for message in fragment.messages:
            payload = message[PAYLOAD_POS:]
            if payload[0] == _LOGICAL_MESSAGE:
                continue  # not a change of a table
            if streamed:
                xid = int.from_bytes(payload[1:5], "big")
            for oid in touched(payload, streamed):
                self._describe(collected, oid)
            self.memory_bytes += collected.spill.add(xid, payload[:1], payload[fields_pos:])
            collected.changes += 1
            if self.memory_bytes > self._limit_bytes:
                self._spill_largest()
        return collected

    def _describe(self, collected: Collected, oid: int) -> None:
        """Put a table's Relation before a change of it, unless it is there."""
        relation = self._relations.get(oid)
        if relation is None:
            raise ProtocolViolation(
                f"a change of relation {oid}, which was not described", byte_pos=1
            )
        if collected.described.get(oid) != relation:
            collected.described[oid] = relation
            self.memory_bytes += collected.spill.add(_NO_XID, relation)

    def _note(self, description: bytes) -> None:
        if description[0] != _RELATION:
            return  # a Type says nothing that whoever decodes a change needs
        oid = int.from_bytes(description[1:5], "big")
        # The same comes again after aborts and invalidations; one copy is quickly compared.
        if self._relations.get(oid) != description:
            self._relations[oid] = description

    def _spill_largest(self) -> None:
        largest = max(self._open.values(), key=lambda collected: collected.spill.memory_bytes)
        self.memory_bytes -= largest.spill.memory_bytes
        largest.spill.to_disk()

    def _abort(self, abort: Abort) -> None:
        """Forget a transaction, or what one of its subtransactions did."""
        if abort.xid not in self._open:
            return  # servers 15 and 16 abort what they never sent
        if abort.subxid == abort.xid:
            self._remove(abort.xid).spill.close()
        else:
            self._open[abort.xid].aborted.add(abort.subxid)

    def _remove(self, xid: int) -> Collected:
        collected = self._open.pop(xid)
        self.memory_bytes -= collected.spill.memory_bytes
        return collected
