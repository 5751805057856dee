"""Fragments: how a stream of messages is cut."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import ProtocolViolation
from penstock.lsn import Lsn
from penstock.postgres.fragments import Abort, Description, Event, Fragment, Fragmenter, Signal
from penstock.postgres.messages import Insert, LogicalMessage, Truncate
from support import wire
from support.stories import tell


def feed(fragmenter: Fragmenter, *messages: bytes) -> list[Event]:
    return fragmenter.feed([memoryview(message) for message in messages])


def fragments(events: list[Event]) -> list[Fragment]:
    return [event for event in events if isinstance(event, Fragment)]


def test_a_small_transaction_is_one_full_fragment() -> None:  # M3.1
    (fragment,) = fragments(feed(Fragmenter(Lsn(0)), *wire.transaction(0x200, 1, 2, xid=5)))
    assert fragment.xid == 5
    assert fragment.has_begin
    assert fragment.commit is not None
    assert fragment.commit.lsn == 0x200
    assert fragment.changes == 2
    assert fragment.relations == {wire.ITEMS.oid}


def test_a_large_one_comes_as_start_middle_and_end() -> None:  # M3.1
    fragmenter = Fragmenter(Lsn(0))
    start = feed(fragmenter, wire.begin(0x1F8), wire.relation(), wire.insert(1))
    middle = feed(fragmenter, wire.insert(2), wire.insert(3))
    end = feed(fragmenter, wire.insert(4), wire.commit(0x200))
    shapes = [
        (fragment.has_begin, fragment.changes, fragment.commit is not None)
        for fragment in fragments(start + middle + end)
    ]
    assert shapes == [(True, 1, False), (False, 2, False), (False, 1, True)]


def test_a_fragment_knows_its_first_and_last_record() -> None:  # M3.1
    insert = Insert(wire.ITEMS.oid, (b"1",))
    run = [wire.begin(0x1F8), *(wire.xlog(insert, start=0x100 + n) for n in (1, 2, 3))]
    (fragment,) = fragments(feed(Fragmenter(Lsn(0)), *run))
    assert (fragment.first_lsn, fragment.last_lsn) == (0x101, 0x103)


def test_a_transaction_that_the_log_has_is_dropped_whole() -> None:  # M1.8
    fragmenter = Fragmenter(Lsn(0x200))
    assert fragments(feed(fragmenter, *wire.transaction(0x200, 1, 2))) == []
    # The next one starts exactly where that one ended.
    begin, *rest = wire.transaction(0x208, 3)
    assert begin == wire.begin(0x200)
    assert len(fragments(feed(fragmenter, begin, *rest))) == 1


def test_a_streamed_transaction_that_the_log_has_is_dropped_at_its_commit() -> None:  # M1.8
    fragmenter = Fragmenter(Lsn(0x200))
    feed(fragmenter, wire.stream_start(9), wire.insert(1, xid=9), wire.stream_stop())
    assert feed(fragmenter, wire.stream_commit(9, 0x200)) == [Abort(9, 9)]


def test_a_description_takes_effect_where_it_stands() -> None:
    events = feed(
        Fragmenter(Lsn(0)), wire.begin(0x1F8), wire.insert(1), wire.relation(), wire.insert(2)
    )
    assert [type(event) for event in events] == [Fragment, Description, Fragment]


def test_logical_messages_of_ours_are_signals_and_no_part_of_a_transaction() -> None:  # M4.6
    inside = LogicalMessage(True, Lsn(1), "app", b"x")
    streamed = replace(inside, xid=9)
    events = feed(
        Fragmenter(Lsn(0), signal_prefix="app"),
        *(wire.begin(0x1F8), wire.xlog(inside), wire.insert(1), wire.commit(0x200)),
        *(wire.stream_start(9), wire.xlog(streamed), wire.insert(2, xid=9), wire.stream_stop()),
    )
    assert [event for event in events if isinstance(event, Signal)] == [Signal(b"x")] * 2
    assert [fragment.changes for fragment in fragments(events)] == [1, 1]


def test_logical_messages_of_others_are_dropped_whatever_their_bytes() -> None:  # M7.6
    ours = wire.xlog(LogicalMessage(False, Lsn(1), "app", b"x"))
    foreign = [
        wire.xlog(LogicalMessage(False, Lsn(1), "application", b"x")),
        wire.xlog(LogicalMessage(False, Lsn(1), "", b"app")),
        ours.replace(b"app", b"\xff\xfe\xfd"),
        wire.xlog(LogicalMessage(False, Lsn(1), "app", bytes(2**20))),
    ]
    assert feed(Fragmenter(Lsn(0), signal_prefix="app"), *foreign) == []
    assert feed(Fragmenter(Lsn(0)), ours, *foreign) == []


def test_a_truncate_touches_all_its_tables() -> None:
    truncate = wire.xlog(Truncate(False, False, (1, 2, 3)))
    (fragment,) = fragments(feed(Fragmenter(Lsn(0)), wire.begin(), truncate, wire.commit(0x200)))
    assert fragment.relations == {1, 2, 3}
    assert fragment.changes == 1


@pytest.mark.parametrize(
    "message", [wire.commit(0x200), wire.begin()[:30], wire.insert(1), b"w" + bytes(24) + b"?"]
)
def test_what_does_not_fit_is_a_violation(message: bytes) -> None:
    with pytest.raises(ProtocolViolation):
        feed(Fragmenter(Lsn(0)), message)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32))
def test_however_it_is_cut_the_messages_are_the_same(seed: int) -> None:
    chance = random.Random(seed)
    story = tell(chance)

    def flat(runs: list[list[memoryview]]) -> list[object]:
        fragmenter = Fragmenter(Lsn(0))
        found: list[object] = []
        for run in runs:
            for event in fragmenter.feed(run):
                if isinstance(event, Fragment):
                    found += [(event.xid, bytes(message)) for message in event.messages]
                    found += [event.commit] if event.commit else []
                else:
                    found.append(event)
        return found

    assert flat(story.runs(chance)) == flat([story.messages])
