"""Waiting for a condition instead of for a time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def eventually(check: Callable[[], T], what: str, *, within_s: float = 15.0) -> T:
    """The first true result of `check`; fails with `what` was expected if none comes in time."""
    deadline = time.monotonic() + within_s
    while True:
        result = check()
        if result:
            return result
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {within_s:g} s: {what} (last: {result!r})")
        time.sleep(0.01)
