"""What capture does about each error: the one table, and the pause between two attempts. Pure."""

from __future__ import annotations

import random
from enum import Enum

from penstock.errors import (
    ConnectionLost,
    PenstockError,
    SlotInUse,
    SlotLimitReached,
    SourceUnavailable,
)


class Reaction(Enum):
    RETRY = "connect again, for ever"
    RETRY_BRIEFLY = "connect again for a while: what holds the slot may be our own past"
    STOP = "tell the operator"


_REACTIONS: dict[type[PenstockError], Reaction] = {
    ConnectionLost: Reaction.RETRY,
    SourceUnavailable: Reaction.RETRY,
    SlotLimitReached: Reaction.RETRY_BRIEFLY,
    SlotInUse: Reaction.RETRY_BRIEFLY,
    # Everything else needs a person: trying again would only hide it.
    PenstockError: Reaction.STOP,
}

# A walsender whose client is gone may hold the slot until its timeout; with ours set to 20 s this
# leaves room for a server-wide default of 60 s.
RETRY_BRIEFLY_S = 70.0


def reaction(error: PenstockError) -> Reaction:
    """Of the class itself, or the nearest base that the table names."""
    return next(_REACTIONS[base] for base in type(error).__mro__ if base in _REACTIONS)


class Backoff:
    """Pauses that double from `first_s` to `most_s`, each shortened at random by up to a half.

    Many clients of one restarted server thus do not return in step.
    """

    def __init__(self, first_s: float = 0.1, most_s: float = 10.0) -> None:
        self._first_s = first_s
        self._most_s = most_s
        self._next_s = first_s

    def pause_s(self) -> float:
        pause, self._next_s = self._next_s, min(self._most_s, self._next_s * 2)
        return pause * random.uniform(0.5, 1.0)  # noqa: S311 - spreads load, guards nothing

    def reset(self) -> None:
        """The connection worked: the next failure is a new one."""
        self._next_s = self._first_s
