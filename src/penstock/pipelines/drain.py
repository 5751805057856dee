"""When a job that is to end has applied what it can of the log. Pure: the time is an argument.

`penstock run` drains its aggregates when capture has ended for good: the log no longer grows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from penstock.lsn import Lsn

# A batch may take long, and Spark may be starting; a target that is unavailable may come back.
_NO_PROGRESS_S = 600.0
_UNAVAILABLE_S = 20.0


@dataclass(frozen=True, slots=True)
class Behind:
    """An aggregate that has not applied the whole log, and whether its target is unavailable."""

    applied_lsn: Lsn
    unavailable: bool


class Drain:
    """Asked again and again whether the job may end."""

    def __init__(self, now: float) -> None:
        self._moved_at = now
        self._before: Mapping[str, Behind] | None = None

    def is_over(self, behind: Mapping[str, Behind] | None, now: float) -> bool:
        """Return whether all is applied, or for too long nothing was.

        `behind`: the aggregates that have not applied the whole log; None: not known yet.
        """
        if behind == {}:
            return True
        if behind != self._before:
            self._before, self._moved_at = behind, now
        patience_s = _NO_PROGRESS_S
        if behind and all(each.unavailable for each in behind.values()):
            patience_s = _UNAVAILABLE_S
        return now - self._moved_at >= patience_s
