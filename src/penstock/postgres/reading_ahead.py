"""Reads the next while one is used: the server and we work at the same time."""

from __future__ import annotations

from collections.abc import Generator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, TypeVar

import psycopg

from penstock.postgres.cancelling import cancel_until

T = TypeVar("T")


def ahead(
    items: Generator[T, None, None], connection: psycopg.Connection[Any]
) -> Generator[T, None, None]:
    """What a generator reads with a connection, which nobody else uses meanwhile.

    To be closed: what is being read then is cancelled, and has ended when `close` returns.
    """
    with ThreadPoolExecutor(1, "reading") as pool:
        coming = pool.submit(_next, items)
        try:
            while found := coming.result():
                coming = pool.submit(_next, items)
                yield found[0]
        finally:
            cancel_until(lambda timeout_s: _ended(coming, timeout_s), connection)
            items.close()


def _next(items: Generator[T, None, None]) -> tuple[T, ...]:
    """Nothing: that was the last."""
    for item in items:
        return (item,)
    return ()


def _ended(coming: Future[Any], timeout_s: float) -> bool:
    return coming in wait([coming], timeout_s).done
