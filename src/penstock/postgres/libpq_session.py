"""A session whose commands and results do not block: what both ways in do with libpq.

Replication (`connection`) and polling (`polling.connection`) send commands, wait for bytes with a
deadline, and are woken by other threads and signal handlers. What the commands are is theirs.
"""

from __future__ import annotations

import contextlib
import re
import select
import socket
import time
from collections.abc import Iterator

import psycopg
from psycopg import pq

from penstock.closing import Closing
from penstock.errors import ConnectionLost

RECONNECTS = "Penstock connects again by itself"
# How long a command may take: none that is asked for here has to wait for anything.
ANSWER_S = 30.0


class LibpqSession(Closing):
    """One connection. One thread uses it; only `wake` may be called from others."""

    def __init__(self, connection: psycopg.Connection) -> None:
        self._connection = connection
        self.pgconn = connection.pgconn
        # Sockets, not a pipe: one that is closed refuses, and never writes to a reused descriptor.
        self._awaken, self._waker = socket.socketpair()
        self._awaken.setblocking(False)
        self._waker.setblocking(False)
        self._poll = select.poll()
        self._poll.register(self.pgconn.socket, select.POLLIN)
        self._poll.register(self._awaken, select.POLLIN)

    def wake(self) -> None:
        """Make `wait` return at once. Safe in other threads and in signal handlers."""
        # Full: it will wake up anyway. Closed: nobody waits.
        with contextlib.suppress(OSError):
            self._waker.send(b"x")

    def close(self) -> None:
        self._connection.close()
        self._awaken.close()
        self._waker.close()

    def wait(self, timeout_s: float) -> bool:
        """Whether the server has sent something; false after the time-out or a `wake`."""
        ready = dict(self._poll.poll(max(0.0, timeout_s) * 1000))
        if self._awaken.fileno() in ready:
            self._awaken.recv(4096)
        return self.pgconn.socket in ready

    def pause(self, seconds: float) -> None:
        """Wait, whatever the server sends meanwhile; a `wake` ends it."""
        select.select([self._awaken], [], [], seconds)

    def flush(self, deadline: float) -> bool:
        """Whether the socket has taken all that was queued before the deadline."""
        while self.pgconn.flush():
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            # Readable counts too. libpq reads while it writes, so as not to stand still with a
            # server that does the same; the poll of `wait` asks for input only.
            reading, _, _ = select.select([self.pgconn.socket], [self.pgconn.socket], [], left)
            if reading:
                self.pgconn.consume_input()
        return True

    def send(self, command: str) -> None:
        """Send a command; its result is fetched with `pgconn` or `next_result`."""
        with lost_if_broken():
            self.pgconn.send_query(command.encode())
            if not self.flush(time.monotonic() + ANSWER_S):
                raise _no_answer()

    def next_result(self) -> pq.abc.PGresult | None:
        """The next result of the command that was sent; None when there are no more."""
        deadline = time.monotonic() + ANSWER_S
        while self.pgconn.is_busy():
            left = deadline - time.monotonic()
            if not select.select([self.pgconn.socket], [], [], max(0.0, left))[0]:
                raise _no_answer()
            self.pgconn.consume_input()
        return self.pgconn.get_result()

    def ask(self, command: str) -> pq.abc.PGresult | None:
        """Send a command and return its first result."""
        self.send(command)
        with lost_if_broken():
            return self.next_result()

    def row(self, command: str, columns: int) -> list[str]:
        """The one row that a command answers with."""
        result = self.ask(command)
        if result is None or result.status != pq.ExecStatus.TUPLES_OK:
            raise ConnectionLost(
                f"the server refused {command}: {primary(result)}", remedy=RECONNECTS
            )
        with lost_if_broken():
            self.next_result()  # that was all
        values = (result.get_value(0, column) or b"" for column in range(columns))
        return [value.decode(errors="replace") for value in values]

    def take_texts_as_they_are(self) -> None:
        """Ask for the bytes of texts unchanged where the database has no encoding.

        Such a database holds any bytes: asked for UTF-8, the server ends decoding at the first text
        that is something else, and at each retry. As it is, the decoder tells that text apart.
        """
        if self.pgconn.parameter_status(b"server_encoding") == b"SQL_ASCII":
            self.ask("SET client_encoding = SQL_ASCII")
            with lost_if_broken():
                self.next_result()  # that was all


@contextlib.contextmanager
def lost_if_broken() -> Iterator[None]:
    """Raise `ConnectionLost` where libpq finds the connection broken."""
    try:
        yield
    except psycopg.OperationalError as error:
        raise ConnectionLost(
            f"the connection to the server broke: {_one_line(str(error))}", remedy=RECONNECTS
        ) from None


def sqlstate(result: pq.abc.PGresult | None) -> str:
    field = result.error_field(pq.DiagnosticField.SQLSTATE) if result else None
    return (field or b"").decode()


def primary(result: pq.abc.PGresult | None) -> str:
    """The server's sentence, without details: those may quote a row."""
    if result is None:
        return "no answer"
    field = result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY)
    return (field or result.error_message).decode(errors="replace").strip()


def _no_answer() -> ConnectionLost:
    return ConnectionLost(f"the server did not answer within {ANSWER_S:g} s", remedy=RECONNECTS)


def _one_line(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()
