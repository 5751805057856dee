"""How long it takes from the start to the first change that is applied, and what takes it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.run.part import AGGREGATES, CAPTURE

# What a part says, and what it was doing until then.
_STEPS = {
    (CAPTURE, "following"): "capture connects",
    (AGGREGATES, "spark started"): "Spark starts",
    (AGGREGATES, "following"): "the job starts",
    (AGGREGATES, "seeded"): "seeding",
    (AGGREGATES, "first change applied"): "waiting for the first change",
}
_LAST = "waiting for the first change"


class Milestones:
    """Takes the first time of each step; later ones are of parts that were started again."""

    def __init__(self, now: float) -> None:
        self._started = self._previous = now
        self._took_s: dict[str, float] = {}

    def said(self, part: str, event: Mapping[str, Any], now: float) -> str | None:
        """Returns the account when the last of them is reached, once."""
        step = _STEPS.get((part, str(event.get("event"))))
        # Aggregates are seeded one after the other, beside the job: each adds to it.
        if step is None or _LAST in self._took_s or (step in self._took_s and step != "seeding"):
            return None
        self._took_s[step] = self._took_s.get(step, 0.0) + now - self._previous
        self._previous = now
        if step != _LAST:
            return None
        parts = ", ".join(f"{step} {took:.1f} s" for step, took in self._took_s.items())
        return f"first change applied after {now - self._started:.1f} s: {parts}"
