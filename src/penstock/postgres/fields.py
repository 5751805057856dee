"""The fields that pgoutput messages are made of, read from left to right. For `pgoutput` only.

Stage: postgres, pure. In `pgoutput`'s drawings they are called

    u8 i16 i32 i64 u32 u64   big-endian integers
    lsn                      u64, a position in the WAL
    time                     i64, microseconds since 2000-01-01 UTC
    name                     UTF-8, ended by a zero byte; in a database without an encoding
                             any bytes, of which those that are not UTF-8 are given as \\xNN
    length | data            i32, then as many bytes

Every method takes the words that name the field in an error, and steps over the field. What is not
there, or cannot be, is a `ProtocolViolation`; nothing is allocated for a size before the bytes are
known to be there.
"""

from __future__ import annotations

import struct
from typing import cast

from penstock.errors import ProtocolViolation
from penstock.lsn import Lsn


class Fields:
    """The fields of one payload, read from left to right and never past its end."""

    _I16 = struct.Struct(">h")
    _I32 = struct.Struct(">i")
    _U32 = struct.Struct(">I")
    _I64 = struct.Struct(">q")
    _U64 = struct.Struct(">Q")

    def __init__(self, payload: bytes) -> None:
        self._payload = payload
        self.byte_pos = 0
        self.kind = ""
        self.kind = self.char("the kind")

    def bad(self, what: str, byte_pos: int) -> ProtocolViolation:
        """The error to raise: `what` is wrong with this message at `byte_pos`."""
        return ProtocolViolation(what, byte_pos=byte_pos, kind=self.kind or None)

    def end(self) -> None:
        extra = len(self._payload) - self.byte_pos
        if extra:
            raise self.bad(f"{extra} bytes too many", self.byte_pos)

    def _skip(self, size: int, what: str) -> int:
        """Step over `size` bytes and return where they begin."""
        start = self.byte_pos
        if len(self._payload) - start < size:
            raise self.bad(f"message ends before the end of {what}", start)
        self.byte_pos = start + size
        return start

    def _number(self, form: struct.Struct, what: str) -> int:
        return cast("int", form.unpack_from(self._payload, self._skip(form.size, what))[0])

    def u8(self, what: str) -> int:
        return self._payload[self._skip(1, what)]

    def u32(self, what: str) -> int:
        return self._number(self._U32, what)

    def i32(self, what: str) -> int:
        return self._number(self._I32, what)

    def time(self, what: str) -> int:
        return self._number(self._I64, what)

    def lsn(self, what: str) -> Lsn:
        return Lsn(self._number(self._U64, what))

    def valid_lsn(self, what: str) -> Lsn:
        """A position that the server must know; taken for true, 0/0 would be behind everything."""
        lsn = self.lsn(what)
        if not lsn:
            raise self.bad(f"{what} is 0/0", self.byte_pos - self._U64.size)
        return lsn

    def char(self, what: str) -> str:
        return chr(self.u8(what))

    def flags(self, known: int, what: str) -> int:
        flags = self.u8(what)
        if flags & ~known:
            raise self.bad(f"unknown bits {flags & ~known:#04x} in {what}", self.byte_pos - 1)
        return flags

    def count16(self, each_bytes: int, what: str) -> int:
        return self._counted(self._I16, each_bytes, what)

    def count32(self, each_bytes: int, what: str) -> int:
        return self._counted(self._I32, each_bytes, what)

    def _counted(self, form: struct.Struct, each_bytes: int, what: str) -> int:
        """How many things of at least `each_bytes` follow: believed only if they can be there."""
        start = self.byte_pos
        count = self._number(form, what)
        if count < 0:
            raise self.bad(f"{what} is negative", start)
        if count * each_bytes > len(self._payload) - self.byte_pos:
            raise self.bad(f"{what} is larger than the message", start)
        return count

    def data(self, what: str) -> bytes:
        """| i32 length | length bytes |"""
        size = self.count32(1, f"the length of {what}")
        start = self._skip(size, what)
        return self._payload[start : start + size]

    def name(self, what: str) -> str:
        start = self.byte_pos
        stop = self._payload.find(0, start)
        if stop < 0:
            raise self.bad(f"message ends before the end of {what}", start)
        self.byte_pos = stop + 1
        # Any role may make such a table, and with FOR ALL TABLES its changes come to us.
        return self._payload[start:stop].decode(errors="backslashreplace")

    def namespace(self) -> str:
        """The server writes "" for pg_catalog, to save space."""
        return self.name("the schema's name") or "pg_catalog"
