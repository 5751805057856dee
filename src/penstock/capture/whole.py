"""A committed transaction of any size: its memory stays small. `builder.py` makes them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from penstock.capture.spill import Spill
from penstock.closing import Closing
from penstock.postgres.fragments import Commit, touched

_RELATION = ord("R")


@dataclass(slots=True)
class Collected:
    """What has come of a transaction: its changes and, before the first that needs it, a Relation.

    Each change has the xid of its own subtransaction. What is rolled back stays and is skipped.
    """

    spill: Spill
    changes: int = 0
    aborted: set[int] = field(default_factory=set)
    # The Relation of each table that was put in last.
    described: dict[int, bytes] = field(default_factory=dict)


class WholeTransaction(Closing):
    """A committed transaction of any size. Whoever has it closes it."""

    def __init__(self, xid: int, commit: Commit, collected: Collected) -> None:
        self.xid = xid
        self.commit_lsn = commit.lsn
        self.committed_us = commit.time_us
        self._collected = collected

    @property
    def changes(self) -> int:
        """Row changes and truncates. If some were rolled back, all of it is read to count them."""
        if self._collected.aborted:
            return sum(payload[0] != _RELATION for payload in self.payloads())
        return self._collected.changes

    def payloads(self) -> Iterator[bytes]:
        """As those of `Transaction`, always from the start; only a small part is in memory.

        A Relation that only rolled-back changes needed is left out: the server does not send it
        when the transaction comes in the other form.
        """
        aborted = self._collected.aborted
        described: dict[int, bytes] = {}
        handed_out: dict[int, bytes] = {}
        for xid, payload in self._collected.spill.entries():
            if payload[0] == _RELATION:
                described[int.from_bytes(payload[1:5], "big")] = payload
            elif xid not in aborted:
                for oid in touched(payload, streamed=False):
                    if handed_out.get(oid) != described[oid]:
                        handed_out[oid] = described[oid]
                        yield described[oid]
                yield payload

    def close(self) -> None:
        """Give its memory and its disk back."""
        self._collected.spill.close()
