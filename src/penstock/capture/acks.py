"""Which events are published, and so how far Postgres may forget. Pure: no clock, no I/O.

Events enter in commit order with `register`, results come back in any order, and `frontier_lsn`
is the position that may be confirmed.

Invariant (M2.3): the frontier is below every LSN at which an event is unpublished or announced.
The events at one LSN are complete when none of them is; the frontier steps only over complete
LSNs, from the oldest on.
"""

from __future__ import annotations

from collections import deque

from penstock.lsn import ZERO, Lsn


class AckTracker:
    """Follows events from registration to publication.

    >>> tracker = AckTracker()
    >>> a, b = tracker.register(Lsn(0x100)), tracker.register(Lsn(0x200))
    >>> tracker.mark_published_by_id(b)      # out of order: the frontier waits
    >>> tracker.mark_published_by_id(a)      # now both are done
    Lsn('0/200')

    Not for several threads at once: hand results to the thread that registers. Plain containers
    rather than an object per LSN, for `penstock bench tracker` asks for a million events a second.
    """

    __slots__ = (
        "_announced",
        "_first_id",
        "_frontier",
        "_in_flight",
        "_last_id",
        "_newest",
        "_pending",
        "_unpublished",
    )

    def __init__(self, initial_lsn: Lsn = ZERO) -> None:
        self._frontier = initial_lsn
        # LSNs that the frontier has not reached, oldest first; how many of each one's events are
        # unpublished, and the first that may be. Their ids are consecutive: LSNs never decrease.
        self._in_flight: deque[Lsn] = deque()
        self._unpublished: dict[Lsn, int] = {}
        self._first_id: dict[Lsn, int] = {}
        # LSNs whose newest event said that more will follow.
        self._announced: set[Lsn] = set()
        # Unpublished events.
        self._pending: dict[int, Lsn] = {}
        self._last_id = 0
        self._newest = initial_lsn

    @property
    def frontier_lsn(self) -> Lsn:
        """Everything registered at or below is published; this may be confirmed."""
        return self._frontier

    @property
    def pending_count(self) -> int:
        """Events registered and not yet published."""
        return len(self._pending)

    def register(self, lsn: Lsn, *, more: bool = False) -> int:
        """Enter an event in commit order; returns its ack id.

        `more` announces further events at this LSN: the frontier stays below it until one comes
        without. Raises `ValueError` for an LSN below an earlier one, or one that the frontier has
        reached by acks: the event would come after its position was given away.
        """
        ack_id = self._last_id + 1
        # A first event at the initial LSN itself is welcome: that position was given, not reached.
        if lsn > self._newest or (ack_id == 1 and lsn == self._newest):
            self._newest = lsn
            self._in_flight.append(lsn)
            self._unpublished[lsn] = 1
            self._first_id[lsn] = ack_id
        elif lsn < self._newest:
            raise ValueError(f"LSN {lsn} is below {self._newest}, which was registered before it")
        elif lsn in self._unpublished:
            self._unpublished[lsn] += 1
        else:
            raise ValueError(f"LSN {lsn} was already reached by the frontier")
        if more:
            self._announced.add(lsn)
        elif self._announced:
            self._announced.discard(lsn)
        self._pending[ack_id] = lsn
        self._last_id = ack_id
        return ack_id

    def mark_published_by_id(self, ack_id: int) -> Lsn | None:
        """Record that an event is durable at its destination, or dropped by a counted policy.

        Returns the new frontier if this call moved it, else None; a repeated or late ack is None
        too. Raises `KeyError` for an id that was never issued.
        """
        lsn = self._pending.pop(ack_id, None)
        if lsn is None:
            if 0 < ack_id <= self._last_id:
                return None
            raise KeyError(f"ack id {ack_id} was never issued")
        left = self._unpublished[lsn] = self._unpublished[lsn] - 1
        if left or lsn != self._in_flight[0]:
            return None
        return self._advance()

    def mark_published(self, lsn: Lsn) -> Lsn | None:
        """Record that one event at `lsn`, the oldest unpublished, is published.

        For callers that only know an LSN; one call stands for one event. Raises `KeyError` for an
        LSN that is unknown or has nothing left to publish.
        """
        if not self._unpublished.get(lsn):
            raise KeyError(f"no event at LSN {lsn} waits to be published")
        ack_id = self._first_id[lsn]
        while ack_id not in self._pending:
            ack_id += 1
        self._first_id[lsn] = ack_id + 1
        return self.mark_published_by_id(ack_id)

    def _advance(self) -> Lsn | None:
        """Step over every complete LSN at the head."""
        in_flight, unpublished = self._in_flight, self._unpublished
        before = frontier = self._frontier
        while in_flight:
            lsn = in_flight[0]
            if unpublished[lsn] or lsn in self._announced:
                break
            if lsn < frontier:
                raise RuntimeError(f"the frontier would go from {frontier} back to {lsn}")
            frontier = lsn
            in_flight.popleft()
            del unpublished[lsn], self._first_id[lsn]
        self._frontier = frontier
        return frontier if frontier > before else None
