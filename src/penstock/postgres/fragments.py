"""From runs of messages to fragments of transactions. Pure; one fragmenter per connection.

In: CopyData messages in the order received (`session.py` has checked their order). Out: events, in
that order. A fragment is whatever a run holds of one transaction: all of it, its start, middle or
end, so memory does not grow with the transaction.

A transaction that ends at or below the log's position, or the last commit that came, is there
already and is dropped: at its Begin if it comes whole (the start of its commit record is then
before the position), at its Stream Commit if it was streamed. Replication sends each once for a
connection; polling sends one again if the server has forgotten where the slot was.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from penstock.errors import ProtocolViolation
from penstock.lsn import Lsn
from penstock.postgres.envelope import PAYLOAD_POS, XLOG_DATA

_TRUNCATE = ord("T")
_ROWS = frozenset(b"IUD")
# Where the fields behind a message's kind start.
_AT = PAYLOAD_POS + 1
_BEGIN = struct.Struct(">QqI")
_COMMIT = struct.Struct(">BQQq")
_STREAM_START = struct.Struct(">IB")
_STREAM_COMMIT = struct.Struct(">IBQQq")
_STREAM_ABORT = struct.Struct(">II")
# Flags and LSN of a logical message, before its prefix; the content's length behind it.
_BEFORE_PREFIX_BYTES = 9
_LENGTH_BYTES = 4
# A longer message is not ours, whatever its prefix.
_MOST_SIGNAL_BYTES = 1024


@dataclass(frozen=True, slots=True)
class Commit:
    """The end of a transaction; `lsn` is the end of its commit record."""

    lsn: Lsn
    time_us: int


@dataclass(slots=True)
class Fragment:
    """A part of one transaction. `messages` are CopyData messages: row changes and truncates."""

    xid: int
    streamed: bool
    has_begin: bool
    messages: list[memoryview]
    commit: Commit | None = None

    @property
    def changes(self) -> int:
        return len(self.messages)

    @property
    def first_lsn(self) -> Lsn | None:
        return _record_lsn(self.messages[0]) if self.messages else None

    @property
    def last_lsn(self) -> Lsn | None:
        return _record_lsn(self.messages[-1]) if self.messages else None

    @property
    def relations(self) -> frozenset[int]:
        """The oids of the tables it touches."""
        payloads = (message[PAYLOAD_POS:] for message in self.messages)
        return frozenset(oid for payload in payloads for oid in touched(payload, self.streamed))


@dataclass(frozen=True, slots=True)
class Abort:
    """A subtransaction, or all of the transaction if the two are equal, will never commit."""

    xid: int
    subxid: int


@dataclass(frozen=True, slots=True)
class Description:
    """A Relation or a Type, in the form without an xid; in force from here on.

    `xid` is the transaction that carried it and `subxid` its part. It counts when that commits: one
    that is streamed may yet roll back, and then the table was never so. 0: it came with a
    transaction that the log has already.
    """

    payload: bytes
    xid: int = 0
    subxid: int = 0


@dataclass(frozen=True, slots=True)
class Signal:
    """The content of a logical message that has our prefix."""

    content: bytes


Event: TypeAlias = Fragment | Abort | Description | Signal


class Fragmenter:
    """Cuts what one connection receives."""

    def __init__(self, durable_lsn: Lsn, signal_prefix: str | None = None) -> None:
        """Make `Signal` events of logical messages with that prefix, of none without one."""
        # Every commit that ends at or below it is in the log, or was handed out here.
        self._taken_lsn = durable_lsn
        self._signal_prefix = None if signal_prefix is None else signal_prefix.encode() + b"\0"
        # The fragment that is being received, or None between transactions and chunks.
        self._current: Fragment | None = None
        self._skipping = False

    def feed(self, run: Sequence[memoryview]) -> list[Event]:
        """The events of one run; what is half received of a transaction comes as a fragment too."""
        events: list[Event] = []
        for message in run:
            if message[0] != XLOG_DATA:
                continue
            kind = message[PAYLOAD_POS]
            current = self._current
            if current is not None and (kind in _ROWS or kind == _TRUNCATE):
                current.messages.append(message)
            else:
                try:
                    self._control(kind, message, events)
                except struct.error:
                    raise ProtocolViolation(
                        "the message ends too early", byte_pos=len(message), kind=chr(kind)
                    ) from None
        self._cut(events)
        return events

    def _control(self, kind: int, message: memoryview, events: list[Event]) -> None:
        match chr(kind):
            case "B":
                final_lsn, _, xid = _BEGIN.unpack_from(message, _AT)
                self._skipping = final_lsn < self._taken_lsn
                self._current = Fragment(xid, False, True, [])
            case "C":
                _, _, end_lsn, time_us = _COMMIT.unpack_from(message, _AT)
                self._finish(Commit(Lsn(end_lsn), time_us), events)
            case "S":
                xid, first = _STREAM_START.unpack_from(message, _AT)
                self._current = Fragment(xid, True, bool(first), [])
            case "E":
                self._cut(events)
                self._current = None
            case "c":
                xid, _, _, end_lsn, time_us = _STREAM_COMMIT.unpack_from(message, _AT)
                if end_lsn <= self._taken_lsn:
                    events.append(Abort(xid, xid))
                else:
                    self._taken_lsn = Lsn(end_lsn)
                    commit = Commit(self._taken_lsn, time_us)
                    events.append(Fragment(xid, True, False, [], commit))
            case "A":
                events.append(Abort(*_STREAM_ABORT.unpack_from(message, _AT)))
            case "R" | "Y":
                # It is in force for what follows, not for what came before in this fragment.
                self._cut(events)
                events.append(self._description(message))
            case "M":
                # Not part of a table. Those of a streamed transaction could not be kept anyway:
                # one that a savepoint rolled back looks as if it had committed.
                if (content := self._signal(message)) is not None:
                    events.append(Signal(content))
            case "O":
                pass  # where a change was first made; nothing that a later stage needs
            case other:
                raise ProtocolViolation("an unexpected message", byte_pos=PAYLOAD_POS, kind=other)

    def _finish(self, commit: Commit, events: list[Event]) -> None:
        current, self._current = self._current, None
        skipping, self._skipping = self._skipping, False
        if current is None:
            raise ProtocolViolation("a commit without a begin", byte_pos=PAYLOAD_POS, kind="C")
        if not skipping:
            self._taken_lsn = commit.lsn
            current.commit = commit
            events.append(current)

    def _cut(self, events: list[Event]) -> None:
        """Hand out what has been received of the current transaction, and go on with the next."""
        current = self._current
        if current is None or not current.messages:
            return
        if not self._skipping:
            events.append(current)
        self._current = Fragment(current.xid, current.streamed, False, [])

    def _description(self, message: memoryview) -> Description:
        payload = self._without_xid(message)
        if self._current is None or self._skipping:
            return Description(payload)
        xid = subxid = self._current.xid
        if self._current.streamed:
            subxid = int.from_bytes(message[_AT : _AT + 4], "big")
        return Description(payload, xid, subxid)

    def _signal(self, message: memoryview) -> bytes | None:
        """Return the content of a message of ours, None for any other.

        Any role may emit messages, with a prefix that is no text or a gigabyte of content: theirs
        are neither decoded nor copied.
        """
        wanted = self._signal_prefix
        if wanted is None or len(message) > _MOST_SIGNAL_BYTES:
            return None
        start = _AT + (4 if self._is_streamed else 0) + _BEFORE_PREFIX_BYTES
        end = start + len(wanted)
        if bytes(message[start:end]) != wanted:
            return None
        return bytes(message[end + _LENGTH_BYTES :])

    def _without_xid(self, message: memoryview) -> bytes:
        payload = bytes(message[PAYLOAD_POS:])
        return payload[:1] + payload[5:] if self._is_streamed else payload

    @property
    def _is_streamed(self) -> bool:
        return self._current is not None and self._current.streamed


def touched(payload: bytes | memoryview, streamed: bool) -> list[int]:
    """The oids of the tables that one message is about."""
    at = 5 if streamed else 1
    first = int.from_bytes(payload[at : at + 4], "big")
    if payload[0] != _TRUNCATE:
        return [first]
    # A truncate: how many, options, then the oids.
    starts = range(at + 5, at + 5 + 4 * first, 4)
    return [int.from_bytes(payload[start : start + 4], "big") for start in starts]


def _record_lsn(message: memoryview) -> Lsn:
    """Where the change's own record starts; not monotonic over transactions."""
    return Lsn(int.from_bytes(message[1:9], "big"))
