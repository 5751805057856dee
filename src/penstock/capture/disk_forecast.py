"""Whether the disk of the log will be full within a day. Pure: sizes and the time are arguments.

The log's growth is measured for some minutes. What all consumers have applied is history, which has
a limit of its own; what they have not applied may grow for as long as they lag.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from penstock.lasting_state import LastingState
from penstock.words import binary_size, duration

_DAY_S = 24 * 3600.0
# Growth is measured over at least so long, and over no more than that.
_LEAST_SPAN_S = 300.0
_MOST_SPAN_S = 3600.0
_EVERY_S = 10.0
# A warning that is a day ahead need not come often.
_AGAIN_AFTER_S = 3600.0
# Less than that is what consumers do not apply at once when all is well.
_LAG_BYTES = 256 * 2**20


@dataclass(frozen=True, slots=True)
class DiskUse:
    log_bytes: int
    # The part of the log that nobody needs any more, and that is kept for its age.
    history_bytes: int
    free_bytes: int


class DiskForecast:
    """Asked again and again; `limit_bytes` are those of the history and of the whole log."""

    def __init__(self, history_limit: int | None, log_limit: int | None) -> None:
        self._history_limit = history_limit
        self._log_limit = log_limit
        self._sizes: deque[tuple[float, int]] = deque()
        self._filling = LastingState((_AGAIN_AFTER_S,))

    def warning(self, use: DiskUse, now: float) -> dict[str, str] | None:
        """Return the facts of a warning that is due now, if the disk is going to be full."""
        rate = self._bytes_a_second(use.log_bytes, now)
        lagging = use.log_bytes - use.history_bytes > _LAG_BYTES
        if rate <= 0 or self._growth_in_a_day(use, rate, lagging=lagging) < use.free_bytes:
            self._filling.end()
            return None
        if not self._filling.begin(now) and not self._filling.is_due(now):
            return None
        remedy = (
            "Make room, or let the log keep less of what all consumers have applied: min_age_h or "
            "max_history_gib in [log]"
        )
        if lagging:
            remedy = (
                "Consumers lag: `penstock log consumers` names them. Make room, or give the log a "
                "budget: max_gib in [log]"
            )
        return {
            "full_in": duration(use.free_bytes / rate),
            "free": binary_size(use.free_bytes),
            "log": binary_size(use.log_bytes),
            "grows_by": f"{binary_size(rate * _DAY_S)} a day",
            "remedy": remedy,
        }

    def _growth_in_a_day(self, use: DiskUse, rate: float, *, lagging: bool) -> float:
        growth = rate * _DAY_S
        if self._history_limit is not None and not lagging:
            growth = min(growth, max(0, self._history_limit - use.history_bytes))
        if self._log_limit is not None:
            growth = min(growth, max(0, self._log_limit - use.log_bytes))
        return growth

    def _bytes_a_second(self, log_bytes: int, now: float) -> float:
        if not self._sizes or now - self._sizes[-1][0] >= _EVERY_S:
            self._sizes.append((now, log_bytes))
        while now - self._sizes[0][0] > _MOST_SPAN_S:
            self._sizes.popleft()
        since, before = self._sizes[0]
        if now - since < _LEAST_SPAN_S:
            return 0.0
        return (log_bytes - before) / (now - since)
