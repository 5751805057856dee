"""The envelope of streaming replication: what wraps pgoutput inside CopyData. Pure.

    server → client
      'w' XLogData    start Int64, end Int64, clock Int64, then one pgoutput message
      'k' Keepalive   wal_end Int64, clock Int64, reply_requested Byte
    client → server
      'r' Status      write Int64, flush Int64, apply Int64, clock Int64, reply_requested Byte

Integers are big-endian; clocks count microseconds since 2000-01-01 UTC.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from penstock.errors import ProtocolViolation
from penstock.lsn import Lsn

XLOG_DATA = ord("w")
KEEPALIVE = ord("k")
# Where the pgoutput message starts in an XLogData: its kind is the byte at this position.
PAYLOAD_POS = 25

_KEEPALIVE = struct.Struct(">cQqB")
_STATUS = struct.Struct(">cQQQqB")
_POSTGRES_EPOCH_S = 946_684_800


@dataclass(frozen=True, slots=True)
class Keepalive:
    """The server's position, and whether it wants to hear ours at once."""

    wal_end: Lsn
    reply_requested: bool

    @classmethod
    def parse(cls, message: memoryview | bytes) -> Keepalive:
        try:
            _, wal_end, _, reply_requested = _KEEPALIVE.unpack(message)
        except struct.error:
            length = len(message)
            raise ProtocolViolation(
                "a keepalive has the wrong length", byte_pos=length, kind="k"
            ) from None
        return cls(Lsn(wal_end), bool(reply_requested))

    def encode(self) -> bytes:
        """The message as a server sends it, but for its clock, which nobody reads."""
        return _KEEPALIVE.pack(b"k", self.wal_end, 0, self.reply_requested)


@dataclass(frozen=True, slots=True)
class StatusUpdate:
    """Our positions. Only `durable_lsn` (the flush field) moves the slot."""

    received_lsn: Lsn
    durable_lsn: Lsn
    reply_requested: bool

    def encode(self, wall_clock_s: float) -> bytes:
        clock_us = int((wall_clock_s - _POSTGRES_EPOCH_S) * 1_000_000)
        return _STATUS.pack(
            b"r",
            self.received_lsn,
            self.durable_lsn,
            # A change in the log is applied as far as a synchronous commit can ask for.
            self.durable_lsn,
            clock_us,
            self.reply_requested,
        )
