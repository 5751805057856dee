"""The tracker, by example and against a model that knows what is really published."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from penstock.capture.acks import AckTracker
from penstock.lsn import Lsn
from support.repeats import repeats


def test_acks_in_order_move_the_frontier_one_by_one() -> None:  # M2.4
    tracker = AckTracker()
    ids = [tracker.register(Lsn(lsn)) for lsn in (100, 200, 300)]
    assert [tracker.mark_published_by_id(i) for i in ids] == [100, 200, 300]
    assert tracker.frontier_lsn == 300
    assert tracker.pending_count == 0


def test_an_ack_out_of_order_waits_for_the_oldest() -> None:  # M2.2, M2.4
    tracker = AckTracker()
    first, second = tracker.register(Lsn(100)), tracker.register(Lsn(200))
    assert tracker.mark_published_by_id(second) is None
    assert tracker.frontier_lsn == 0
    assert tracker.mark_published_by_id(first) == 200


@pytest.mark.parametrize("first_published", [0, 1])
def test_the_frontier_waits_for_every_event_at_an_lsn(first_published: int) -> None:  # M2.3
    tracker = AckTracker()
    ids = [tracker.register(Lsn(100)), tracker.register(Lsn(100))]
    assert tracker.mark_published_by_id(ids[first_published]) is None
    assert tracker.frontier_lsn == 0
    assert tracker.mark_published_by_id(ids[1 - first_published]) == 100


def test_announced_events_hold_the_frontier_below_their_lsn() -> None:  # M2.3
    tracker = AckTracker()
    first = tracker.register(Lsn(100), more=True)
    assert tracker.mark_published_by_id(first) is None
    last = tracker.register(Lsn(100))
    assert tracker.frontier_lsn == 0
    assert tracker.mark_published_by_id(last) == 100


def test_an_announcement_that_is_never_kept_holds_the_frontier_for_ever() -> None:  # M2.3
    tracker = AckTracker()
    ids = [tracker.register(Lsn(100), more=True), tracker.register(Lsn(200))]
    assert [tracker.mark_published_by_id(i) for i in ids] == [None, None]
    assert tracker.frontier_lsn == 0


def test_by_lsn_each_call_stands_for_one_event() -> None:  # M2.1, M2.3
    tracker = AckTracker()
    for _ in range(3):
        tracker.register(Lsn(100))
    assert [tracker.mark_published(Lsn(100)) for _ in range(3)] == [None, None, 100]


def test_by_lsn_and_by_id_do_not_count_one_event_twice() -> None:  # M2.1
    tracker = AckTracker()
    first, second = tracker.register(Lsn(100)), tracker.register(Lsn(100))
    assert tracker.mark_published_by_id(first) is None
    assert tracker.mark_published(Lsn(100)) == 100
    assert tracker.mark_published_by_id(second) is None  # a late ack


def test_ids_are_unique_and_increasing() -> None:  # M2.1
    tracker = AckTracker()
    ids = [tracker.register(Lsn(lsn)) for lsn in (1, 1, 2, 3, 3)]
    assert ids == sorted(set(ids))


def test_a_decreasing_lsn_is_refused() -> None:  # M2.4
    tracker = AckTracker()
    tracker.register(Lsn(200))
    with pytest.raises(ValueError, match="below"):
        tracker.register(Lsn(100))


def test_an_lsn_reached_by_acks_is_refused() -> None:  # M2.4
    tracker = AckTracker()
    tracker.mark_published_by_id(tracker.register(Lsn(100)))
    with pytest.raises(ValueError, match="already reached"):
        tracker.register(Lsn(100))


def test_an_event_at_the_initial_lsn_is_welcome_once() -> None:  # M2.4
    tracker = AckTracker(Lsn(100))
    with pytest.raises(ValueError, match="below"):
        tracker.register(Lsn(99))
    event = tracker.register(Lsn(100))
    assert tracker.mark_published_by_id(event) is None  # it was there already
    with pytest.raises(ValueError, match="already reached"):
        tracker.register(Lsn(100))
    assert tracker.mark_published_by_id(tracker.register(Lsn(101))) == 101


def test_unknown_ids_and_lsns_are_key_errors_and_repeats_are_none() -> None:  # M2.4
    tracker = AckTracker()
    for never_issued in (0, 1, -1):
        with pytest.raises(KeyError):
            tracker.mark_published_by_id(never_issued)
    waiting = tracker.register(Lsn(100))
    event = tracker.register(Lsn(200))
    assert tracker.mark_published_by_id(event) is None
    assert tracker.mark_published_by_id(event) is None
    for unknown in (50, 150, 200, 300):  # 200 is fully acknowledged, though not yet passed
        with pytest.raises(KeyError):
            tracker.mark_published(Lsn(unknown))
    assert tracker.mark_published_by_id(waiting) == 200
    assert tracker.mark_published_by_id(waiting) is None
    with pytest.raises(KeyError):
        tracker.mark_published(Lsn(100))


def test_a_refused_call_changes_nothing() -> None:  # M2.4
    tracker = AckTracker()
    event = tracker.register(Lsn(200))
    for lsn in (100, 0):
        with pytest.raises(ValueError, match="below"):
            tracker.register(Lsn(lsn))
    assert tracker.pending_count == 1
    assert tracker.mark_published_by_id(event) == 200


def test_a_broken_invariant_is_a_runtime_error() -> None:  # M2.4
    tracker = AckTracker()
    event = tracker.register(Lsn(100))
    tracker._frontier = Lsn(500)
    with pytest.raises(RuntimeError):
        tracker.mark_published_by_id(event)


def test_memory_is_released_as_the_frontier_moves() -> None:  # M2.5
    tracker = AckTracker()
    for lsn in range(1, 10_001):
        tracker.register(Lsn(lsn))
        if lsn > 100:
            tracker.mark_published(Lsn(lsn - 100))
    kept = ("_in_flight", "_first_id", "_last_id_of", "_done")
    assert [len(getattr(tracker, name)) for name in kept] == [100, 100, 0, 0]
    assert tracker.pending_count == 100


@dataclass
class Event:
    """What the model knows of one event: the truth, kept in the plainest way."""

    ack_id: int
    lsn: int
    more: bool
    published: bool = False


class TrackerAgainstTruth(RuleBasedStateMachine):
    """Any legal sequence of calls, beside a list of events that is searched from the start."""

    @initialize(initial=st.sampled_from([0, 50]))
    def start(self, initial: int) -> None:
        self.initial = initial
        self.tracker = AckTracker(Lsn(initial))
        self.events: list[Event] = []
        self.frontier = initial

    def complete(self, lsn: int) -> bool:
        """Nothing at `lsn` is unpublished, and nothing more is announced."""
        here = [event for event in self.events if event.lsn == lsn]
        return all(event.published for event in here) and not here[-1].more

    def true_frontier(self) -> int:
        """The highest LSN below which, and at which, all is complete, when a result comes in."""
        frontier = self.initial
        for lsn in sorted({event.lsn for event in self.events}):
            if not self.complete(lsn):
                break
            frontier = lsn
        return frontier

    def expect(self, moved: Lsn | None) -> None:
        after = self.true_frontier()
        assert moved == (after if after > self.frontier else None)
        self.frontier = after

    @rule(step=st.integers(0, 3), more=st.booleans())
    def register(self, step: int, more: bool) -> None:
        newest = self.events[-1].lsn if self.events else self.initial
        lsn = newest + step
        passed = self.events and lsn <= newest and self.complete(lsn) and lsn <= self.frontier
        if passed:
            with pytest.raises(ValueError, match="already reached"):
                self.tracker.register(Lsn(lsn), more=more)
            return
        ack_id = self.tracker.register(Lsn(lsn), more=more)
        assert not self.events or ack_id > self.events[-1].ack_id
        self.events.append(Event(ack_id, lsn, more))

    @rule(back=st.integers(1, 100))
    def register_backwards(self, back: int) -> None:
        newest = self.events[-1].lsn if self.events else self.initial
        if newest >= back:
            with pytest.raises(ValueError, match="below"):
                self.tracker.register(Lsn(newest - back))

    @precondition(lambda self: self.events)
    @rule(data=st.data())
    def publish_by_id(self, data: st.DataObject) -> None:
        event = data.draw(st.sampled_from(self.events))
        event.published = True
        self.expect(self.tracker.mark_published_by_id(event.ack_id))

    @precondition(lambda self: self.events)
    @rule(data=st.data())
    def publish_by_lsn(self, data: st.DataObject) -> None:
        lsn = data.draw(st.sampled_from(sorted({event.lsn for event in self.events})))
        waiting = [event for event in self.events if event.lsn == lsn and not event.published]
        if not waiting:
            with pytest.raises(KeyError):
                self.tracker.mark_published(Lsn(lsn))
            return
        waiting[0].published = True
        self.expect(self.tracker.mark_published(Lsn(lsn)))

    @rule(beyond=st.integers(1, 5))
    def publish_what_was_never_issued(self, beyond: int) -> None:
        newest = self.events[-1].ack_id if self.events else 0
        with pytest.raises(KeyError):
            self.tracker.mark_published_by_id(newest + beyond)

    @invariant()
    def the_frontier_is_below_everything_unpublished_or_announced(self) -> None:
        for event in self.events:
            if not event.published or not self.complete(event.lsn):
                assert self.tracker.frontier_lsn < event.lsn or event.lsn == self.initial
        assert self.tracker.frontier_lsn == self.frontier
        assert self.tracker.pending_count == sum(not event.published for event in self.events)


TrackerAgainstTruth.TestCase.settings = settings(
    max_examples=repeats(100, soak=300), stateful_step_count=50
)
TestTrackerAgainstTruth = TrackerAgainstTruth.TestCase
