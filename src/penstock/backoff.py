"""How long to wait before the next try."""

from __future__ import annotations

import random


class Backoff:
    """Pauses that double from `first_s` to `most_s`, each shortened at random by up to a half.

    So many clients of one restarted server do not return in step.
    """

    def __init__(self, first_s: float = 0.1, most_s: float = 10.0) -> None:
        self._first_s = first_s
        self._most_s = most_s
        self._next_s = first_s

    def pause_s(self) -> float:
        pause, self._next_s = self._next_s, min(self._most_s, self._next_s * 2)
        return pause * random.uniform(0.5, 1.0)  # noqa: S311 - spreads load, guards nothing

    def reset(self) -> None:
        """It worked: the next failure is a new one."""
        self._next_s = self._first_s
