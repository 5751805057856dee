"""What one part is doing, and when it is started again. Pure: it is told the time.

waiting → starting → running ⇄ troubled
             ↑           ↓
          pausing  ←  (it ended)  →  failed
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from penstock.backoff import Backoff
from penstock.errors import PenstockError
from penstock.lasting_state import LastingState

State = Literal["waiting", "starting", "running", "troubled", "pausing", "failed"]
# One that ran for so long was well: when it ends, that is a new trouble.
_WELL_S = 60.0
# What parts say of themselves, in their logs.
_WELL = (
    "following",
    "server answers again",
    "target written again",
    "aggregate goes on after a reset",
)
_TROUBLED = (
    "reconnecting",
    "server silent",
    "target not written, trying again",
    "aggregate stopped",
)


class PartFailed(PenstockError):
    """A part ended with an error, in its own words."""

    # It may pass by itself; else it needs a person.
    transient: bool


@dataclass
class Lifecycle:
    """One part. It runs as soon as it says that it follows what comes before it."""

    name: str
    state: State = "waiting"
    has_run: bool = False
    # Why it ended, if it said so.
    failure: PartFailed | None = None
    # Why it ended the last time, until it runs again.
    last_failure: PartFailed | None = None
    # When it is to be started.
    due: float = 0.0
    _down: LastingState = field(default_factory=LastingState)
    _runs_since: float | None = None
    _troubled: set[str] = field(default_factory=set)
    _backoff: Backoff = field(default_factory=lambda: Backoff(first_s=1.0, most_s=30.0))

    def started(self) -> None:
        self.state = "starting"
        self.failure = None
        self._troubled.clear()

    def said(self, event: Mapping[str, Any], now: float) -> None:
        """Take notice of a line of its log."""
        what = event.get("event")
        # One of several, or all of it.
        whose = str(event.get("aggregate", ""))
        if what in _WELL:
            self._troubled.discard(whose)
            self.last_failure = None
            self.state = "troubled" if self._troubled else "running"
            self.has_run = True
            self._runs_since = self._runs_since or now
        elif what in _TROUBLED:
            self._troubled.add(whose)
            self.state = "troubled"
        elif what == "failed":
            self.failure = self.last_failure = PartFailed(
                str(event["problem"]),
                remedy=str(event["remedy"]),
                transient=bool(event.get("transient")),
            )

    def failed(self) -> None:
        """The part ended, and is not started again."""
        self.state = "failed"

    def down_s(self, now: float) -> float | None:
        """Return for how long the part has not run, whenever that is to be logged again.

        A part that is troubled logs its own trouble.
        """
        if self.state in ("running", "troubled"):
            self._down.end()
        else:
            self._down.begin(now)
        return self._down.age_s(now) if self._down.is_due(now) else None

    @property
    def report_at(self) -> float | None:
        """When to ask for `down_s` again."""
        return self._down.due_at()

    def ended(self, now: float) -> float:
        """Returns the pause after which it is due again."""
        if self._runs_since is not None and now - self._runs_since >= _WELL_S:
            self._backoff.reset()
        self._runs_since = None
        self.state = "pausing"
        pause_s = self._backoff.pause_s()
        self.due = now + pause_s
        return pause_s
