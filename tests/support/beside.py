"""Work in a thread beside the test, whose failure is the test's."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def beside(work: Callable[[threading.Event], None]) -> Iterator[None]:
    """`work` runs until the event that it is given is set, at the end of the block."""
    done = threading.Event()
    failure: list[BaseException] = []

    def run() -> None:
        try:
            work(done)
        except BaseException as error:  # noqa: BLE001 - raised below
            failure.append(error)

    thread = threading.Thread(target=run, name="beside")
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
    if failure:
        raise failure[0]
