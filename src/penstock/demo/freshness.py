"""How long after its commit a change is in the counts. Pure: it is told the times."""

from __future__ import annotations

import math
from collections import deque


class Freshness:
    """Of changes that are numbered in the order of their commits."""

    def __init__(self) -> None:
        self._under_way: deque[tuple[int, float]] = deque()
        self._delays_s: list[float] = []

    def committed(self, number: int, now: float) -> None:
        self._under_way.append((number, now))

    def applied(self, number: int, now: float) -> None:
        """All up to this one are."""
        while self._under_way and self._under_way[0][0] <= number:
            self._delays_s.append(now - self._under_way.popleft()[1])

    def percentile_ms(self, percent: float) -> float | None:
        """
        >>> freshness = Freshness()
        >>> for n in range(1, 101):
        ...     freshness.committed(n, 0.0)
        ...     freshness.applied(n, n / 1000)
        >>> freshness.percentile_ms(50), freshness.percentile_ms(99)
        (50.0, 99.0)
        """
        if not self._delays_s:
            return None
        ranked = sorted(self._delays_s)
        return 1000 * ranked[math.ceil(len(ranked) * percent / 100) - 1]
