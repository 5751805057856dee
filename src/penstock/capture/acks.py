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

    Not for several threads at once: hand results to the thread that registers. An event costs one
    place in a queue, for `penstock bench tracker` asks for a million of them a second.
    """

    __slots__ = (
        "_done",
        "_first_id",
        "_frontier",
        "_in_flight",
        "_last_id",
        "_last_id_of",
        "_newest",
        "_oldest_id",
        "_open_lsn",
    )

    def __init__(self, initial_lsn: Lsn = ZERO) -> None:
        self._frontier = initial_lsn
        self._newest = initial_lsn
        # The LSNs of the events from `_oldest_id` to `_last_id`, of which the first is unpublished
        # and those in `_done` are not.
        self._in_flight: deque[Lsn] = deque()
        self._oldest_id = 1
        self._last_id = 0
        self._done: set[int] = set()
        # For each LSN that the frontier has not reached: the first id that may be unpublished and,
        # where there are several, the last. They are consecutive, for LSNs never decrease.
        self._first_id: dict[Lsn, int] = {}
        self._last_id_of: dict[Lsn, int] = {}
        # The oldest LSN whose newest event announced more. Once a later LSN has come the promise
        # can no longer be kept, and the frontier stays below it for good.
        self._open_lsn: Lsn | None = None

    @property
    def frontier_lsn(self) -> Lsn:
        """Everything registered at or below is published; this may be confirmed."""
        return self._frontier

    @property
    def pending_count(self) -> int:
        """Events registered and not yet published."""
        return len(self._in_flight) - len(self._done)

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
            self._first_id[lsn] = ack_id
        elif lsn < self._newest:
            raise ValueError(f"LSN {lsn} is below {self._newest}, which was registered before it")
        elif lsn in self._first_id:
            self._last_id_of[lsn] = ack_id
        else:
            raise ValueError(f"LSN {lsn} was already reached by the frontier")
        if more:
            if self._open_lsn is None:
                self._open_lsn = lsn
        elif self._open_lsn is not None and lsn == self._open_lsn:
            self._open_lsn = None
        self._in_flight.append(lsn)
        self._last_id = ack_id
        return ack_id

    def mark_published_by_id(self, ack_id: int) -> Lsn | None:
        """Record that an event is durable at its destination, or dropped by a counted policy.

        Returns the new frontier if this call moved it, else None; a repeated or late ack is None
        too. Raises `KeyError` for an id that was never issued.
        """
        if ack_id == self._oldest_id and self._in_flight:
            return self._retire()
        if self._oldest_id < ack_id <= self._last_id:
            self._done.add(ack_id)
        elif not 0 < ack_id <= self._last_id:
            raise KeyError(f"ack id {ack_id} was never issued")
        return None

    def mark_published(self, lsn: Lsn) -> Lsn | None:
        """Record that one event at `lsn`, the oldest unpublished, is published.

        For callers that only know an LSN; one call stands for one event. Raises `KeyError` for an
        LSN that is unknown or has nothing left to publish.
        """
        first = self._first_id.get(lsn, 0)
        ack_id = max(first, self._oldest_id)
        while ack_id in self._done:
            ack_id += 1
        if ack_id > self._last_id_of.get(lsn, first):
            raise KeyError(f"no event at LSN {lsn} waits to be published")
        self._first_id[lsn] = ack_id
        return self.mark_published_by_id(ack_id)

    def _retire(self) -> Lsn | None:
        """The oldest event is published: let it go, and those behind it that were done before."""
        in_flight, done, open_lsn = self._in_flight, self._done, self._open_lsn
        oldest_id = self._oldest_id
        moved: Lsn | None = None
        while True:
            lsn = in_flight.popleft()
            oldest_id += 1
            if (not in_flight or in_flight[0] != lsn) and (open_lsn is None or lsn < open_lsn):
                moved = lsn
                del self._first_id[lsn]
                if self._last_id_of:
                    self._last_id_of.pop(lsn, None)
            if not done or oldest_id not in done:
                break
            done.remove(oldest_id)
        self._oldest_id = oldest_id
        if moved is None or moved == self._frontier:  # the latter: it was the initial LSN
            return None
        if moved < self._frontier:
            raise RuntimeError(f"the frontier would go from {self._frontier} back to {moved}")
        self._frontier = moved
        return moved
