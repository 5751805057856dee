"""A TCP proxy on loopback that fails on demand: it cuts, stalls and refuses.

    with Proxy(server.port) as proxy:
        dsn = proxy.through(server.dsn())
        proxy.cut_after(1234)      # in the middle of whatever the server is saying then

Two threads carry each connection, one per direction; all end with the proxy.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from types import TracebackType
from typing import Self

from psycopg import conninfo

_CHUNK = 65536


class Proxy:
    """Carries connections to a port on loopback until told otherwise."""

    def __init__(self, port: int) -> None:
        self._target = ("127.0.0.1", port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        # How often a connection was cut, and how many bytes came from the server in all.
        self.cuts = 0
        self.received_bytes = 0
        self._lock = threading.Lock()
        self._left: int | None = None
        self._refusing = False
        self._flowing = threading.Event()
        self._flowing.set()
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._threads: list[threading.Thread] = []
        self._closed = False

    def __enter__(self) -> Self:
        self._spawn(self._accept)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._closed = True
        self._flowing.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._cut_all()
        for thread in self._threads:
            thread.join()

    def through(self, dsn: str) -> str:
        """The same connection string, by way of the proxy."""
        return conninfo.make_conninfo(dsn, host="127.0.0.1", port=self.port)

    def cut(self) -> None:
        """Cut every connection now; new ones are carried."""
        with self._lock:
            self.cuts += 1
        self._cut_all()

    def cut_after(self, server_bytes: int) -> None:
        """Pass on exactly so many more bytes from the server, then `cut`, once."""
        with self._lock:
            self._left = server_bytes

    def stall(self) -> None:
        """Stop carrying, in both directions, without closing anything."""
        self._flowing.clear()

    def flow(self) -> None:
        """Carry on after `stall`; nothing is missing."""
        self._flowing.set()

    def refuse(self, refusing: bool = True) -> None:
        """Close new connections as soon as they come."""
        self._refusing = refusing

    # --- threads --------------------------------------------------------------------------------

    def _accept(self) -> None:
        while not self._closed:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self._refusing:
                client.close()
                continue
            try:
                server = socket.create_connection(self._target)
            except OSError:  # the server is down
                client.close()
                continue
            for end in (client, server):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                self._pairs.append((client, server))
            self._spawn(self._carry, client, server, False)
            self._spawn(self._carry, server, client, True)

    def _carry(self, source: socket.socket, sink: socket.socket, from_server: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(_CHUNK):
                self._flowing.wait()
                allowed = self._allowed(len(data)) if from_server else len(data)
                if allowed < len(data):
                    with contextlib.suppress(OSError):
                        sink.sendall(data[:allowed])
                    self.cut()
                    break
                sink.sendall(data)
        for end in (source, sink):
            _hang_up(end)

    def _allowed(self, length: int) -> int:
        """How much of a piece from the server may pass; less than all of it means: cut."""
        with self._lock:
            if self._left is not None and self._left < length:
                length, self._left = self._left, None
            elif self._left is not None:
                self._left -= length
            self.received_bytes += length
            return length

    def _cut_all(self) -> None:
        with self._lock:
            pairs, self._pairs = self._pairs, []
        for pair in pairs:
            for end in pair:
                _hang_up(end)

    def _spawn(self, work: object, *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()


def _hang_up(end: socket.socket) -> None:
    """Wake the thread that reads from it, then let go; both may have happened before."""
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()
