"""What capture does about each error: the one table, and how long it is patient. Pure.

An error with the reaction STOP, or one that was retried for long enough, needs a person. It ends
`penstock capture`, and with it `penstock run`.
"""

from __future__ import annotations

from enum import Enum

from penstock.backoff import Backoff
from penstock.errors import (
    AuthenticationFailed,
    ConnectionLost,
    LogAtBudget,
    LogInUse,
    LogNotWritten,
    PenstockError,
    PollerRunning,
    SlotInUse,
    SlotLimitReached,
    SourceUnavailable,
    SpillFailed,
)


class Reaction(Enum):
    RETRY = "connect again, for ever"
    RETRY_BRIEFLY = "connect again for a while: what holds the slot may be our own past"
    RETRY_BRIEFLY_LATER = "stop at the start; connect again for a while once it has worked"
    STOP = "tell the operator"


_REACTIONS: dict[type[PenstockError], Reaction] = {
    ConnectionLost: Reaction.RETRY,
    SourceUnavailable: Reaction.RETRY,
    # The disk is full or failed: nothing is lost, and space may return.
    LogNotWritten: Reaction.RETRY,
    LogAtBudget: Reaction.RETRY,
    SpillFailed: Reaction.RETRY,
    SlotLimitReached: Reaction.RETRY_BRIEFLY,
    SlotInUse: Reaction.RETRY_BRIEFLY,
    # `penstock log prune` holds it for a moment.
    LogInUse: Reaction.RETRY_BRIEFLY,
    # A password that is being rotated, or rules for connections that are being edited, may be
    # wrong for a moment. At the start it is a mistake.
    AuthenticationFailed: Reaction.RETRY_BRIEFLY_LATER,
    # At the start somebody else polls. Later it may be our own session, which the network lost.
    PollerRunning: Reaction.RETRY_BRIEFLY_LATER,
    # Everything else needs a person: trying again would only hide it.
    PenstockError: Reaction.STOP,
}

# A walsender whose client is gone may hold the slot until its timeout: 60 s by default.
_RETRY_BRIEFLY_S = 70.0


def reaction(error: PenstockError) -> Reaction:
    """Of the class itself, or the nearest base that the table names."""
    return next(_REACTIONS[base] for base in type(error).__mro__ if base in _REACTIONS)


class ScheduledRetries(Backoff):
    """Retries within a polling run, after 1, 2, 4 … s; then the next run has its turn."""

    def __init__(self, retries: int, interval_s: float) -> None:
        super().__init__(first_s=1.0, most_s=2.0**retries)
        self._retries = retries
        self._interval_s = interval_s
        self._failed = 0

    def pause_s(self) -> float:
        self._failed += 1
        if self._failed <= self._retries:
            return super().pause_s()
        self.reset()
        return self._interval_s

    def reset(self) -> None:
        super().reset()
        self._failed = 0


class Patience:
    """How long to pause after each error of one capture, and when to tell the operator instead."""

    def __init__(self, *, wal_sender_timeout_s: float, backoff: Backoff | None = None) -> None:
        """The timeout is that of our own walsenders, which may hold the slot after we are gone."""
        self._backoff = backoff or Backoff()
        self._brief_s = max(_RETRY_BRIEFLY_S, 1.2 * wal_sender_timeout_s + 10)
        # Since when every attempt failed with an error that is tried again only briefly.
        self._brief_since: float | None = None
        self._has_connected = False

    def connected(self) -> None:
        """The server let us read the slot: the settings are right, or were."""
        self._has_connected = True

    def progressed(self) -> None:
        """Something became durable: the next failure is a new one.

        To have connected is not enough. A server that fails at one and the same transaction would
        be asked for it again without a pause.
        """
        self._backoff.reset()
        self._brief_since = None

    def pause_s(self, error: PenstockError, now: float) -> float:
        """The pause before the next attempt; raises `error` if there should be none."""
        what = reaction(error)
        if what is Reaction.RETRY_BRIEFLY_LATER:
            what = Reaction.RETRY_BRIEFLY if self._has_connected else Reaction.STOP
        if what is not Reaction.RETRY_BRIEFLY:
            self._brief_since = None
        elif self._brief_since is None:
            self._brief_since = now
        is_over = self._brief_since is not None and now - self._brief_since > self._brief_s
        if what is Reaction.STOP or is_over:
            raise error
        return self._backoff.pause_s()

    def gives_up_in_s(self, now: float) -> float | None:
        """How long the error of the last pause is tried again; None: for ever."""
        return None if self._brief_since is None else self._brief_since + self._brief_s - now
