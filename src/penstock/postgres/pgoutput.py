"""Reads pgoutput, PostgreSQL's logical replication format: bytes in, messages out.

Stage: postgres, pure. In comes the payload of one XLogData message, out comes one value of
`messages`; the envelope, the socket and what the messages mean together are the neighbours' affair
(`session`, `connection`, capture). This is the scalar reference: plain before fast.

The layouts follow `src/backend/replication/logical/proto.c` and were compared with what PostgreSQL
15 to 18 send. In the drawings a box is one field, named as in `fields`; `[xid]` is a u32 that
is there only inside a streamed chunk. Each function names its fields in the order of the wire: that
is also the order in which Python evaluates arguments.

Bytes that do not fit are a `ProtocolViolation` with the position of the first field that is wrong.
Flags we do not know are refused: a server that sets one means something we would miss.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, TypeAlias, cast, get_args

from penstock.postgres.fields import Fields
from penstock.postgres.messages import (
    IN_PRIMARY_KEY,
    UNCHANGED,
    Begin,
    BeginPrepare,
    Binary,
    Column,
    Commit,
    CommitPrepared,
    Delete,
    Insert,
    LogicalMessage,
    Message,
    Origin,
    Prepare,
    Relation,
    ReplicaIdentity,
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

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.lsn import Lsn

Streaming: TypeAlias = Literal["off", "on", "parallel"]
"""The option `streaming` of START_REPLICATION."""

_KINDS: Final = frozenset("BCORYIUDTMSEcAbPKrp")
_STREAMING: Final = frozenset("SEcAp")
_TWO_PHASE: Final = frozenset("bPKrp")
_IN_CHUNK: Final = frozenset("RYIUDTMOE")

# The protocol version that brought each, as the server checks it when replication starts.
_FIRST_VERSION: Final[dict[Streaming, int]] = {"off": 1, "on": 2, "parallel": 4}
_TWO_PHASE_VERSION: Final = 3


class Decoder:
    """Decodes the messages of one replication connection, in the order they arrive.

    The only state is `in_stream`: true from a Stream Start to its Stream Stop, for in between some
    messages carry an xid. Make a new decoder for each connection, with the options sent to the
    server; `decode` is called once for every XLogData.

    These rules hold, and a message against them is a `ProtocolViolation`:

    - inside a chunk stand Relation, Type, Origin, changes, Truncate, Message and Stream Stop only:
      chunks do not nest, and no transaction begins or ends there;
    - Stream Stop stands at the end of a chunk only;
    - nothing is streamed unless `streaming` asked for it, which needs protocol 2;
    - messages about two-phase commit need protocol 3.

    >>> decoder = Decoder(2, "on")
    >>> decoder.decode(bytes.fromhex("53 00000301 01"))
    StreamStart(xid=769, first=True)
    >>> decoder.in_stream
    True
    """

    def __init__(self, protocol_version: int, streaming: Streaming) -> None:
        if protocol_version not in (1, 2, 3, 4):
            raise ValueError(f"pgoutput has protocol versions 1 to 4, not {protocol_version!r}")
        if streaming not in _FIRST_VERSION:
            raise ValueError(f"streaming is off, on or parallel, not {streaming!r}")
        if protocol_version < _FIRST_VERSION[streaming]:
            raise ValueError(
                f"streaming {streaming!r} needs protocol version {_FIRST_VERSION[streaming]}, "
                f"not {protocol_version}"
            )
        self._protocol_version = protocol_version
        self._streaming = streaming
        self._in_stream = False

    @property
    def in_stream(self) -> bool:
        """Whether the next message is part of a streamed chunk."""
        return self._in_stream

    def decode(self, payload: bytes) -> Message:
        """The message that `payload` is, all of it. After an error the state is as before."""
        fields = Fields(payload)
        kind = fields.kind
        self._expect(fields)
        message: Message
        if kind in _WITH_XID:
            xid = fields.u32("xid") if self._in_stream else None
            message = _WITH_XID[kind](fields, xid)
        elif kind == "A":
            message = _stream_abort(fields, with_place=self._streaming == "parallel")
        else:
            message = _WITHOUT_XID[kind](fields)
        fields.end()
        # Only now, with nothing left to go wrong.
        if kind in ("S", "E"):
            self._in_stream = kind == "S"
        return message

    def _expect(self, fields: Fields) -> None:
        """Refuse a kind that cannot come now, before its body is looked at."""
        kind = fields.kind
        if kind not in _KINDS:
            raise fields.bad("unknown kind", 0)
        if kind in _TWO_PHASE and self._protocol_version < _TWO_PHASE_VERSION:
            raise fields.bad(f"two-phase commit in protocol {self._protocol_version}", 0)
        if kind in _STREAMING and self._streaming == "off":
            raise fields.bad("streamed transaction with streaming off", 0)
        if self._in_stream and kind not in _IN_CHUNK:
            raise fields.bad("kind that cannot stand inside a streamed chunk", 0)
        if kind == "E" and not self._in_stream:
            raise fields.bad("end of a streamed chunk without its start", 0)


# --- transactions that arrive whole -------------------------------------------------------------


def _begin(fields: Fields) -> Begin:
    """| 'B' | lsn final | time committed | u32 xid |"""
    return Begin(
        final_lsn=fields.valid_lsn("the commit's LSN"),
        committed_us=fields.time("the commit's time"),
        xid=fields.u32("xid"),
    )


def _commit(fields: Fields) -> Commit:
    """| 'C' | u8 flags = 0 | lsn commit | lsn end | time committed |"""
    fields.flags(0, "the flags")
    return Commit(
        lsn=fields.valid_lsn("the commit's LSN"),
        end_lsn=fields.valid_lsn("the commit's end LSN"),
        committed_us=fields.time("the commit's time"),
    )


def _origin(fields: Fields) -> Origin:
    """| 'O' | lsn at the origin, may be 0/0 | name |      no xid, also inside a chunk"""
    return Origin(origin_lsn=fields.lsn("the origin's LSN"), name=fields.name("the origin's name"))


# --- what the changes are about -----------------------------------------------------------------


def _relation(fields: Fields, xid: int | None) -> Relation:
    """| 'R' | [xid] | u32 oid | name schema | name | u8 identity | i16 n | n columns |"""
    return Relation(
        oid=fields.u32("the relation's oid"),
        namespace=fields.namespace(),
        name=fields.name("the relation's name"),
        replica_identity=_replica_identity(fields),
        # A column has at least its flags, the end of its name, its type and its modifier.
        columns=tuple(_column(fields) for _ in range(fields.count16(10, "the number of columns"))),
        xid=xid,
    )


def _replica_identity(fields: Fields) -> ReplicaIdentity:
    """| 'd', 'n', 'f' or 'i' |"""
    start = fields.byte_pos
    identity = fields.char("the replica identity")
    if identity not in get_args(ReplicaIdentity):
        raise fields.bad("unknown replica identity", start)
    return cast("ReplicaIdentity", identity)


def _column(fields: Fields) -> Column:
    """| u8 flags: 1 in the identity, 128 (in the log) in the primary key | name | u32 type |
    i32 modifier |
    """
    flags = fields.flags(1 | IN_PRIMARY_KEY, "the column's flags")
    return Column(
        in_identity=bool(flags & 1),
        name=fields.name("the column's name"),
        type_oid=fields.u32("the column's type"),
        type_modifier=fields.i32("the column's type modifier"),
        in_primary_key=bool(flags & IN_PRIMARY_KEY),
    )


def _type(fields: Fields, xid: int | None) -> Type:
    """| 'Y' | [xid] | u32 oid | name schema | name |"""
    return Type(
        oid=fields.u32("the type's oid"),
        namespace=fields.namespace(),
        name=fields.name("the type's name"),
        xid=xid,
    )


# --- changes ------------------------------------------------------------------------------------


def _insert(fields: Fields, xid: int | None) -> Insert:
    """| 'I' | [xid] | u32 relation | 'N' | row |"""
    relation_oid = fields.u32("the relation's oid")
    _row_mark(fields, "N")
    return Insert(relation_oid=relation_oid, new=_row(fields), xid=xid)


def _update(fields: Fields, xid: int | None) -> Update:
    """| 'U' | [xid] | u32 relation | nothing, 'K' row or 'O' row | 'N' | row |"""
    relation_oid = fields.u32("the relation's oid")
    old_key = old_row = None
    mark = _row_mark(fields, "KON")
    if mark == "K":
        old_key = _row(fields)
    elif mark == "O":
        old_row = _row(fields)
    if mark != "N":
        _row_mark(fields, "N")
    return Update(
        relation_oid=relation_oid, old_key=old_key, old_row=old_row, new=_row(fields), xid=xid
    )


def _delete(fields: Fields, xid: int | None) -> Delete:
    """| 'D' | [xid] | u32 relation | 'K' or 'O' | row |"""
    relation_oid = fields.u32("the relation's oid")
    if _row_mark(fields, "KO") == "K":
        return Delete(relation_oid=relation_oid, old_key=_row(fields), old_row=None, xid=xid)
    return Delete(relation_oid=relation_oid, old_key=None, old_row=_row(fields), xid=xid)


def _row_mark(fields: Fields, allowed: str) -> str:
    """| 'N' new row, 'K' old identity or 'O' old row |"""
    start = fields.byte_pos
    mark = fields.char("the mark of a row")
    if mark not in allowed:
        raise fields.bad(f"mark of a row is not one of {allowed}", start)
    return mark


def _row(fields: Fields) -> Row:
    """| i16 n | n values |"""
    return tuple(_value(fields) for _ in range(fields.count16(1, "the number of values")))


def _value(fields: Fields) -> Value:
    """| 'n' |   | 'u' |   | 't' | i32 length | text |   | 'b' | i32 length | binary |"""
    start = fields.byte_pos
    match fields.char("the kind of a value"):
        case "t":
            return fields.data("a value")
        case "n":
            return None
        case "u":
            return UNCHANGED
        case "b":
            return Binary(fields.data("a value"))
        case _:
            raise fields.bad("unknown kind of value", start)


def _truncate(fields: Fields, xid: int | None) -> Truncate:
    """| 'T' | [xid] | i32 n | u8 flags: 1 cascade, 2 restart identity | n × u32 relation |"""
    # `flags` stands between the count and what it counts, so one byte more must be there.
    count = fields.count32(4, "the number of relations")
    flags = fields.flags(1 | 2, "the flags")
    return Truncate(
        cascade=bool(flags & 1),
        restart_identity=bool(flags & 2),
        relation_oids=tuple(fields.u32("a relation's oid") for _ in range(count)),
        xid=xid,
    )


def _logical_message(fields: Fields, xid: int | None) -> LogicalMessage:
    """| 'M' | [xid] | u8 flags: 1 transactional | lsn | name prefix | i32 length | content |"""
    return LogicalMessage(
        transactional=fields.flags(1, "the flags") == 1,
        lsn=fields.lsn("the message's LSN"),
        prefix=fields.name("the message's prefix"),
        content=fields.data("the message's content"),
        xid=xid,
    )


# --- transactions streamed before their end is known --------------------------------------------


def _stream_start(fields: Fields) -> StreamStart:
    """| 'S' | u32 xid | u8 first: 0 or 1 |"""
    return StreamStart(xid=fields.u32("xid"), first=fields.flags(1, "the first-chunk mark") == 1)


def _stream_stop(_: Fields) -> StreamStop:
    """| 'E' |"""
    return StreamStop()


def _stream_commit(fields: Fields) -> StreamCommit:
    """| 'c' | u32 xid | u8 flags = 0 | lsn commit | lsn end | time committed |"""
    xid = fields.u32("xid")
    fields.flags(0, "the flags")
    return StreamCommit(
        xid=xid,
        lsn=fields.valid_lsn("the commit's LSN"),
        end_lsn=fields.valid_lsn("the commit's end LSN"),
        committed_us=fields.time("the commit's time"),
    )


def _stream_abort(fields: Fields, *, with_place: bool) -> StreamAbort:
    """| 'A' | u32 xid | u32 subxid |  and with streaming 'parallel'  | lsn abort | time |

    The option decides, in protocol 4 too: streaming 'on' leaves the last two out.
    """
    xid, subxid = fields.u32("xid"), fields.u32("subxid")
    if not with_place:
        return StreamAbort(xid, subxid)
    return StreamAbort(xid, subxid, fields.lsn("the abort's LSN"), fields.time("the abort's time"))


# --- two-phase commit ---------------------------------------------------------------------------


def _begin_prepare(fields: Fields) -> BeginPrepare:
    """| 'b' | prepared |          no flags"""
    return BeginPrepare(*_prepared(fields))


def _prepare(fields: Fields) -> Prepare:
    """| 'P' | u8 flags = 0 | prepared |"""
    fields.flags(0, "the flags")
    return Prepare(*_prepared(fields))


def _stream_prepare(fields: Fields) -> StreamPrepare:
    """| 'p' | u8 flags = 0 | prepared |          xid not in front, unlike Stream Commit"""
    fields.flags(0, "the flags")
    return StreamPrepare(*_prepared(fields))


def _prepared(fields: Fields) -> tuple[Lsn, Lsn, int, int, str]:
    """| lsn prepare | lsn end | time prepared | u32 xid | name gid |"""
    return (
        fields.valid_lsn("the prepare's LSN"),
        fields.valid_lsn("the prepare's end LSN"),
        fields.time("the prepare's time"),
        fields.u32("xid"),
        fields.name("the gid"),
    )


def _commit_prepared(fields: Fields) -> CommitPrepared:
    """| 'K' | u8 flags = 0 | lsn commit | lsn end | time committed | u32 xid | name gid |"""
    fields.flags(0, "the flags")
    return CommitPrepared(
        lsn=fields.valid_lsn("the commit's LSN"),
        end_lsn=fields.valid_lsn("the commit's end LSN"),
        committed_us=fields.time("the commit's time"),
        xid=fields.u32("xid"),
        gid=fields.name("the gid"),
    )


def _rollback_prepared(fields: Fields) -> RollbackPrepared:
    """| 'r' | u8 flags = 0 | lsn prepare's end | lsn rollback's end | time × 2 | u32 xid | gid |"""
    fields.flags(0, "the flags")
    return RollbackPrepared(
        prepare_end_lsn=fields.valid_lsn("the prepare's end LSN"),
        rollback_end_lsn=fields.valid_lsn("the rollback's end LSN"),
        prepared_us=fields.time("the prepare's time"),
        rolled_back_us=fields.time("the rollback's time"),
        xid=fields.u32("xid"),
        gid=fields.name("the gid"),
    )


# Origin has no xid, though it may stand in a chunk. Stream Abort is not here: an option shapes it.
_WITH_XID: Final[dict[str, Callable[[Fields, int | None], Message]]] = {
    "R": _relation,
    "Y": _type,
    "I": _insert,
    "U": _update,
    "D": _delete,
    "T": _truncate,
    "M": _logical_message,
}
_WITHOUT_XID: Final[dict[str, Callable[[Fields], Message]]] = {
    "B": _begin,
    "C": _commit,
    "O": _origin,
    "S": _stream_start,
    "E": _stream_stop,
    "c": _stream_commit,
    "b": _begin_prepare,
    "P": _prepare,
    "p": _stream_prepare,
    "K": _commit_prepared,
    "r": _rollback_prepared,
}
