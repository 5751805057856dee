"""What COPY TO STDOUT sends, in large blocks: psycopg hands it out row by row, which takes longer
than the server takes to make it.
"""

from __future__ import annotations

import select
from collections.abc import Iterator

import psycopg
from psycopg import pq

# Long beside what it takes to read it as a table; little memory.
_BLOCK = 4 * 2**20
_BURST = 2**16
# TLS may hold bytes that the socket no longer shows.
_LOOK_EVERY_MS = 100


def copied_blocks(pgconn: pq.abc.PGconn) -> Iterator[bytes]:
    """For use inside `cursor.copy`. Each block ends with a row; errors are psycopg's."""
    waiting: list[bytes] = []
    gathered = 0
    for burst in _bursts(pgconn):
        waiting.append(burst)
        gathered += len(burst)
        if gathered >= _BLOCK:
            yield b"".join(waiting)
            waiting, gathered = [], 0
    if waiting:
        yield b"".join(waiting)


def _bursts(pgconn: pq.abc.PGconn) -> Iterator[bytes]:
    """Rows that are there at one moment. Few: as a million objects they would take twice as long,
    for they are no longer in the processor's cache when they are joined.
    """
    poll = select.poll()
    poll.register(pgconn.socket, select.POLLIN)
    size = 1
    while size >= 0:
        rows, gathered = [], 0
        while gathered < _BURST:
            size, data = pgconn.get_copy_data(1)
            if size <= 0:
                break
            rows.append(data)
            gathered += size
        if rows:
            yield b"".join(rows)
        if size == 0:
            poll.poll(_LOOK_EVERY_MS)
            pgconn.consume_input()
    _finish(pgconn)


def _finish(pgconn: pq.abc.PGconn) -> None:
    """Whether all has come, or the server broke off, is said at the end."""
    failed = None
    while (result := pgconn.get_result()) is not None:
        if result.status == pq.ExecStatus.FATAL_ERROR:
            failed = result
    if failed is None:
        return
    if pgconn.status == pq.ConnStatus.BAD:
        raise psycopg.OperationalError(failed.get_error_message())
    raise psycopg.errors.error_from_result(failed)
