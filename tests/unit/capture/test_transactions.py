"""From fragments to transactions: what belongs together, what was rolled back, what describes it.

All of it in memory and all of it by way of the disk: it must not make a difference (M3.6).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import ProtocolViolation
from penstock.lsn import Lsn
from penstock.postgres.messages import (
    Column,
    Delete,
    Insert,
    LogicalMessage,
    Message,
    Origin,
    Relation,
    Truncate,
    Type,
    Update,
)
from penstock.postgres.pgoutput import Decoder
from penstock.postgres.transaction import Transaction
from support.building import ALWAYS, NEVER, Building, build
from support.stories import tell
from support.wire import (
    ITEMS,
    begin,
    commit,
    insert,
    keepalive,
    relation,
    stream_abort,
    stream_commit,
    stream_start,
    stream_stop,
    transaction,
    xlog,
)

OTHERS = Relation(2000, "public", "others", "d", (Column(True, "id", 23, -1),))
WIDER = replace(ITEMS, columns=(*ITEMS.columns, Column(False, "note", 25, -1)))


Build: TypeAlias = Callable[[Iterable[bytes]], list[Transaction]]


@pytest.fixture(params=[NEVER, ALWAYS], ids=["in memory", "on disk"])
def built(request: pytest.FixtureRequest) -> Build:
    return partial(build, memory_bytes=request.param)


def decoded(transaction: Transaction) -> list[Message]:
    """As a reader of the log does it: in the form without xids."""
    decoder = Decoder(1, "off")
    return [decoder.decode(payload) for payload in transaction.payloads]


def inserted(transaction: Transaction) -> list[str]:
    return [
        (message.new[0] or b"").decode()  # type: ignore[union-attr]
        for message in decoded(transaction)
        if isinstance(message, Insert)
    ]


def chunk(xid: int, *changes: bytes, first: bool = False) -> list[bytes]:
    return [stream_start(xid, first=first), *changes, stream_stop()]


def test_a_transaction_is_handed_out_at_its_commit_with_the_end_of_the_record() -> None:
    building = Building()
    *before, last = transaction(0x200, "a", "b", xid=7)
    assert building.feed([keepalive(0x100), *before]) == []
    (done,) = building.feed([last])
    assert (done.xid, done.commit_lsn) == (7, 0x200)
    assert decoded(done) == [ITEMS, Insert(1000, (b"a",)), Insert(1000, (b"b",))]


def test_a_relation_is_described_in_every_transaction_that_uses_it(built: Build) -> None:
    # The server describes it once; a reader may start at any transaction.
    messages = [
        *transaction(0x200, "a"),
        begin(0x2F8),
        insert("b"),
        insert("c"),
        commit(0x300),
    ]
    first, second = built(messages)
    assert decoded(first)[0] == decoded(second)[0] == ITEMS
    assert inserted(second) == ["b", "c"]
    assert len(second.payloads) == 3, "and once in each"


def test_interleaved_streamed_transactions_are_kept_apart(built: Build) -> None:
    # M3.5
    messages = [
        *chunk(7, xlog(replace(ITEMS, xid=7)), insert("7a", xid=7), first=True),
        *chunk(8, xlog(replace(ITEMS, xid=8)), insert("8a", xid=8), first=True),
        *chunk(7, insert("7b", xid=7)),
        *transaction(0x200, "whole", xid=9),
        *chunk(8, insert("8b", xid=8)),
        stream_commit(8, 0x300),
        *chunk(7, insert("7c", xid=7)),
        stream_commit(7, 0x400),
    ]
    done = built(messages)
    assert [(t.xid, t.commit_lsn, inserted(t)) for t in done] == [
        (9, 0x200, ["whole"]),
        (8, 0x300, ["8a", "8b"]),
        (7, 0x400, ["7a", "7b", "7c"]),
    ]


def test_an_aborted_subtransaction_takes_back_only_its_own_changes(built: Build) -> None:
    # M3.5
    messages = [
        *chunk(
            7,
            xlog(replace(ITEMS, xid=7)),
            insert("kept", xid=7),
            insert("gone", xid=8),
            insert("sub", xid=9),
            first=True,
        ),
        stream_abort(7, 8),
        *chunk(7, insert("later", xid=7), insert("gone too", xid=10)),
        stream_abort(7, 10),
        stream_commit(7, 0x200),
    ]
    (done,) = built(messages)
    assert inserted(done) == ["kept", "sub", "later"]


def test_an_aborted_subtransaction_of_another_transaction_is_not_touched(built: Build) -> None:
    # M3.5
    messages = [
        relation(),
        *chunk(7, insert("a", xid=7), insert("b", xid=9), first=True),
        *chunk(8, insert("c", xid=8), first=True),
        stream_abort(8, 9),
        stream_commit(7, 0x200),
        stream_commit(8, 0x300),
    ]
    assert [inserted(t) for t in built(messages)] == [["a", "b"], ["c"]]


def test_an_aborted_transaction_disappears_and_the_others_stay() -> None:
    # M3.5
    messages = [
        relation(),
        *chunk(7, insert("a", xid=7), first=True),
        *chunk(8, insert("b", xid=8), first=True),
        stream_abort(7),
        stream_commit(8, 0x300),
    ]
    building = Building()
    assert [inserted(t) for t in building.feed(messages)] == [["b"]]
    assert building.builder.open_transactions == 0
    assert building.builder.memory_bytes == 0, "and nothing of it stays in memory"


def test_an_abort_of_what_was_never_seen_is_tolerated(built: Build) -> None:
    # Servers 15 and 16 send those.
    messages = [
        stream_abort(7),
        stream_abort(7, 9),
        *chunk(8, first=True),
        stream_abort(8, 10),
        stream_abort(8),
        *transaction(0x200, "a"),
    ]
    assert [inserted(t) for t in built(messages)] == [["a"]]


def test_a_streamed_transaction_without_changes_still_commits(built: Build) -> None:
    # M1.2: it moves progress.
    messages = [*chunk(7, first=True), stream_commit(7, 0x200), *chunk(8), stream_commit(9, 0x300)]
    assert [(t.xid, t.commit_lsn, t.payloads) for t in built(messages)] == [
        (7, 0x200, ()),
        (9, 0x300, ()),
    ]


def test_a_relation_carried_by_an_aborted_transaction_stays_in_force(built: Build) -> None:
    # M3.5
    messages = [
        *transaction(0x200, "a"),
        *chunk(7, xlog(replace(WIDER, xid=7)), first=True),
        stream_abort(7),
        begin(0x2F8),
        xlog(Insert(1000, (b"b", b"note"))),
        commit(0x300),
    ]
    _, second = built(messages)
    assert decoded(second) == [WIDER, Insert(1000, (b"b", b"note"))]


def test_a_relation_that_changes_within_a_transaction_stands_before_its_own_changes(
    built: Build,
) -> None:
    # M3.5, M4.6
    messages = [
        begin(0x1F8),
        relation(ITEMS),
        insert("a"),
        relation(WIDER),
        xlog(Insert(1000, (b"b", None))),
        relation(ITEMS),
        insert("c"),
        commit(0x200),
    ]
    (done,) = built(messages)
    assert decoded(done) == [
        ITEMS,
        Insert(1000, (b"a",)),
        WIDER,
        Insert(1000, (b"b", None)),
        ITEMS,
        Insert(1000, (b"c",)),
    ]


def test_a_relation_is_resolved_at_receipt_and_not_at_commit(built: Build) -> None:
    # M3.5: another transaction changes the description while this one is open.
    messages = [
        *chunk(7, xlog(replace(ITEMS, xid=7)), insert("a", xid=7), first=True),
        begin(0x1F8, xid=8),
        relation(WIDER),
        xlog(Insert(1000, (b"w", None))),
        commit(0x200),
        stream_commit(7, 0x300),
    ]
    _, streamed = built(messages)
    assert decoded(streamed) == [ITEMS, Insert(1000, (b"a",))]


def test_the_same_description_again_is_not_repeated(built: Build) -> None:
    # It comes after every ANALYZE and every abort.
    messages = [begin(), relation(), insert("a"), relation(), insert("b"), commit(0x200)]
    (done,) = built(messages)
    assert decoded(done) == [ITEMS, Insert(1000, (b"a",)), Insert(1000, (b"b",))]


def test_a_relation_without_changes_is_left_out(built: Build) -> None:
    (done,) = built([begin(), relation(), relation(OTHERS), insert("a"), commit(0x200)])
    assert decoded(done) == [ITEMS, Insert(1000, (b"a",))]


@pytest.mark.parametrize(
    "change",
    [
        Insert(1000, (b"a",)),
        Update(1000, None, None, (b"a",)),
        Delete(1000, (b"a",), None),
        Truncate(False, False, (2000, 1000)),
    ],
    ids=lambda change: type(change).__name__,
)
def test_a_change_of_a_relation_that_was_not_described_is_refused(
    built: Build, change: Message
) -> None:
    with pytest.raises(ProtocolViolation, match="relation 1000, which was not described"):
        built([begin(), relation(OTHERS), xlog(change)])


def test_a_new_connection_knows_no_relations(built: Build) -> None:
    built(transaction(0x200, "a"))
    with pytest.raises(ProtocolViolation, match="not described"):
        built([begin(), insert("a")])


def test_a_change_outside_a_transaction_is_refused(built: Build) -> None:
    with pytest.raises(ProtocolViolation, match="an unexpected message"):
        built([relation(), insert("a")])


def test_a_change_between_two_chunks_is_refused(built: Build) -> None:
    with pytest.raises(ProtocolViolation, match="an unexpected message"):
        built([relation(), *chunk(7, first=True), insert("a")])


def test_a_truncate_of_several_tables_stands_behind_all_their_descriptions(built: Build) -> None:
    # M4.6
    both = Truncate(True, True, (1000, 2000))
    whole = [begin(), relation(), relation(OTHERS), insert("a"), xlog(both), commit(0x200)]
    streamed = [
        relation(),
        relation(OTHERS),
        *chunk(7, insert("a", xid=7), xlog(replace(both, xid=7)), first=True),
        stream_commit(7, 0x200),
    ]
    for messages in (whole, streamed):
        (done,) = built(messages)
        assert decoded(done) == [ITEMS, Insert(1000, (b"a",)), OTHERS, both]


def test_origins_types_and_logical_messages_are_left_out(built: Build) -> None:
    message = LogicalMessage(True, Lsn(0x150), "prefix", b"content")
    (done,) = built(
        [
            begin(),
            xlog(Origin(Lsn(1), "elsewhere")),
            xlog(Type(77, "public", "mood")),
            relation(),
            xlog(message),
            insert("a"),
            commit(0x200),
            xlog(replace(message, transactional=False)),
        ]
    )
    assert decoded(done) == [ITEMS, Insert(1000, (b"a",))]


# --- streamed or not ----------------------------------------------------------------------------

TOP, SUBS = 7, (8, 9, 10)
changes = st.lists(
    st.tuples(
        st.sampled_from((TOP, *SUBS)),
        st.one_of(
            st.builds(Insert, st.sampled_from((1000, 2000)), st.tuples(st.binary(max_size=3))),
            st.builds(
                Truncate,
                st.booleans(),
                st.booleans(),
                st.sampled_from([(1000,), (1000, 2000), (2000, 1000)]),
            ),
            st.sampled_from([WIDER, ITEMS, OTHERS]),
        ),
    ),
    max_size=12,
)


@given(
    changes=changes,
    aborted=st.sets(st.sampled_from(SUBS)),
    cuts=st.sets(st.integers(0, 12)),
    other=st.booleans(),
    memory_bytes=st.sampled_from([ALWAYS, 100, NEVER]),
)
def test_the_same_transaction_streamed_or_whole_gives_the_same_payloads(
    changes: list[tuple[int, Insert | Truncate | Relation]],
    aborted: set[int],
    cuts: set[int],
    other: bool,
    memory_bytes: int,
) -> None:
    # M3.5, M3.6: after a reconnect it may come in the other form.
    described = [relation(ITEMS), relation(OTHERS)]
    # What was rolled back is not in the whole form; descriptions are, wherever they were carried.
    survivors = [
        xlog(message)
        for xid, message in changes
        if xid not in aborted or isinstance(message, Relation)
    ]
    whole = [*described, begin(xid=TOP), *survivors, commit(0x200)]
    streamed = [*described, stream_start(TOP)]
    for n, (xid, message) in enumerate(changes):
        if n in cuts:
            streamed.append(stream_stop())
            if other:
                streamed += chunk(99, insert("other", xid=99))
            streamed.append(stream_start(TOP, first=False))
        streamed.append(xlog(replace(message, xid=xid)))
    streamed.append(stream_stop())
    streamed += [stream_abort(TOP, xid) for xid in sorted(aborted, reverse=True)]
    streamed.append(stream_commit(TOP, 0x200))
    assert build(streamed, memory_bytes=memory_bytes) == build(whole)


# --- against the truth --------------------------------------------------------------------------


@given(seed=st.integers(0, 2**32), memory_bytes=st.sampled_from([ALWAYS, 300, NEVER]))
def test_what_committed_comes_whole_once_and_in_order(seed: int, memory_bytes: int) -> None:
    # M3.6
    chance = random.Random(seed)
    story = tell(chance, transactions=20)
    assert build(*story.runs(chance), memory_bytes=memory_bytes) == story.committed


@given(seed=st.integers(0, 2**32))
def test_what_the_destination_has_is_not_handed_out_again(seed: int) -> None:
    # M3.6: the server sends more than was asked for, whole or streamed.
    chance = random.Random(seed)
    story = tell(chance, transactions=20)
    durable_lsn = chance.choice([Lsn(0), *(t.commit_lsn for t in story.committed)])
    found = build(*story.runs(chance), memory_bytes=ALWAYS, durable_lsn=durable_lsn)
    assert found == [t for t in story.committed if t.commit_lsn > durable_lsn]
