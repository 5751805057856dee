"""What a server puts on a replication connection: envelopes around pgoutput's messages."""

from __future__ import annotations

from penstock.lsn import Lsn
from penstock.postgres.messages import (
    Begin,
    Column,
    Commit,
    Insert,
    Message,
    Relation,
    StreamAbort,
    StreamCommit,
    StreamStart,
    StreamStop,
)
from support.pgoutput_encoder import encode, int1, int8

ITEMS = Relation(1000, "public", "items", "d", (Column(True, "id", 23, -1),))


def keepalive(wal_end: int, *, reply: bool = False) -> bytes:
    return b"k" + int8(wal_end) + int8(0) + int1(reply)


def xlog(message: Message, start: int = 0) -> bytes:
    return b"w" + int8(start) + int8(start) + int8(0) + encode(message)


def begin(final: int = 0x100, xid: int = 7) -> bytes:
    return xlog(Begin(Lsn(final), 0, xid))


def commit(end: int, lsn: int | None = None, time_us: int = 0) -> bytes:
    return xlog(Commit(Lsn(end - 8 if lsn is None else lsn), Lsn(end), time_us))


def relation(message: Relation = ITEMS) -> bytes:
    return xlog(message)


def insert(value: object, *, xid: int | None = None, oid: int = ITEMS.oid) -> bytes:
    return xlog(Insert(oid, (str(value).encode(),), xid))


def stream_start(xid: int, *, first: bool = True) -> bytes:
    return xlog(StreamStart(xid, first))


def stream_stop() -> bytes:
    return xlog(StreamStop())


def stream_commit(xid: int, end: int) -> bytes:
    return xlog(StreamCommit(xid, Lsn(end - 8), Lsn(end), 0))


def stream_abort(xid: int, subxid: int | None = None) -> bytes:
    return xlog(StreamAbort(xid, xid if subxid is None else subxid))


def transaction(end: int, *values: object, xid: int = 7) -> list[bytes]:
    """A whole transaction, not streamed, that inserts `values`."""
    return [begin(end - 8, xid), relation(), *map(insert, values), commit(end)]
