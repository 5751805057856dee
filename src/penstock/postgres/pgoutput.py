"""Reads pgoutput, PostgreSQL's logical replication format: bytes in, messages out.

Stage: postgres, pure. In comes the payload of one XLogData message, out comes one value of
`messages`; the envelope, the socket and what the messages mean together are the neighbours' affair
(`session`, `connection`, capture). This is the scalar reference: plain before fast.

The layouts follow `src/backend/replication/logical/proto.c` and were compared with what PostgreSQL
15, 16 and 18 send. In the drawings a box is one field:

    u8 i16 i32 i64 u32 u64   big-endian integers
    lsn                      u64, a position in the WAL
    time                     i64, microseconds since 2000-01-01 UTC
    name                     UTF-8, ended by a zero byte (the connection sets client_encoding)
    [xid]                    u32, there only inside a streamed chunk

Bytes that do not fit are a `ProtocolViolation` with the position of the first field that is wrong.
Flags we do not know are refused: a server that sets one means something we would miss.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, cast, get_args

from penstock.errors import ProtocolViolation
from penstock.lsn import Lsn
from penstock.postgres.messages import (
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
    from typing import NoReturn

Streaming: TypeAlias = Literal["off", "on", "parallel"]
"""The option `streaming` of START_REPLICATION."""

_KINDS: Final = frozenset("BCORYIUDTMSEcAbPKrp")
_STREAMING: Final = frozenset("SEcAp")
_TWO_PHASE: Final = frozenset("bPKrp")
_CARRY_XID: Final = frozenset("RYIUDTM")  # Origin has none, though it may stand in a chunk
_IN_CHUNK: Final = _CARRY_XID | {"O", "E"}

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
        fields = _Fields(payload)
        self._expect(fields)
        xid = fields.u32("xid") if self._in_stream and fields.kind in _CARRY_XID else None
        message = self._body(fields, xid)
        fields.end()
        # Only now, with nothing left to go wrong.
        if isinstance(message, StreamStart | StreamStop):
            self._in_stream = isinstance(message, StreamStart)
        return message

    def _expect(self, fields: _Fields) -> None:
        """Refuse a kind that cannot come now, before its body is looked at."""
        kind = fields.kind
        if kind not in _KINDS:
            fields.refuse("unknown kind of message", 0)
        if kind in _TWO_PHASE and self._protocol_version < _TWO_PHASE_VERSION:
            fields.refuse(f"two-phase commit in protocol {self._protocol_version}", 0)
        if kind in _STREAMING and self._streaming == "off":
            fields.refuse("streamed transaction, though streaming is off,", 0)
        if self._in_stream and kind not in _IN_CHUNK:
            fields.refuse("not allowed inside a streamed chunk,", 0)
        if kind == "E" and not self._in_stream:
            fields.refuse("end of a streamed chunk that did not start,", 0)

    def _body(self, fields: _Fields, xid: int | None) -> Message:
        match fields.kind:
            case "B":
                return _begin(fields)
            case "C":
                return _commit(fields)
            case "O":
                return _origin(fields)
            case "R":
                return _relation(fields, xid)
            case "Y":
                return _type(fields, xid)
            case "I":
                return _insert(fields, xid)
            case "U":
                return _update(fields, xid)
            case "D":
                return _delete(fields, xid)
            case "T":
                return _truncate(fields, xid)
            case "M":
                return _logical_message(fields, xid)
            case "S":
                return _stream_start(fields)
            case "E":
                return StreamStop()
            case "c":
                return _stream_commit(fields)
            case "A":
                return _stream_abort(fields, with_place=self._streaming == "parallel")
            case "b":
                return _begin_prepare(fields)
            case "P":
                return _prepare(fields, Prepare)
            case "p":
                return _prepare(fields, StreamPrepare)
            case "K":
                return _commit_prepared(fields)
            case _:  # `_expect` leaves only "r"
                return _rollback_prepared(fields)


class _Fields:
    """The fields of one payload, read from left to right and never past its end."""

    _I16 = struct.Struct(">h")
    _I32 = struct.Struct(">i")
    _U32 = struct.Struct(">I")
    _I64 = struct.Struct(">q")
    _U64 = struct.Struct(">Q")

    def __init__(self, payload: bytes) -> None:
        self._payload = payload
        self._pos = 0
        self.kind: str | None = None
        self.kind = self.char("the kind of message")

    def refuse(self, what: str, byte_pos: int) -> NoReturn:
        raise ProtocolViolation(what, byte_pos=byte_pos, kind=self.kind)

    def end(self) -> None:
        extra = len(self._payload) - self._pos
        if extra:
            self.refuse(f"{extra} bytes too many", self._pos)

    def _skip(self, size: int, what: str) -> int:
        """Step over `size` bytes and return where they begin."""
        start = self._pos
        if len(self._payload) - start < size:
            self.refuse(f"message ends before the end of {what}", start)
        self._pos = start + size
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
            self.refuse(f"{what} is 0/0", self._pos - self._U64.size)
        return lsn

    def char(self, what: str) -> str:
        return chr(self.u8(what))

    def flags(self, known: int, what: str) -> int:
        flags = self.u8(what)
        if flags & ~known:
            self.refuse(f"unknown bits {flags & ~known:#04x} in {what}", self._pos - 1)
        return flags

    def count16(self, each_bytes: int, what: str) -> int:
        return self._counted(self._I16, each_bytes, what)

    def count32(self, each_bytes: int, what: str) -> int:
        return self._counted(self._I32, each_bytes, what)

    def _counted(self, form: struct.Struct, each_bytes: int, what: str) -> int:
        """How many things of at least `each_bytes` follow: believed only if they can be there."""
        start = self._pos
        count = self._number(form, what)
        if count < 0:
            self.refuse(f"{what} is negative", start)
        if count * each_bytes > len(self._payload) - self._pos:
            self.refuse(f"{what} is larger than the message", start)
        return count

    def data(self, what: str) -> bytes:
        """    | i32 length | length bytes |"""
        size = self.count32(1, f"the length of {what}")
        start = self._skip(size, what)
        return self._payload[start : start + size]

    def name(self, what: str) -> str:
        start = self._pos
        stop = self._payload.find(0, start)
        if stop < 0:
            self.refuse(f"message ends before the end of {what}", start)
        self._pos = stop + 1
        try:
            return self._payload[start:stop].decode()
        except UnicodeDecodeError as error:
            bad = ProtocolViolation(
                f"{what} is not UTF-8", byte_pos=start + error.start, kind=self.kind
            )
        # Outside the handler: the cause would hold the bytes, and says nothing more.
        raise bad

    def namespace(self) -> str:
        """The server writes "" for pg_catalog, to save space."""
        return self.name("the schema's name") or "pg_catalog"


# --- transactions that arrive whole -------------------------------------------------------------


def _begin(fields: _Fields) -> Begin:
    """    | 'B' | lsn final | time committed | u32 xid |"""
    return Begin(
        final_lsn=fields.valid_lsn("the commit's LSN"),
        committed_us=fields.time("the commit's time"),
        xid=fields.u32("xid"),
    )


def _commit(fields: _Fields) -> Commit:
    """    | 'C' | u8 flags = 0 | lsn commit | lsn end | time committed |"""
    fields.flags(0, "the flags")
    return Commit(
        lsn=fields.valid_lsn("the commit's LSN"),
        end_lsn=fields.valid_lsn("the commit's end LSN"),
        committed_us=fields.time("the commit's time"),
    )


def _origin(fields: _Fields) -> Origin:
    """    | 'O' | lsn at the origin, may be 0/0 | name |      no xid, also inside a chunk"""
    return Origin(origin_lsn=fields.lsn("the origin's LSN"), name=fields.name("the origin's name"))


# --- what the changes are about -----------------------------------------------------------------


def _relation(fields: _Fields, xid: int | None) -> Relation:
    """    | 'R' | [xid] | u32 oid | name schema | name | u8 identity | i16 n | n columns |"""
    return Relation(
        oid=fields.u32("the relation's oid"),
        namespace=fields.namespace(),
        name=fields.name("the relation's name"),
        replica_identity=_replica_identity(fields),
        # A column has at least its flags, the end of its name, its type and its modifier.
        columns=tuple(_column(fields) for _ in range(fields.count16(10, "the number of columns"))),
        xid=xid,
    )


def _replica_identity(fields: _Fields) -> ReplicaIdentity:
    """    | 'd', 'n', 'f' or 'i' |"""
    start = fields.byte_pos
    identity = fields.char("the replica identity")
    if identity not in get_args(ReplicaIdentity):
        fields.refuse("unknown replica identity", start)
    return cast("ReplicaIdentity", identity)


def _column(fields: _Fields) -> Column:
    """    | u8 flags: 1 in the identity | name | u32 type | i32 modifier |"""
    return Column(
        in_identity=fields.flags(1, "the column's flags") == 1,
        name=fields.name("the column's name"),
        type_oid=fields.u32("the column's type"),
        type_modifier=fields.i32("the column's type modifier"),
    )


def _type(fields: _Fields, xid: int | None) -> Type:
    """    | 'Y' | [xid] | u32 oid | name schema | name |"""
    return Type(
        oid=fields.u32("the type's oid"),
        namespace=fields.namespace(),
        name=fields.name("the type's name"),
        xid=xid,
    )


# --- changes ------------------------------------------------------------------------------------


def _insert(fields: _Fields, xid: int | None) -> Insert:
    """    | 'I' | [xid] | u32 relation | 'N' | row |"""
    relation_oid = fields.u32("the relation's oid")
    _row_mark(fields, "N")
    return Insert(relation_oid=relation_oid, new=_row(fields), xid=xid)


def _update(fields: _Fields, xid: int | None) -> Update:
    """    | 'U' | [xid] | u32 relation | nothing, 'K' row or 'O' row | 'N' | row |"""
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


def _delete(fields: _Fields, xid: int | None) -> Delete:
    """    | 'D' | [xid] | u32 relation | 'K' or 'O' | row |"""
    relation_oid = fields.u32("the relation's oid")
    if _row_mark(fields, "KO") == "K":
        return Delete(relation_oid=relation_oid, old_key=_row(fields), old_row=None, xid=xid)
    return Delete(relation_oid=relation_oid, old_key=None, old_row=_row(fields), xid=xid)


def _row_mark(fields: _Fields, allowed: str) -> str:
    """    | 'N' new row, 'K' old identity or 'O' old row |"""
    start = fields.byte_pos
    mark = fields.char("the mark of a row")
    if mark not in allowed:
        fields.refuse(f"mark of a row is not one of {allowed}", start)
    return mark


def _row(fields: _Fields) -> Row:
    """    | i16 n | n values |"""
    return tuple(_value(fields) for _ in range(fields.count16(1, "the number of values")))


def _value(fields: _Fields) -> Value:
    """    | 'n' |   | 'u' |   | 't' | i32 length | text |   | 'b' | i32 length | binary |"""
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
            fields.refuse("unknown kind of value", start)


def _truncate(fields: _Fields, xid: int | None) -> Truncate:
    """    | 'T' | [xid] | i32 n | u8 flags: 1 cascade, 2 restart identity | n × u32 relation |"""
    # `flags` stands between the count and what it counts, so one byte more must be there.
    count = fields.count32(4, "the number of relations")
    flags = fields.flags(1 | 2, "the flags")
    return Truncate(
        cascade=bool(flags & 1),
        restart_identity=bool(flags & 2),
        relation_oids=tuple(fields.u32("a relation's oid") for _ in range(count)),
        xid=xid,
    )


def _logical_message(fields: _Fields, xid: int | None) -> LogicalMessage:
    """    | 'M' | [xid] | u8 flags: 1 transactional | lsn | name prefix | i32 length | content |"""
    return LogicalMessage(
        transactional=fields.flags(1, "the flags") == 1,
        lsn=fields.lsn("the message's LSN"),
        prefix=fields.name("the message's prefix"),
        content=fields.data("the message's content"),
        xid=xid,
    )


# --- transactions streamed before their end is known --------------------------------------------


def _stream_start(fields: _Fields) -> StreamStart:
    """    | 'S' | u32 xid | u8 first: 0 or 1 |          Stream Stop is | 'E' | alone"""
    return StreamStart(xid=fields.u32("xid"), first=fields.flags(1, "the first-chunk mark") == 1)


def _stream_commit(fields: _Fields) -> StreamCommit:
    """    | 'c' | u32 xid | u8 flags = 0 | lsn commit | lsn end | time committed |"""
    xid = fields.u32("xid")
    fields.flags(0, "the flags")
    return StreamCommit(
        xid=xid,
        lsn=fields.valid_lsn("the commit's LSN"),
        end_lsn=fields.valid_lsn("the commit's end LSN"),
        committed_us=fields.time("the commit's time"),
    )


def _stream_abort(fields: _Fields, *, with_place: bool) -> StreamAbort:
    """    | 'A' | u32 xid | u32 subxid |  and with streaming 'parallel'  | lsn abort | time |

    The option decides, in protocol 4 too: streaming 'on' leaves the last two out.
    """
    xid, subxid = fields.u32("xid"), fields.u32("subxid")
    if not with_place:
        return StreamAbort(xid, subxid)
    return StreamAbort(xid, subxid, fields.lsn("the abort's LSN"), fields.time("the abort's time"))


# --- two-phase commit ---------------------------------------------------------------------------


def _begin_prepare(fields: _Fields) -> BeginPrepare:
    """    | 'b' | lsn prepare | lsn end | time prepared | u32 xid | name gid |    no flags"""
    return _prepared(fields, BeginPrepare)


_AnyPrepared = TypeVar("_AnyPrepared", BeginPrepare, Prepare, StreamPrepare)
