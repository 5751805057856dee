"""When a state that lasts is logged again, and how old it is then. Pure: the time is an argument.

The end of a log must show a state that began hours ago, and the log must not be filled by it.
"""

from __future__ import annotations

from collections.abc import Sequence

_AGES_S = (60.0, 300.0, 600.0)


class LastingState:
    """A state that begins, lasts and ends, such as a connection that is down."""

    def __init__(self, ages_s: Sequence[float] | None = None) -> None:
        """It is logged again at these ages, later at every multiple of the last one."""
        self._ages_s = ages_s or _AGES_S
        self._since: float | None = None
        # The age at which it is to be logged next.
        self._next_s = self._ages_s[0]

    def begin(self, now: float) -> bool:
        """Return whether the state begins now; it may have begun before."""
        if self._since is not None:
            return False
        self._since, self._next_s = now, self._ages_s[0]
        return True

    def end(self) -> None:
        self._since = None

    def age_s(self, now: float) -> float:
        return 0.0 if self._since is None else now - self._since

    def due_at(self) -> float | None:
        """Return when the state is to be logged again, or None if there is no such state."""
        return None if self._since is None else self._since + self._next_s

    def is_due(self, now: float) -> bool:
        """Return whether to log the state again now; each age counts once."""
        if self._since is None or self.age_s(now) < self._next_s:
            return False
        age_s, every_s = self.age_s(now), self._ages_s[-1]
        later = (each for each in self._ages_s if each > age_s)
        self._next_s = next(later, (age_s // every_s + 1) * every_s)
        return True
