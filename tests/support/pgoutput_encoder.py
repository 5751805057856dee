"""pgoutput the other way round: the bytes a server would send for a message.

An oracle for decoders, written from PostgreSQL's protocol documentation and sharing no code with
them. The message decides its own form: one with an xid is as inside a streamed chunk, a Stream
Abort with a place is as with `streaming 'parallel'`.
"""

from __future__ import annotations

from penstock.postgres.messages import (
    UNCHANGED,
    Begin,
    BeginPrepare,
    Binary,
    Commit,
    CommitPrepared,
    Delete,
    Insert,
    LogicalMessage,
    Message,
    Origin,
    Prepare,
    Relation,
    RollbackPrepared,
    Row,
    StreamAbort,
    StreamCommit,
    StreamPrepare,
    StreamStart,
    StreamStop,
    Truncate,
    Type,
    Update,
    Value,
)


def encode(message: Message) -> bytes:
    """The payload of the XLogData that carries `message`."""
    match message:
        case Begin():
            return b"B" + int8(message.final_lsn) + int8(message.committed_us) + int4(message.xid)
        case Commit():
            return b"C\0" + _commit(message)
        case Origin():
            return b"O" + int8(message.origin_lsn) + string(message.name)
        case Relation():
            return b"R" + _xid(message.xid) + _relation(message)
        case Type():
            qualified = namespace(message.namespace) + string(message.name)
            return b"Y" + _xid(message.xid) + int4(message.oid) + qualified
        case Insert():
            return b"I" + _xid(message.xid) + int4(message.relation_oid) + b"N" + row(message.new)
        case Update():
            new = b"N" + row(message.new)
            return b"U" + _xid(message.xid) + int4(message.relation_oid) + _old(message) + new
        case Delete():
            return b"D" + _xid(message.xid) + int4(message.relation_oid) + _old(message)
        case Truncate():
            oids = b"".join(map(int4, message.relation_oids))
            flags = int1(message.cascade + 2 * message.restart_identity)
            return b"T" + _xid(message.xid) + int4(len(message.relation_oids)) + flags + oids
        case LogicalMessage():
            head = int1(message.transactional) + int8(message.lsn) + string(message.prefix)
            return b"M" + _xid(message.xid) + head + counted(message.content)
        case StreamStart():
            return b"S" + int4(message.xid) + int1(message.first)
        case StreamStop():
            return b"E"
        case StreamCommit():
            return b"c" + int4(message.xid) + b"\0" + _commit(message)
        case StreamAbort():
            return b"A" + int4(message.xid) + int4(message.subxid) + _abort_place(message)
        case BeginPrepare():
            return b"b" + _prepared(message)
        case Prepare():
            return b"P\0" + _prepared(message)
        case StreamPrepare():
            return b"p\0" + _prepared(message)
        case CommitPrepared():
            return b"K\0" + _commit(message) + int4(message.xid) + string(message.gid)
        case RollbackPrepared():
            positions = int8(message.prepare_end_lsn) + int8(message.rollback_end_lsn)
            times = int8(message.prepared_us) + int8(message.rolled_back_us)
            return b"r\0" + positions + times + int4(message.xid) + string(message.gid)


# --- fields -------------------------------------------------------------------------------------


def _integer(value: int, size: int) -> bytes:
    """Big-endian two's complement, so one function does for signed and unsigned."""
    return (value % (1 << 8 * size)).to_bytes(size, "big")


def int1(value: int) -> bytes:
    return _integer(value, 1)


def int2(value: int) -> bytes:
    return _integer(value, 2)


def int4(value: int) -> bytes:
    return _integer(value, 4)


def int8(value: int) -> bytes:
    return _integer(value, 8)


def string(text: str) -> bytes:
    return text.encode() + b"\0"


def namespace(name: str) -> bytes:
    return b"\0" if name == "pg_catalog" else string(name)


def counted(data: bytes) -> bytes:
    return int4(len(data)) + data


def row(values: Row) -> bytes:
    return int2(len(values)) + b"".join(map(_value, values))


def _value(value: Value) -> bytes:
    if value is None:
        return b"n"
    if value is UNCHANGED:
        return b"u"
    if isinstance(value, Binary):
        return b"b" + counted(value.data)
    return b"t" + counted(value)


def _xid(xid: int | None) -> bytes:
    return b"" if xid is None else int4(xid)


def _relation(message: Relation) -> bytes:
    columns = b"".join(
        int1(column.in_identity | column.in_primary_key << 7)
        + string(column.name)
        + int4(column.type_oid)
        + int4(column.type_modifier)
        for column in message.columns
    )
    qualified = namespace(message.namespace) + string(message.name)
    identity = message.replica_identity.encode()
    return int4(message.oid) + qualified + identity + int2(len(message.columns)) + columns


def _old(message: Update | Delete) -> bytes:
    if message.old_key is not None:
        return b"K" + row(message.old_key)
    if message.old_row is not None:
        return b"O" + row(message.old_row)
    return b""


def _commit(message: Commit | StreamCommit | CommitPrepared) -> bytes:
    return int8(message.lsn) + int8(message.end_lsn) + int8(message.committed_us)


def _abort_place(message: StreamAbort) -> bytes:
    if message.abort_lsn is None or message.aborted_us is None:
        return b""
    return int8(message.abort_lsn) + int8(message.aborted_us)


def _prepared(message: BeginPrepare | Prepare | StreamPrepare) -> bytes:
    positions = int8(message.lsn) + int8(message.end_lsn)
    return positions + int8(message.prepared_us) + int4(message.xid) + string(message.gid)
