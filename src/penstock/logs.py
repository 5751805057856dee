"""Where Penstock's own log goes: standard error, one line per event, never a row or a password."""

from __future__ import annotations

import logging
import sys

import structlog


def configure_logs(level: int = logging.INFO) -> None:
    """Call once, at the edge: commands do, libraries do not."""
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="%Y-%m-%d %H:%M:%S", utc=False),
            structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty()),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
