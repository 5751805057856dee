"""What of a capture's ups and downs is news, and what only the next attempt of many. Pure.

It is told once that it follows the slot, and each reason why it does not once until it does again.
"""

from __future__ import annotations

import re

from penstock.errors import LogNotWritten, PenstockError, SpillFailed


class Telling:
    """Asked at each turn whether it is worth a line in the program's log."""

    def __init__(self) -> None:
        self._following = False
        # Why not, as far as it was told; without numbers, for those of processes change.
        self._reasons: set[str] = set()
        # To connect does not show that there is room on the disk: the next flush does.
        self._doubtful = False

    def failed(self, error: PenstockError) -> bool:
        reason = re.sub(r"\d+", "", error.problem)
        is_news = reason not in self._reasons
        self._reasons.add(reason)
        self._following = False
        self._doubtful |= isinstance(error, LogNotWritten | SpillFailed)
        return is_news

    def connected(self) -> bool:
        return not self._doubtful and self._follows()

    def durable(self) -> bool:
        """Something was written, and is on disk."""
        self._doubtful = False
        return self._follows()

    def _follows(self) -> bool:
        is_news, self._following = not self._following, True
        self._reasons.clear()
        return is_news
