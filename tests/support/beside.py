"""Work in a thread beside the test, whose failure is the test's."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from penstock import beside as threads


@contextmanager
def beside(work: Callable[[threading.Event], None]) -> Iterator[None]:
    """`work` runs until the event that it is given is set, at the end of the block."""
    done = threading.Event()
    with threads.beside(lambda: work(done), done.set, "beside"):
        yield
