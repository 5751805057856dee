"""Reads the next while one is used: the server and we work at the same time."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Generator
from contextlib import suppress
from queue import SimpleQueue
from threading import Event, Semaphore, Thread
from typing import Any, TypeVar

import psycopg

from penstock.postgres.cancelling import cancel_until

T = TypeVar("T")
# A server that has not heeded a cancellation by then does not answer.
_ANSWERS_S = 10.0


def ahead(
    items: Generator[T, None, None], connection: psycopg.Connection[Any]
) -> Generator[T, None, None]:
    """What a generator reads with a connection, which nobody else uses meanwhile.

    To be closed: what is being read then is cancelled, and has ended when `close` returns. If the
    server does not answer, the connection is cut.
    """
    found: SimpleQueue[tuple[T, ...] | BaseException] = SimpleQueue()
    wanted, closed = Semaphore(1), Event()

    def read() -> None:
        try:
            for item in items:
                found.put((item,))
                wanted.acquire()
                if closed.is_set():
                    return
            found.put(())
        except BaseException as error:  # noqa: BLE001 - raised by who waits for the next
            found.put(error)

    # What has ended the program does not wait for it.
    reading = Thread(target=read, name="reading", daemon=True)
    reading.start()
    try:
        while item := _raised(found.get()):
            yield item[0]
            wanted.release()
    finally:
        closed.set()
        wanted.release()
        deadline = time.monotonic() + _ANSWERS_S
        cancel_until(lambda wait_s: _has_ended(reading, wait_s, deadline, connection), connection)
        items.close()


def _raised(found: tuple[T, ...] | BaseException) -> tuple[T, ...]:
    """Nothing: that was the last."""
    if isinstance(found, BaseException):
        raise found
    return found


def _has_ended(
    reading: Thread, wait_s: float, deadline: float, connection: psycopg.Connection[Any]
) -> bool:
    reading.join(wait_s)
    if reading.is_alive() and time.monotonic() > deadline:
        _cut(connection)
    return not reading.is_alive()


def _cut(connection: psycopg.Connection[Any]) -> None:
    """Who waits for the server is told that it is gone."""
    with suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(connection.fileno())) as end:
        end.shutdown(socket.SHUT_RDWR)
