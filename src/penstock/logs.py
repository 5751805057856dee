"""Where Penstock's own log goes: standard error, one line per event, never a row or a password."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from typing import Any

import structlog
from structlog.typing import EventDict, Processor

from penstock.errors import PenstockError


def configure_logs(
    level: int = logging.INFO, *, as_json: bool = False, advise: Callable[[str], str] = str
) -> None:
    """Call once, at the edge: commands do, libraries do not.

    As JSON it has no time: who reads it has a clock. `advise` says a remedy as the person who
    started this has to call it: parts of a run do not know.
    """

    def advised(_logger: Any, _method: str, event: EventDict) -> EventDict:
        if "remedy" in event:
            event["remedy"] = advise(event["remedy"])
        return event

    for_people: list[Processor] = [
        advised,
        structlog.processors.TimeStamper(fmt="%Y-%m-%d %H:%M:%S", utc=False),
        structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty()),
    ]
    for_programs: list[Processor] = [structlog.processors.JSONRenderer(default=str)]
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            *(for_programs if as_json else for_people),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )


def log_failure(error: PenstockError) -> None:
    """Of a part that ends: what the operator has to know."""
    structlog.get_logger().error("failed", problem=error.problem, remedy=error.remedy)
