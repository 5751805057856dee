"""Work in a thread beside a block: its failure is not lost. Shared word: imports nothing local."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

# Raises what has ended the work, if something has.
Check = Callable[[], None]


@contextmanager
def beside(work: Callable[[], None], end: Callable[[], None], name: str) -> Iterator[Check]:
    """`end` lets the work come to its end, with the block. What failed is raised then, too."""
    failed: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - raised by `check`
            failed.append(error)

    def check() -> None:
        if failed:
            raise failed[0]

    thread = threading.Thread(target=run, name=name)
    thread.start()
    try:
        yield check
    finally:
        end()
        thread.join()
    check()
