"""The pgoutput decoder: what servers really sent, what any message becomes, and bad bytes.

The REAL_ payloads were taken from PostgreSQL 18.4 (the parallel abort and its neighbours from
16.14) with `pg_logical_slot_peek_binary_changes` at `logical_decoding_work_mem = 64kB`; what they
must say comes from the SQL that caused them, given beside them.
"""

from __future__ import annotations

import copy
import pickle
from datetime import UTC, datetime
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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
    RollbackPrepared,
    StreamAbort,
    StreamCommit,
    StreamPrepare,
    StreamStart,
    StreamStop,
    Truncate,
    Type,
    Update,
    moment,
)
from penstock.postgres.pgoutput import Decoder, Streaming
from support.pgoutput_encoder import counted, encode, int2, int4, int8, string
from support.pgoutput_strategies import EVERY_OPTIONS, Options, conversations, messages
from support.repeats import repeats

V1 = Options(1, "off")
STREAMED = Options(2, "on")
TWO_PHASE = Options(3, "on")
PARALLEL = Options(4, "parallel")
every_options = pytest.mark.parametrize(
    "options", EVERY_OPTIONS, ids=lambda o: f"v{o.protocol_version}-{o.streaming}"
)
in_or_out = st.booleans()
# Each runs once for every pair of options. A busy machine is no reason to fail.
examples = settings(max_examples=repeats(40, soak=100), deadline=None)


def violation(decoder: Decoder, payload: bytes) -> ProtocolViolation:
    """The refusal of `payload`, after checking what holds for every refusal."""
    before = decoder.in_stream
    with pytest.raises(ProtocolViolation) as caught:
        decoder.decode(payload)
    error = caught.value
    facts = vars(error)
    assert 0 <= facts["byte_pos"] <= len(payload)
    assert facts["kind"] == (chr(payload[0]) if payload else None)
    assert decoder.in_stream is before
    return error


# --- what servers sent --------------------------------------------------------------------------

ITEM, AUDIT, PAIR = 0x400A, 0x4012, 0x4017
COMMITTED_US = 0x000303560F7D2D85  # the server's clock at the commit
AFAR_US = 0x00001F5DEF466A88  # set by the SQL below: 2001-02-03 04:05:06.789+00

# create type shop.mood as enum ('sad', 'happy'); create domain shop.pos as int;
# create table shop.item (id int primary key, name varchar(20), big text, m shop.mood, q shop.pos,
#                         tags int[]);
# create table shop.audit (id int, note text);  -- replica identity full
# create table shop.pair (a int, b int, c numeric(10,2));  -- identity: unique index on (a, b)
REAL_OUTSIDE_CHUNKS: list[tuple[str, Message]] = [
    (
        "42000000000172f528000303560f7d2d85000002fc",
        Begin(final_lsn=Lsn.parse("0/172F528"), committed_us=COMMITTED_US, xid=764),
    ),
    (
        "590000400273686f70006d6f6f6400",
        Type(oid=0x4002, namespace="shop", name="mood"),
    ),
    (
        # The domain: its own oid, its base type's name, and "" for pg_catalog.
        "590000400800696e743400",
        Type(oid=0x4008, namespace="pg_catalog", name="int4"),
    ),
    (
        (
            "520000400a73686f70006974656d006400060169640000000017ffffffff006e616d6500000004130000001800"
            "6269670000000019ffffffff006d0000004002ffffffff00710000004008ffffffff007461677300000003efff"
            "ffffff"
        ),
        Relation(
            oid=ITEM,
            namespace="shop",
            name="item",
            replica_identity="d",
            columns=(
                Column(in_identity=True, name="id", type_oid=23, type_modifier=-1),
                Column(in_identity=False, name="name", type_oid=1043, type_modifier=24),
                Column(in_identity=False, name="big", type_oid=25, type_modifier=-1),
                Column(in_identity=False, name="m", type_oid=0x4002, type_modifier=-1),
                Column(in_identity=False, name="q", type_oid=0x4008, type_modifier=-1),
                Column(in_identity=False, name="tags", type_oid=1007, type_modifier=-1),
            ),
        ),
    ),
    (
        "520000401273686f70006175646974006600020169640000000017ffffffff016e6f74650000000019ffffffff",
        Relation(
            oid=AUDIT,
            namespace="shop",
            name="audit",
            replica_identity="f",
            columns=(
                Column(in_identity=True, name="id", type_oid=23, type_modifier=-1),
                Column(in_identity=True, name="note", type_oid=25, type_modifier=-1),
            ),
        ),
    ),
    (
        (
            "520000401773686f7000706169720069000301610000000017ffffffff01620000000017ffffffff0063000000"
            "06a4000a0006"
        ),
        Relation(
            oid=PAIR,
            namespace="shop",
            name="pair",
            replica_identity="i",
            columns=(
                Column(in_identity=True, name="a", type_oid=23, type_modifier=-1),
                Column(in_identity=True, name="b", type_oid=23, type_modifier=-1),
                Column(in_identity=False, name="c", type_oid=1700, type_modifier=(10 << 16) + 6),
            ),
        ),
    ),
    (  # insert into shop.audit values (1, null)
        "49000040124e00027400000001316e",
        Insert(relation_oid=AUDIT, new=(b"1", None)),
    ),
    (  # update shop.item set name = 'tea' where id = 1, whose `big` is TOASTed
        (
            "550000400a4e00067400000001317400000003746561757400000005686170707974000000013574000000057b"
            "312c327d"
        ),
        Update(
            relation_oid=ITEM,
            old_key=None,
            old_row=None,
            new=(b"1", b"tea", UNCHANGED, b"happy", b"5", b"{1,2}"),
        ),
    ),
    (  # update shop.item set id = 3 where id = 2
        "550000400a4b00067400000001326e6e6e6e6e4e00067400000001336e6e6e6e6e",
        Update(
            relation_oid=ITEM,
            old_key=(b"2", None, None, None, None, None),
            old_row=None,
            new=(b"3", None, None, None, None, None),
        ),
    ),
    (  # update shop.audit set note = 'n' where id = 1
        "55000040124f00027400000001316e4e000274000000013174000000016e",
        Update(relation_oid=AUDIT, old_key=None, old_row=(b"1", None), new=(b"1", b"n")),
    ),
    (  # delete from shop.pair where (a, b, c) = (1, 9, 3.5)
        "44000040174b00037400000001317400000001396e",
        Delete(relation_oid=PAIR, old_key=(b"1", b"9", None), old_row=None),
    ),
    (  # delete from shop.audit where id = 2, whose note is '' and not null
        "44000040124f00027400000001327400000000",
        Delete(relation_oid=AUDIT, old_key=None, old_row=(b"2", b"")),
    ),
    (  # the first update above once more, with the option `binary`
        (
            "550000400a4e00066200000004000000016200000003746561756200000005686170707962000000040000000562"
            "00000024000000010000000000000017000000020000000100000004000000010000000400000002"
        ),
        Update(
            relation_oid=ITEM,
            old_key=None,
            old_row=None,
            new=(
                Binary(int4(1)),
                Binary(b"tea"),
                UNCHANGED,
                Binary(b"happy"),
                Binary(int4(5)),
                Binary(b"".join(map(int4, (1, 0, 23, 2, 1, 4, 1, 4, 2)))),
            ),
        ),
    ),
    (  # truncate shop.item, shop.audit restart identity cascade
        "5400000002030000400a00004012",
        Truncate(cascade=True, restart_identity=True, relation_oids=(ITEM, AUDIT)),
    ),
    (  # truncate shop.pair
        "54000000010000004017",
        Truncate(cascade=False, restart_identity=False, relation_oids=(PAIR,)),
    ),
    (  # select pg_logical_emit_message(true, 'pfx', 'hello')
        "4d01000000000172f528706678000000000568656c6c6f",
        LogicalMessage(
            transactional=True, lsn=Lsn.parse("0/172F528"), prefix="pfx", content=b"hello"
        ),
    ),
    (  # select pg_logical_emit_message(false, 'now', '\x00ff'::bytea)
        "4d00000000000172f5906e6f77000000000200ff",
        LogicalMessage(
            transactional=False, lsn=Lsn.parse("0/172F590"), prefix="now", content=b"\x00\xff"
        ),
    ),
    (
        "4300000000000172f528000000000172f558000303560f7d2d85",
        Commit(
            lsn=Lsn.parse("0/172F528"),
            end_lsn=Lsn.parse("0/172F558"),
            committed_us=COMMITTED_US,
        ),
    ),
    (  # select pg_replication_origin_xact_setup('A/B', '2001-02-03 04:05:06.789+00')
        "4f0000000a0000000b6166617200",
        Origin(origin_lsn=Lsn.parse("A/B"), name="afar"),
    ),
]


@pytest.mark.parametrize(("payload", "message"), REAL_OUTSIDE_CHUNKS)
@every_options
def test_what_a_server_sent_is_read_alike_in_every_protocol_version(
    options: Options, payload: str, message: Message
) -> None:  # M3.5
    assert options.decoder().decode(bytes.fromhex(payload)) == message


# begin; <an origin as above>; insert into shop.audit ...;
# savepoint a; insert into shop.audit ...; rollback to a;
# select pg_logical_emit_message(true, 'streamed', 'm');
# insert into shop.pair values (5,6,7); update shop.pair set a = 8; delete from shop.pair;
# truncate shop.pair; ...; commit;
REAL_STREAM: list[tuple[str, Message]] = [
    ("530000030101", StreamStart(xid=769, first=True)),
    ("4f00000000000000006166617200", Origin(origin_lsn=Lsn(0), name="afar")),
    ("45", StreamStop()),
    ("530000030200", StreamStart(xid=770, first=False)),
    (
        (
            "52000003020000401273686f70006175646974006600020169640000000017ffffffff016e6f74650000000019"
            "ffffffff"
        ),
        Relation(
            oid=AUDIT,
            namespace="shop",
            name="audit",
            replica_identity="f",
            columns=(
                Column(in_identity=True, name="id", type_oid=23, type_modifier=-1),
                Column(in_identity=True, name="note", type_oid=25, type_modifier=-1),
            ),
            xid=770,
        ),
    ),
    (
        "4900000303000040124e000274000000033234377400000064" + "62" * 100,
        Insert(relation_oid=AUDIT, new=(b"247", b"b" * 100), xid=771),
    ),
    ("45", StreamStop()),
    ("410000030200000303", StreamAbort(xid=770, subxid=771)),
    ("530000030200", StreamStart(xid=770, first=False)),
    (
        "4d0000030201000000000179289073747265616d656400000000016d",
        LogicalMessage(
            transactional=True,
            lsn=Lsn.parse("0/1792890"),
            prefix="streamed",
            content=b"m",
            xid=770,
        ),
    ),
    (
        "4900000304000040174e00037400000001357400000001367400000004372e3030",
        Insert(relation_oid=PAIR, new=(b"5", b"6", b"7.00"), xid=772),
    ),
    (
        (
            "5500000304000040174b00037400000001357400000001366e4e00037400000001387400000001367400000004"
            "372e3030"
        ),
        Update(
            relation_oid=PAIR,
            old_key=(b"5", b"6", None),
            old_row=None,
            new=(b"8", b"6", b"7.00"),
            xid=772,
        ),
    ),
    (
        "4400000304000040174b00037400000001387400000001366e",
        Delete(relation_oid=PAIR, old_key=(b"8", b"6", None), old_row=None, xid=772),
    ),
    (
        "5400000304000000010000004017",
        Truncate(cascade=False, restart_identity=False, relation_oids=(PAIR,), xid=772),
    ),
    ("45", StreamStop()),
    (
        "63000003020000000000017c206000000000017c2138000303560f7d71cb",
        StreamCommit(
            xid=770,
            lsn=Lsn.parse("0/17C2060"),
            end_lsn=Lsn.parse("0/17C2138"),
            committed_us=0x000303560F7D71CB,
        ),
    ),
    (
        "49000040124e000274000000023230740000000170",
        Insert(relation_oid=AUDIT, new=(b"20", b"p")),
    ),
]


@pytest.mark.parametrize(
    "options", [Options(2, "on"), Options(3, "on"), Options(4, "on")], ids=["v2", "v3", "v4"]
)
def test_chunks_that_a_server_streamed_carry_the_xid_of_each_change(options: Options) -> None:
    # M3.5: also in protocol 4, `streaming 'on'` sends the short Stream Abort.
    decoder = options.decoder()
    assert [decoder.decode(bytes.fromhex(payload)) for payload, _ in REAL_STREAM] == [
        message for _, message in REAL_STREAM
    ]


def test_a_streamed_message_of_a_savepoint_has_the_xid_of_the_top_transaction() -> None:
    # M3.5. Alike on 15 and 18: begin; insert ...; savepoint a;
    # select pg_logical_emit_message(true, 'in-sub', 'm'); insert ...; rollback to a; ...
    # The abort names 765, so it reaches the savepoint's rows, but not its message.
    decoder = STREAMED.decoder()
    start, logical, insert, _, abort = (
        decoder.decode(bytes.fromhex(payload))
        for payload in (
            "53000002fc01",
            "4d000002fc01000000000172e230696e2d73756200000000016d",
            "49000002fd000040124e00027400000001317400000064" + "62" * 100,
            "45",
            "41000002fc000002fd",
        )
    )
    assert start == StreamStart(xid=764, first=True)
    assert isinstance(logical, LogicalMessage)
    assert logical.xid == 764
    assert isinstance(insert, Insert)
    assert insert.xid == 765
    assert abort == StreamAbort(xid=764, subxid=765)


REAL_PARALLEL_ABORT = bytes.fromhex("41000002ec000002ed000000000151cc40000303560f648055")


def test_only_the_streaming_option_says_that_an_abort_has_its_place_and_time() -> None:  # M3.5
    abort = StreamAbort(
        xid=748, subxid=749, abort_lsn=Lsn.parse("0/151CC40"), aborted_us=0x000303560F648055
    )
    assert PARALLEL.decoder().decode(REAL_PARALLEL_ABORT) == abort
    assert abort.aborted_at == moment(0x000303560F648055)
    assert StreamAbort(xid=1, subxid=1).aborted_at is None

    assert vars(violation(Options(4, "on").decoder(), REAL_PARALLEL_ABORT))["byte_pos"] == 9
    assert vars(violation(PARALLEL.decoder(), REAL_PARALLEL_ABORT[:9]))["byte_pos"] == 9


REAL_TWO_PHASE: list[tuple[str, Message]] = [
    (
        "6200000000017f11c800000000017f12c0000303560f7d7cf6000003066769642d3100",
        BeginPrepare(
            lsn=Lsn.parse("0/17F11C8"),
            end_lsn=Lsn.parse("0/17F12C0"),
            prepared_us=0x000303560F7D7CF6,
            xid=774,
            gid="gid-1",
        ),
    ),
    (
        "500000000000017f11c800000000017f12c0000303560f7d7cf6000003066769642d3100",
        Prepare(
            lsn=Lsn.parse("0/17F11C8"),
            end_lsn=Lsn.parse("0/17F12C0"),
            prepared_us=0x000303560F7D7CF6,
            xid=774,
            gid="gid-1",
        ),
    ),
    (
        "4b0000000000017f12c000000000017f12f8000303560f7d7ec9000003066769642d3100",
        CommitPrepared(
            lsn=Lsn.parse("0/17F12C0"),
            end_lsn=Lsn.parse("0/17F12F8"),
            committed_us=0x000303560F7D7EC9,
            xid=774,
            gid="gid-1",
        ),
    ),
    (
        "720000000000017f143000000000017f1468000303560f7d814d000303560f7d8288000003076769642d3200",
        RollbackPrepared(
            prepare_end_lsn=Lsn.parse("0/17F1430"),
            rollback_end_lsn=Lsn.parse("0/17F1468"),
            prepared_us=0x000303560F7D814D,
            rolled_back_us=0x000303560F7D8288,
            xid=775,
            gid="gid-2",
        ),
    ),
    (
        "700000000000018204a800000000018205a0000303560f7d8fd8000003086769642d3300",
        StreamPrepare(
            lsn=Lsn.parse("0/18204A8"),
            end_lsn=Lsn.parse("0/18205A0"),
            prepared_us=0x000303560F7D8FD8,
            xid=776,
            gid="gid-3",
        ),
    ),
]


@pytest.mark.parametrize(("payload", "message"), REAL_TWO_PHASE)
def test_two_phase_messages_of_a_server_are_read_from_protocol_3_on(
    payload: str, message: Message
) -> None:  # M3.5
    for options in (TWO_PHASE, Options(4, "on"), PARALLEL):
        assert options.decoder().decode(bytes.fromhex(payload)) == message
    for options in (V1, STREAMED):
        assert vars(violation(options.decoder(), bytes.fromhex(payload)))["byte_pos"] == 0


@pytest.mark.parametrize(
    "real", [payload for payload, _ in REAL_OUTSIDE_CHUNKS + REAL_TWO_PHASE + REAL_STREAM]
)
def test_the_encoder_writes_what_the_server_sent(real: str) -> None:
    expected = dict(REAL_OUTSIDE_CHUNKS + REAL_TWO_PHASE + REAL_STREAM)
    assert encode(expected[real]).hex() == real


# --- values and times ---------------------------------------------------------------------------


def test_unchanged_is_neither_null_nor_a_copy_of_itself() -> None:  # M4.6
    assert cast("object", UNCHANGED) is not None
    assert repr(UNCHANGED) == "UNCHANGED"
    assert pickle.loads(pickle.dumps(UNCHANGED)) is UNCHANGED
    assert copy.copy(UNCHANGED) is UNCHANGED
    assert copy.deepcopy([UNCHANGED])[0] is UNCHANGED


def test_the_four_kinds_of_value_are_told_apart() -> None:  # M4.6
    payload = b"I" + int4(1) + b"N" + int2(5) + b"n" + b"u" + b"t" + counted(b"")
    payload += b"t" + counted(b"\xff") + b"b" + counted(b"x")
    message = V1.decoder().decode(payload)
    assert message == Insert(1, (None, UNCHANGED, b"", b"\xff", Binary(b"x")))
    assert cast("object", Binary(b"x")) != b"x"


@examples
@given(options=st.sampled_from(EVERY_OPTIONS), data=st.data())
def test_messages_survive_pickling(options: Options, data: st.DataObject) -> None:
    message = data.draw(messages(options, in_stream=False))
    assert pickle.loads(pickle.dumps(message)) == message


def test_times_are_utc_and_exact_to_the_microsecond() -> None:
    commit = V1.decoder().decode(
        bytes.fromhex("4300000000000173128000000000017312c800001f5def466a88")
    )
    assert isinstance(commit, Commit)
    assert commit.committed_us == AFAR_US
    assert commit.committed_at == datetime(2001, 2, 3, 4, 5, 6, 789_000, tzinfo=UTC)
    assert Begin(Lsn(1), AFAR_US, 1).committed_at == commit.committed_at
    assert StreamCommit(1, Lsn(1), Lsn(1), AFAR_US).committed_at == commit.committed_at
    assert CommitPrepared(Lsn(1), Lsn(1), AFAR_US, 1, "").committed_at == commit.committed_at
    assert Prepare(Lsn(1), Lsn(1), AFAR_US, 1, "").prepared_at == commit.committed_at
    rollback = RollbackPrepared(Lsn(1), Lsn(1), AFAR_US, AFAR_US + 1, 1, "")
    assert rollback.prepared_at == commit.committed_at
    assert rollback.rolled_back_at == datetime(2001, 2, 3, 4, 5, 6, 789_001, tzinfo=UTC)


def test_a_commit_at_infinity_is_read_though_no_datetime_can_say_it() -> None:  # M4.6
    # select pg_replication_origin_xact_setup('A/C', 'infinity'): 15, 16 and 18 send this.
    begin = V1.decoder().decode(bytes.fromhex("4200000000017313107fffffffffffffff00000300"))
    assert begin == Begin(Lsn.parse("0/1731310"), 2**63 - 1, 768)
    assert isinstance(begin, Begin)
    assert begin.committed_at is None


@examples
@given(st.integers(-(2**63), 2**63 - 1))
def test_every_time_on_the_wire_is_a_datetime_or_none(time_us: int) -> None:
    at = moment(time_us)
    first, last = moment(-63_082_281_600_000_000), moment(252_455_615_999_999_999)
    assert first == datetime.min.replace(tzinfo=UTC)
    assert last == datetime.max.replace(tzinfo=UTC)
    assert (at is None) == (not -63_082_281_600_000_000 <= time_us <= 252_455_615_999_999_999)


# --- any message --------------------------------------------------------------------------------


@every_options
@examples
@given(data=st.data())
def test_any_conversation_is_read_back_as_it_was_said(
    options: Options, data: st.DataObject
) -> None:  # M3.5
    said = data.draw(conversations(options))
    decoder = options.decoder()
    assert [decoder.decode(encode(message)) for message in said] == said


@every_options
@examples
@given(data=st.data(), in_stream=in_or_out)
def test_every_prefix_of_a_message_is_refused(
    options: Options, data: st.DataObject, in_stream: bool
) -> None:
    in_stream &= options.streaming != "off"
    payload = encode(data.draw(messages(options, in_stream=in_stream)))
    decoder = options.decoder(in_stream=in_stream)
    for size in range(len(payload)):
        violation(decoder, payload[:size])


@every_options
@examples
@given(data=st.data(), in_stream=in_or_out, extra=st.binary(min_size=1, max_size=9))
def test_bytes_after_the_end_of_a_message_are_refused(
    options: Options, data: st.DataObject, in_stream: bool, extra: bytes
) -> None:
    in_stream &= options.streaming != "off"
    payload = encode(data.draw(messages(options, in_stream=in_stream)))
    error = violation(options.decoder(in_stream=in_stream), payload + extra)
    assert vars(error)["byte_pos"] == len(payload)


@every_options
@examples
@given(data=st.data(), in_stream=in_or_out)
def test_after_a_violation_the_decoder_goes_on_as_if_it_had_not_been(
    options: Options, data: st.DataObject, in_stream: bool
) -> None:
    in_stream &= options.streaming != "off"
    message = data.draw(messages(options, in_stream=in_stream))
    decoder = options.decoder(in_stream=in_stream)
    violation(decoder, encode(data.draw(messages(options, in_stream=in_stream))) + b"\0")
    assert decoder.decode(encode(message)) == message


# --- any bytes ----------------------------------------------------------------------------------


def decode_or_refuse(decoder: Decoder, payload: bytes) -> None:
    """Anything but a message or a `ProtocolViolation` fails the test that calls this."""
    before = decoder.in_stream
    try:
        message = decoder.decode(payload)
    except ProtocolViolation as error:
        facts = vars(error)
        assert 0 <= facts["byte_pos"] <= len(payload)
        assert facts["kind"] == (chr(payload[0]) if payload else None)
        assert decoder.in_stream is before
    else:
        # Nothing was guessed or dropped: the same bytes come out again. Exceptions are a schema
        # spelt out as "pg_catalog", for which servers write "", and names that are not UTF-8.
        assert encode(message) == payload or b"pg_catalog" in payload or "\\\\x" in repr(message)


@every_options
@examples
@given(data=st.data(), in_stream=in_or_out)
def test_a_message_with_one_wrong_byte_is_another_message_or_refused(
    options: Options, data: st.DataObject, in_stream: bool
) -> None:
    in_stream &= options.streaming != "off"
    payload = bytearray(encode(data.draw(messages(options, in_stream=in_stream))))
    payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    decode_or_refuse(options.decoder(in_stream=in_stream), bytes(payload))


@every_options
@examples
@given(kind=st.sampled_from(b"BCORYIUDTMSEcAbPKrp\0"), rest=st.binary(), in_stream=in_or_out)
def test_random_bytes_are_a_message_or_refused(
    options: Options, kind: int, rest: bytes, in_stream: bool
) -> None:
    in_stream &= options.streaming != "off"
    decode_or_refuse(options.decoder(in_stream=in_stream), bytes([kind]) + rest)
    decode_or_refuse(options.decoder(in_stream=in_stream), rest)


@pytest.mark.parametrize(
    "kind", [kind for kind in range(256) if kind not in b"BCORYIUDTMSEcAbPKrp"]
)
def test_an_unknown_kind_is_refused(kind: int) -> None:
    assert vars(violation(PARALLEL.decoder(), bytes([kind]) + bytes(40)))["byte_pos"] == 0


# --- bytes that claim too much, or what we do not know -------------------------------------------

HUGE, NEGATIVE = 0x7FFF_FFFF, -1
RELATION = b"R" + int4(1) + b"s\0t\0"


@pytest.mark.parametrize(
    ("payload", "byte_pos"),
    [
        pytest.param(b"", 0, id="empty"),
        pytest.param(b"I" + int4(1) + b"N" + int2(NEGATIVE), 6, id="negative values"),
        pytest.param(b"I" + int4(1) + b"N" + int2(2) + b"n", 6, id="too many values"),
        pytest.param(b"I" + int4(1) + b"N" + int2(1) + b"t" + int4(-1), 9, id="negative length"),
        pytest.param(b"I" + int4(1) + b"N" + int2(1) + b"t" + int4(HUGE), 9, id="huge text"),
        pytest.param(b"I" + int4(1) + b"N" + int2(1) + b"b" + int4(HUGE), 9, id="huge binary"),
        pytest.param(b"I" + int4(1) + b"N" + int2(1) + b"x", 8, id="unknown value"),
        pytest.param(b"I" + int4(1) + b"K" + int2(0), 5, id="insert of an old key"),
        pytest.param(b"U" + int4(1) + b"x" + int2(0), 5, id="update of an unknown row"),
        pytest.param(b"U" + int4(1) + b"K" + int2(0) + b"O" + int2(0), 8, id="two old rows"),
        pytest.param(b"U" + int4(1) + b"K" + int2(0), 8, id="update without the new row"),
        pytest.param(b"D" + int4(1) + b"N" + int2(0), 5, id="delete of a new row"),
        pytest.param(RELATION + b"d" + int2(NEGATIVE), 10, id="negative columns"),
        pytest.param(RELATION + b"d" + int2(0x7FFF) + bytes(99), 10, id="too many columns"),
        pytest.param(RELATION + b"x" + int2(0), 9, id="unknown replica identity"),
        pytest.param(RELATION + b"d" + int2(1) + b"\2c\0" + bytes(8), 12, id="column flags"),
        pytest.param(b"Y" + int4(1) + b"s\0t", 7, id="name without an end"),
        pytest.param(b"T" + int4(NEGATIVE) + b"\0", 1, id="negative relations"),
        pytest.param(b"T" + int4(HUGE) + b"\0" + int4(1), 1, id="huge truncate"),
        pytest.param(b"T" + int4(1) + b"\4" + int4(1), 5, id="truncate flags"),
        pytest.param(b"M\2" + int8(1) + b"p\0" + int4(0), 1, id="message flags"),
        pytest.param(b"M\0" + int8(1) + b"p\0" + int4(HUGE), 12, id="huge message"),
        pytest.param(b"M\0" + int8(1) + b"p\0" + int4(-1), 12, id="negative message"),
        pytest.param(b"C\1" + int8(1) * 3, 1, id="commit flags"),
        pytest.param(b"B" + int8(0) + int8(0) + int4(1), 1, id="begin at 0/0"),
        pytest.param(b"C\0" + int8(1) + int8(0) + int8(0), 10, id="commit ends at 0/0"),
        pytest.param(b"S" + int4(1) + b"\2", 5, id="first chunk is 2"),
        pytest.param(b"c" + int4(1) + b"\1" + int8(1) * 3, 5, id="stream commit flags"),
        pytest.param(b"P\1" + int8(1) * 3 + int4(1) + string("g"), 1, id="prepare flags"),
        pytest.param(b"p\1" + int8(1) * 3 + int4(1) + string("g"), 1, id="stream prepare flags"),
        pytest.param(b"K\1" + int8(1) * 3 + int4(1) + string("g"), 1, id="commit prepared flags"),
        pytest.param(b"r\1" + int8(1) * 4 + int4(1) + string("g"), 1, id="rollback prepared flags"),
    ],
)
def test_the_error_gives_the_byte_that_is_wrong(payload: bytes, byte_pos: int) -> None:
    error = violation(TWO_PHASE.decoder(), payload)
    assert vars(error)["byte_pos"] == byte_pos
    assert f"at byte {byte_pos} of a replication message" in str(error)


def test_an_error_holds_no_value_of_a_row() -> None:
    payload = b"I" + int4(1) + b"N" + int2(1) + b"t" + counted(b"hunter2") + b"!"
    error = violation(V1.decoder(), payload)
    assert "hunter2" not in str(error) + repr(vars(error))


# --- chunks -------------------------------------------------------------------------------------

BEGIN = encode(Begin(Lsn(1), 0, 1))
ENDS = {
    "nested start": encode(StreamStart(2, first=True)),
    "begin": BEGIN,
    "commit": encode(Commit(Lsn(1), Lsn(2), 0)),
    "stream commit": encode(StreamCommit(1, Lsn(1), Lsn(2), 0)),
    "stream abort": encode(StreamAbort(1, 1)),
    "begin prepare": encode(BeginPrepare(Lsn(1), Lsn(2), 0, 1, "g")),
    "prepare": encode(Prepare(Lsn(1), Lsn(2), 0, 1, "g")),
    "commit prepared": encode(CommitPrepared(Lsn(1), Lsn(2), 0, 1, "g")),
    "rollback prepared": encode(RollbackPrepared(Lsn(1), Lsn(2), 0, 0, 1, "g")),
    "stream prepare": encode(StreamPrepare(Lsn(1), Lsn(2), 0, 1, "g")),
}


@pytest.mark.parametrize("payload", ENDS.values(), ids=ENDS.keys())
def test_inside_a_chunk_nothing_begins_or_ends_but_the_chunk(payload: bytes) -> None:  # M3.5
    violation(TWO_PHASE.decoder(in_stream=True), payload)


def test_a_chunk_cannot_stop_before_it_started() -> None:
    decoder = STREAMED.decoder()
    violation(decoder, b"E")
    decoder.decode(b"S\0\0\0\1\1")
    decoder.decode(b"E")
    violation(decoder, b"E")


@pytest.mark.parametrize("protocol_version", [1, 2, 3, 4])
def test_a_server_that_streams_unasked_is_refused(protocol_version: int) -> None:  # M3.5
    decoder = Decoder(protocol_version, "off")
    for name in ("nested start", "stream commit", "stream abort", "stream prepare"):
        violation(decoder, ENDS[name])
    violation(decoder, b"E")


def test_a_broken_start_opens_no_chunk_and_a_broken_stop_closes_none() -> None:
    decoder = STREAMED.decoder()
    violation(decoder, b"S\0\0\0\1\1!")
    assert not decoder.in_stream
    assert decoder.decode(BEGIN) == Begin(Lsn(1), 0, 1)
    decoder.decode(b"S\0\0\0\1\1")
    violation(decoder, b"E!")
    assert decoder.in_stream


# --- options ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("protocol_version", "streaming"),
    [(0, "off"), (5, "off"), (-1, "on"), (4, "maybe"), (1, "on"), (2, "parallel"), (3, "parallel")],
)
def test_options_that_no_server_accepts_are_refused(protocol_version: int, streaming: str) -> None:
    with pytest.raises(ValueError, match=r"protocol version|streaming is"):
        Decoder(protocol_version, cast("Streaming", streaming))


@pytest.mark.parametrize("name", [b"na\xefve", b"\xed\xa0\x80", b"\xff\xfe"])
def test_a_name_that_is_not_utf8_is_given_with_its_bytes(name: bytes) -> None:  # M7.6
    """A database without an encoding has such names, and any role may make them."""
    shown = "".join(chr(byte) if byte < 128 else f"\\x{byte:02x}" for byte in name)
    column = b"\0" + name + b"\0" + int4(23) + int4(-1)
    relation = Decoder(1, "off").decode(
        b"R" + int4(1) + name + b"\0" + name + b"\0d" + int2(1) + column
    )
    assert isinstance(relation, Relation)
    assert (relation.namespace, relation.name, relation.columns[0].name) == (shown, shown, shown)
    kind = Decoder(1, "off").decode(b"Y" + int4(1) + name + b"\0" + name + b"\0")
    assert isinstance(kind, Type)
    assert kind.name == shown
