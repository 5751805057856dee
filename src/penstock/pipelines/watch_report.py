"""Reports that the source's tables cannot be looked at, at once and then at a slow pace.

While they cannot, nobody notices a partition without its replica identity, or a table that left
the publication. An error that may be transient is reported once it lasts: capture reports those at
once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import structlog

from penstock.errors import SourceError
from penstock.lasting_state import LastingState
from penstock.pipelines.passing import may_pass
from penstock.words import duration

_LOG = structlog.get_logger()


class WatchReport:
    """Used by the one thread that looks."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._state = LastingState()
        self._reported = ""

    @contextmanager
    def of_a_look(self) -> Iterator[None]:
        """Log what keeps a look from being taken, which ends nothing."""
        try:
            yield
        except SourceError as error:
            self._failed(error)
        else:
            if self._reported:
                _LOG.info("the source's tables are looked at again")
            self._state.end()
            self._reported = ""

    def _failed(self, error: SourceError) -> None:
        now = self._clock()
        self._state.begin(now)
        is_news = error.problem != self._reported and not may_pass(error)
        if is_news | self._state.is_due(now):
            self._reported = error.problem
            age_s = self._state.age_s(now)
            facts = {"for": duration(age_s)} if age_s >= 1 else {}
            _LOG.error(
                "the source's tables cannot be looked at",
                reason=error.problem,
                remedy=error.remedy,
                meanwhile="a partition without its replica identity, or a table that is no longer "
                "sent, goes unnoticed",
                **facts,
            )
