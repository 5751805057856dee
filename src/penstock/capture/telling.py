"""What of a capture's ups and downs is news, and what only the next attempt of many. Pure.

It is logged once that it follows the slot. Each reason why it does not is logged once until it
does again, and then at a slow pace.
"""

from __future__ import annotations

import re

from penstock.errors import LogNotWritten, PenstockError, SpillFailed
from penstock.lasting_state import LastingState


class Telling:
    """Asked at each turn whether it is worth a line in the program's log."""

    def __init__(self) -> None:
        self._following = False
        # Why not, as far as it was told; without numbers, for those of processes change.
        self._reasons: set[str] = set()
        # To connect does not show that there is room on the disk: the next flush does.
        self._doubtful = False
        self._down = LastingState()

    def failed(self, error: PenstockError, now: float) -> bool:
        self._down.begin(now)
        reason = re.sub(r"\d+", "", error.problem)
        # Both are asked: what is news at this age is not due once more.
        is_due = self._down.is_due(now)
        is_news = reason not in self._reasons or is_due
        self._reasons.add(reason)
        self._following = False
        self._doubtful |= isinstance(error, LogNotWritten | SpillFailed)
        return is_news

    def down_s(self, now: float) -> float:
        """How long capture has not followed the slot."""
        return self._down.age_s(now)

    def connected(self) -> bool:
        return not self._doubtful and self._follows()

    def durable(self) -> bool:
        """Something was written, and is on disk."""
        self._doubtful = False
        return self._follows()

    def _follows(self) -> bool:
        is_news, self._following = not self._following, True
        self._reasons.clear()
        self._down.end()
        return is_news
