"""Real sockets on this machine: which are made to hold little, and what they hold."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from penstock.postgres.receive_buffer import hold_little, waiting_bytes
from support.waiting import eventually


@contextmanager
def connected(server: str, client: str) -> Iterator[tuple[socket.socket, socket.socket]]:
    with (
        socket.create_server((server, 0)) as listening,
        socket.create_connection(listening.getsockname(), source_address=(client, 0)) as ours,
    ):
        theirs, _ = listening.accept()
        with theirs:
            yield ours, theirs


def held(end: socket.socket) -> int:
    return end.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)


def send_all_it_takes(sender: socket.socket) -> None:
    sender.setblocking(False)
    with suppress(BlockingIOError):
        while True:
            sender.send(bytes(2**16))


def test_a_server_on_this_machine_keeps_what_is_not_read() -> None:
    with connected("127.0.0.1", "127.0.0.1") as (ours, theirs):
        assert hold_little(ours.fileno())
        assert held(ours) in (2**17, 2**18), "Linux tells what it allows itself"
        send_all_it_takes(theirs)
        assert 0 < waiting_bytes(ours.fileno()) <= 2**18


@pytest.mark.skipif(sys.platform == "darwin", reason="it has one loopback address only")
def test_a_server_elsewhere_may_send_as_much_as_the_kernel_likes() -> None:
    with connected("127.0.0.1", "127.0.0.2") as (ours, _):
        before = held(ours)
        assert not hold_little(ours.fileno())
        assert held(ours) == before


def test_a_unix_socket_stays_as_it_is() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX)
    with ours, theirs:
        before = held(ours)
        assert not hold_little(ours.fileno())
        assert held(ours) == before


def test_a_connection_that_is_gone_is_for_the_next_read_to_tell() -> None:
    with socket.socket() as never_connected:
        assert not hold_little(never_connected.fileno())


def test_what_waits_is_told_without_reading_it() -> None:
    with connected("127.0.0.1", "127.0.0.1") as (ours, theirs):
        assert waiting_bytes(ours.fileno()) == 0
        theirs.sendall(bytes(300))
        eventually(lambda: waiting_bytes(ours.fileno()) == 300, "all of it")
        assert len(ours.recv(1000)) == 300
        assert waiting_bytes(ours.fileno()) == 0
