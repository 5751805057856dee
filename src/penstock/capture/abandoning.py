"""Work that cannot be interrupted, such as connecting to a silent host, left behind on stop."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")

_LOOK_S = 0.02


class Abandoned(Exception):
    """We were stopped before the work was done."""


def unless_stopped(
    stop: threading.Event, work: Callable[[], T], undo: Callable[[T], None] = lambda _: None
) -> T:
    """The result of `work`, or `Abandoned` as soon as `stop` is set.

    A result that comes after that is undone by the thread that made it.
    """
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # noqa: BLE001 - handed to the caller
            future.set_exception(error)

    threading.Thread(target=run, name="connecting", daemon=True).start()
    while True:
        try:
            return future.result(timeout=_LOOK_S)
        except TimeoutError:
            if future.done():
                raise  # the work's own
            if stop.is_set():
                future.add_done_callback(lambda done: _undo(done, undo))
                raise Abandoned from None


def _undo(done: Future[T], undo: Callable[[T], None]) -> None:
    if done.exception() is None:
        undo(done.result())
