"""Ends what a connection does when somebody else asks for it: a thread that only waits for the
server cannot look by itself whether it should stop.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psycopg

_LOOK_EVERY_S = 0.1
# How long one attempt may take, on a server that is slow to accept a connection.
_CANCEL_S = 5.0


class Cancelled(Exception):
    """The event was set while the block ran."""


def cancel_until(ended: Callable[[float], bool], connection: psycopg.Connection[Any]) -> None:
    """Cancel what a connection does; `ended` waits so many seconds and says whether it is over."""
    wait_s = 0.0
    # Again and again, for a cancellation that comes between two statements has no effect.
    while not ended(wait_s):
        with suppress(psycopg.Error):  # the next one may succeed
            connection.cancel_safe(timeout=_CANCEL_S)
        wait_s = _LOOK_EVERY_S


@contextmanager
def cancelled_by(stop: threading.Event, connection: psycopg.Connection[Any]) -> Iterator[None]:
    """While the block runs, `stop` cancels its statements, and the block ends with `Cancelled`.

    If it is set when all is done, nothing happens.
    """
    done = threading.Event()
    tried = threading.Event()

    def watch() -> None:
        while not done.is_set():
            if stop.wait(_LOOK_EVERY_S) and not done.is_set():
                tried.set()
                cancel_until(done.wait, connection)

    watching = threading.Thread(target=watch, name="cancelling", daemon=True)
    watching.start()
    try:
        yield
    except Exception as error:
        if tried.is_set():
            raise Cancelled from error
        raise
    finally:
        done.set()
        watching.join()
