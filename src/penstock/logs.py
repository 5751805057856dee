"""Where Penstock's own log goes: standard error, never a row or a password. One line per event; for
people, the words of an error that has several lines stand below it, and not each time anew.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable
from typing import Any

import structlog
from structlog.typing import EventDict, Processor

from penstock.errors import PenstockError
from penstock.told import TEXTS, Told
from penstock.words import visible

# Of what cannot be seen, in a text of several lines.
_KEPT = "\n\t"


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

    told = Told()
    for_people: list[Processor] = [
        advised,
        lambda _logger, _method, event: told.shortened(event, time.monotonic()),
        structlog.processors.TimeStamper(fmt="%Y-%m-%d %H:%M:%S", utc=False),
        _with_lines_below(structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())),
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


def _with_lines_below(render: Processor) -> Processor:
    """Statements that a remedy has on lines of their own can be copied from there."""

    def rendered(logger: Any, method: str, event: EventDict) -> str:
        texts = {name: str(event[name]) for name in TEXTS if name in event}
        if not any("\n" in text for text in texts.values()):
            return str(render(logger, method, event))
        rest = {name: value for name, value in event.items() if name not in texts}
        below = (f"{name}: {visible(text, keep=_KEPT)}" for name, text in texts.items())
        return "\n".join((str(render(logger, method, rest)), *map(_indented, below)))

    return rendered


def _indented(text: str) -> str:
    return "  " + text.replace("\n", "\n  ")


def log_failure(error: PenstockError, *, transient: bool = False) -> None:
    """Log the error that ends a part; one that is `transient` does not need a person."""
    facts = {"transient": True} if transient else {}
    structlog.get_logger().error("failed", problem=error.problem, remedy=error.remedy, **facts)
