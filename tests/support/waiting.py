"""Waiting for a condition instead of for a time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def eventually(check: Callable[[], T], what: str, *, within_s: float = 15.0) -> T:
    """The first true result of `check`; fails with `what` was expected if none comes in time.

    What takes long is looked at less often: the machine is busy with just that.
    """
    begun = time.monotonic()
    while True:
        result = check()
        if result:
            return result
        waited_s = time.monotonic() - begun
        if waited_s > within_s:
            raise AssertionError(f"not within {within_s:g} s: {what} (last: {result!r})")
        time.sleep(min(max(0.01, waited_s / 20), 0.2))
