"""Hypothesis strategies for pgoutput: any message, and conversations that a server could hold."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from hypothesis import strategies as st

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
from penstock.postgres.pgoutput import Decoder, Streaming

u32 = st.integers(0, 2**32 - 1)
i32 = st.integers(-(2**31), 2**31 - 1)
times = st.integers(-(2**63), 2**63 - 1)
any_lsns = st.integers(0, 2**64 - 1).map(Lsn)
lsns = st.integers(1, 2**64 - 1).map(Lsn)
names = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12)
schemas = st.just("pg_catalog") | names.filter(bool)

values: st.SearchStrategy[Value] = st.one_of(
    st.none(), st.just(UNCHANGED), st.binary(max_size=20), st.binary(max_size=20).map(Binary)
)
rows: st.SearchStrategy[Row] = st.lists(values, max_size=5).map(tuple)
columns = st.builds(Column, st.booleans(), names, u32, i32)


@dataclass(frozen=True)
class Options:
    """A pair that a server accepts."""

    protocol_version: int
    streaming: Streaming

    def decoder(self, *, in_stream: bool = False) -> Decoder:
        decoder = Decoder(self.protocol_version, self.streaming)
        if in_stream:
            decoder.decode(b"S\0\0\0\1\1")
        return decoder


EVERY_OPTIONS = (
    Options(1, "off"),
    Options(2, "off"),
    Options(2, "on"),
    Options(3, "off"),
    Options(3, "on"),
    Options(4, "off"),
    Options(4, "on"),
    Options(4, "parallel"),
)


@cache  # to build a strategy costs more than to draw from it
def changes(xids: st.SearchStrategy[int | None]) -> st.SearchStrategy[Message]:
    """What stands in a transaction: with `xids` of None outside chunks, of numbers inside."""
    nothing = st.none()
    return st.one_of(
        st.builds(
            Relation,
            oid=u32,
            namespace=schemas,
            name=names,
            replica_identity=st.sampled_from("dnfi"),
            columns=st.lists(columns, max_size=4).map(tuple),
            xid=xids,
        ),
        st.builds(Type, oid=u32, namespace=schemas, name=names, xid=xids),
        st.builds(Insert, relation_oid=u32, new=rows, xid=xids),
        st.builds(Update, relation_oid=u32, old_key=nothing, old_row=nothing, new=rows, xid=xids),
        st.builds(Update, relation_oid=u32, old_key=rows, old_row=nothing, new=rows, xid=xids),
        st.builds(Update, relation_oid=u32, old_key=nothing, old_row=rows, new=rows, xid=xids),
        st.builds(Delete, relation_oid=u32, old_key=rows, old_row=nothing, xid=xids),
        st.builds(Delete, relation_oid=u32, old_key=nothing, old_row=rows, xid=xids),
        st.builds(
            Truncate,
            cascade=st.booleans(),
            restart_identity=st.booleans(),
            relation_oids=st.lists(u32, max_size=4).map(tuple),
            xid=xids,
        ),
        st.builds(
            LogicalMessage,
            transactional=st.booleans(),
            lsn=any_lsns,
            prefix=names,
            content=st.binary(max_size=20),
            xid=xids,
        ),
        st.builds(Origin, origin_lsn=any_lsns, name=names),
    )


@cache
def messages(options: Options, *, in_stream: bool) -> st.SearchStrategy[Message]:
    """Every message that may come next, given the options and whether a chunk is open."""
    if in_stream:
        return changes(u32) | st.builds(StreamStop)
    kinds: list[st.SearchStrategy[Message]] = [
        changes(st.none()),
        st.builds(Begin, final_lsn=lsns, committed_us=times, xid=u32),
        st.builds(Commit, lsn=lsns, end_lsn=lsns, committed_us=times),
    ]
    if options.streaming != "off":
        kinds += [
            st.builds(StreamStart, xid=u32, first=st.booleans()),
            st.builds(StreamCommit, xid=u32, lsn=lsns, end_lsn=lsns, committed_us=times),
            st.builds(StreamAbort, xid=u32, subxid=u32, abort_lsn=any_lsns, aborted_us=times)
            if options.streaming == "parallel"
            else st.builds(StreamAbort, xid=u32, subxid=u32),
        ]
    if options.protocol_version >= 3:
        prepared = {"lsn": lsns, "end_lsn": lsns, "prepared_us": times, "xid": u32, "gid": names}
        kinds += [
            st.builds(BeginPrepare, **prepared),
            st.builds(Prepare, **prepared),
            st.builds(
                CommitPrepared, lsn=lsns, end_lsn=lsns, committed_us=times, xid=u32, gid=names
            ),
            st.builds(
                RollbackPrepared,
                prepare_end_lsn=lsns,
                rollback_end_lsn=lsns,
                prepared_us=times,
                rolled_back_us=times,
                xid=u32,
                gid=names,
            ),
        ]
        if options.streaming != "off":
            kinds.append(st.builds(StreamPrepare, **prepared))
    return st.one_of(kinds)


@st.composite
def conversations(draw: st.DrawFn, options: Options) -> list[Message]:
    """Messages in an order that keeps to the rules of chunks."""
    said: list[Message] = []
    in_stream = False
    for _ in range(draw(st.integers(0, 8))):
        message = draw(messages(options, in_stream=in_stream))
        said.append(message)
        if isinstance(message, StreamStart | StreamStop):
            in_stream = isinstance(message, StreamStart)
    return said
