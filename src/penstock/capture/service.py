"""Capture as a process: what is set for the whole of it."""

from __future__ import annotations

import gc
from types import FrameType

from penstock.capture.engine import Capture
from penstock.config import Config
from penstock.terminal import handle_signals, service_exit_code

# Of objects that may be circular, before somebody looks through them. Thousands of messages are
# held at a time and freed with their frame, and nothing of it is circular: to look through them
# again and again took a fifth of the time.
_GARBAGE = 100_000


def run_capture(config: Config) -> int:
    """Capture until a signal ends it cleanly; returns the exit code."""
    gc.set_threshold(_GARBAGE)
    running = Capture(config)
    received: list[int] = []

    def end(number: int, _: FrameType | None) -> None:
        received.append(number)
        running.stop()

    handle_signals(end)
    running.run()
    return service_exit_code(next(iter(received), None))
