"""What the kernel holds of a connection before it is read: how much it may, and how much it does.

Called by `connection`: the one when it is made, the other while it takes a step.
"""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import sys
import termios
from contextlib import suppress

# What reaches us before the server has to keep the rest; the kernel allows itself twice that.
_LOCAL_BYTES = 2**17


def hold_little(descriptor: int) -> bool:
    """Where the server is on this machine, let little be held; says whether it is.

    What is read in steps then waits in the server's buffer, where messages come together in large
    packets. Not over a network: there so little would be all that is on its way.
    """
    with socket.socket(fileno=os.dup(descriptor)) as twin, suppress(OSError):
        # The buffer of a Unix socket is the sender's, and knows no packets.
        if twin.family != socket.AF_UNIX and twin.getpeername()[0] == twin.getsockname()[0]:
            twin.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _LOCAL_BYTES)
            return True
    return False  # or it has gone already, which the first read tells


def waiting_bytes(descriptor: int) -> int:
    """What can be read without waiting."""
    answer = fcntl.ioctl(descriptor, termios.FIONREAD, bytes(struct.calcsize("i")))
    return int.from_bytes(answer, sys.byteorder)
