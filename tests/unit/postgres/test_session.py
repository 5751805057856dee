"""The session's rules: what may be confirmed, what is said and when, and when to hang up."""

from __future__ import annotations

import copy
import itertools

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from penstock.errors import ConnectionStale, ProtocolViolation, ServerShutdown
from penstock.lsn import Lsn
from penstock.postgres.envelope import PAYLOAD_POS, StatusUpdate
from penstock.postgres.messages import BeginPrepare, LogicalMessage
from penstock.postgres.session import ReplicationSession, SessionSettings
from support.repeats import repeats
from support.wire import (
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

SETTINGS = SessionSettings(
    wal_sender_timeout_s=16.0,
    keepalive_interval_s=2.0,
    stale_timeout_s=60.0,
    confirm_interval_s=0.125,
    shutdown_grace_s=4.0,
)
START = Lsn(0x100)


def session(start: int = START, settings: SessionSettings = SETTINGS) -> ReplicationSession:
    return ReplicationSession(Lsn(start), settings, now=0.0)


def sent(session: ReplicationSession, now: float) -> StatusUpdate | None:
    decision = session.decide(now)
    assert decision.give_up is None
    return decision.send


# --- keepalive rule -----------------------------------------------------------------------------

STATES: dict[str, tuple[list[bytes], bool]] = {
    # name: (what was received before the keepalive, whether the keepalive may move the position)
    "before anything": ([], True),
    "between transactions": ([*transaction(0x200, 1)], True),
    "after Begin": ([begin(0x300)], False),
    "between Begin and Commit": ([begin(0x300), relation(), insert(1)], False),
    "inside a streamed chunk": ([stream_start(7), relation(), insert(1, xid=7)], False),
    "right after Stream Start": ([stream_start(7)], False),
    "between chunks of an open streamed transaction": (
        [stream_start(7), insert(1, xid=7), stream_stop()],
        True,
    ),
    "between chunks of two open streamed transactions": (
        [stream_start(7), stream_stop(), stream_start(8), stream_stop()],
        True,
    ),
    "inside the second transaction's chunk": (
        [stream_start(7), stream_stop(), stream_start(8)],
        False,
    ),
    "inside a transaction while a streamed one is open": (
        [stream_start(7), stream_stop(), begin(0x300)],
        False,
    ),
    "after Stream Commit": ([stream_start(7), stream_stop(), stream_commit(7, 0x200)], True),
    "after Stream Abort": ([stream_start(7), stream_stop(), stream_abort(7)], True),
    "after the abort of a subtransaction": (
        [stream_start(7), stream_stop(), stream_abort(7, 9)],
        True,
    ),
    "after a message outside transactions": (
        [xlog(LogicalMessage(False, Lsn(0x180), "p", b""))],
        True,
    ),
}


@pytest.mark.parametrize("state", STATES)
def test_a_keepalive_moves_the_position_unless_a_transaction_is_half_received(state: str) -> None:
    # M1.3
    before, may_move = STATES[state]
    s = session()
    s.receive(before, 0.0)
    position = s.received_lsn
    assert s.half_received is not may_move
    s.receive([keepalive(0x280)], 0.0)
    assert s.received_lsn == (0x280 if may_move else position)


def test_a_keepalive_inside_a_transaction_is_not_made_up_for_at_its_end() -> None:
    # M1.3: the commit alone moves the position, and the keepalive may lie beyond it.
    s = session()
    s.receive([begin(0x1F8), keepalive(0x900), insert(1), commit(0x200)], 0.0)
    assert s.received_lsn == 0x200
    assert s.server_lsn == 0x900


def test_a_keepalive_is_not_confirmed_before_the_commits_in_front_of_it_are_durable() -> None:
    # M1.3, M1.8
    s = session()
    s.receive([*transaction(0x200, 1), *transaction(0x300, 2), keepalive(0x400, reply=True)], 0.0)
    update = sent(s, 0.0)
    assert update == StatusUpdate(Lsn(0x400), START, reply_requested=False)
    s.made_durable(Lsn(0x200))
    assert s.final_status(0.0).durable_lsn == 0x200
    s.made_durable(Lsn(0x400))
    assert s.final_status(0.0).durable_lsn == 0x400


def test_a_keepalive_is_not_confirmed_before_its_own_position_is_durable() -> None:
    # M1.8
    s = session()
    s.receive([keepalive(0x400, reply=True)], 0.0)
    update = sent(s, 0.0)
    assert update is not None
    assert update.durable_lsn == START


def test_positions_never_go_down_although_keepalives_and_commits_do() -> None:
    # M1.8: after a reconnect the server starts further back.
    s = session(0x500)
    s.receive([keepalive(0x80), *transaction(0x200, 1), keepalive(0x300)], 0.0)
    assert (s.received_lsn, s.durable_lsn, s.server_lsn) == (0x500, 0x500, 0x500)
    s.receive([keepalive(0x600)], 0.0)
    s.made_durable(Lsn(0x600))
    s.made_durable(Lsn(0x550))
    assert s.final_status(0.0) == StatusUpdate(Lsn(0x600), Lsn(0x600), reply_requested=False)
    assert s.confirmed_lsn == 0x600


def test_nothing_can_be_durable_that_was_not_received() -> None:
    # M1.8
    s = session()
    s.receive([keepalive(0x200)], 0.0)
    with pytest.raises(RuntimeError, match="0/201 cannot be durable"):
        s.made_durable(Lsn(0x201))
    assert s.durable_lsn == START


def test_the_second_commit_may_start_exactly_where_the_first_ends() -> None:
    s = session()
    s.receive([*transaction(0x200, 1), keepalive(0x200)], 0.0)
    s.made_durable(Lsn(0x200))
    s.receive([begin(0x200), insert(2), keepalive(0x200)], 0.0)
    assert s.received_lsn == 0x200, "only half of the second is here"
    s.receive([commit(0x240, lsn=0x200)], 0.0)
    assert s.received_lsn == 0x240
    assert s.final_status(0.0).durable_lsn == 0x200


# --- what is said, and when ---------------------------------------------------------------------


@pytest.mark.parametrize("state", STATES)
def test_a_request_is_answered_at_once_in_every_state(state: str) -> None:
    # M1.6
    s = session()
    s.receive(STATES[state][0], 1.0)
    assert sent(s, 1.0) is None, "nobody has asked"
    s.receive([keepalive(0x280, reply=True)], 1.0)
    assert s.decide(1.0).send is not None
    assert sent(s, 1.0) is None, "once is enough"


def test_the_answer_does_not_wait_for_the_wake_up_of_an_earlier_decision() -> None:
    s = session()
    assert s.decide(0.0).wake_at == 2.0
    s.receive([keepalive(0x280, reply=True)], 0.5)
    assert sent(s, 0.5) is not None


def test_the_server_hears_from_us_although_nothing_moves() -> None:
    # Thrice within the server's patience.
    s = session()
    assert SETTINGS.status_interval_s <= SETTINGS.wal_sender_timeout_s / 3
    heard = []
    for step in range(200):
        now = step / 8
        s.receive([keepalive(START)], now)
        if (update := sent(s, now)) is not None:
            assert not update.reply_requested, "the server is not silent"
            heard.append(now)
    gaps = [b - a for a, b in itertools.pairwise([0.0, *heard, 25.0])]
    assert max(gaps) <= SETTINGS.wal_sender_timeout_s / 3 + 1 / 8


def test_progress_is_reported_soon_but_not_too_often() -> None:
    s = session()
    updates = []
    for step in range(640):  # ten seconds of a commit every 1/64 s
        now = step / 64
        s.receive(transaction(0x200 + step, step), now)
        s.made_durable(Lsn(0x200 + step))
        if (update := sent(s, now)) is not None:
            assert update.durable_lsn == 0x200 + step
            updates.append(now)
    gaps = [b - a for a, b in itertools.pairwise(updates)]
    assert set(gaps) == {SETTINGS.confirm_interval_s}


def test_silence_is_broken_by_a_question_at_the_configured_interval() -> None:
    # M1.4
    s = session()
    s.receive([keepalive(START)], 1.0)
    assert sent(s, 2.875) is None
    assert s.decide(2.875).wake_at == 3.0
    question = sent(s, 3.0)
    assert question is not None
    assert question.reply_requested
    assert sent(s, 4.875) is None
    again = sent(s, 5.0)
    assert again is not None
    assert again.reply_requested, "no answer so far"
    s.receive([keepalive(0x200)], 5.5)
    assert sent(s, 7.25) is None, "the answer counts as activity"
    assert s.received_lsn == 0x200


# --- health -------------------------------------------------------------------------------------


def test_a_connection_is_stale_only_after_the_whole_timeout_without_anything() -> None:
    # M1.1, M1.5
    s = session()
    s.receive([keepalive(START)], 5.0)
    assert s.decide(64.875).give_up is None
    decision = s.decide(65.0)
    assert isinstance(decision.give_up, ConnectionStale)
    assert decision.send is None


def test_an_empty_read_is_no_activity() -> None:
    s = session()
    s.receive([], 59.0)
    assert isinstance(s.decide(60.0).give_up, ConnectionStale)


def test_a_flood_on_unpublished_tables_is_never_stale() -> None:
    # M1.1, M1.2: for an hour only keepalives arrive, and every one of them is progress.
    s = session()
    for step in range(3600):
        s.receive([keepalive(START + step)], float(step))
        s.made_durable(s.received_lsn)
        assert s.decide(float(step)).give_up is None
    assert s.confirmed_lsn == START + 3599


def test_one_endless_transaction_is_never_stale() -> None:
    # M1.1
    s = session()
    s.receive([begin()], 0.0)
    for minute in range(1, 60):
        s.receive([insert(1)], minute * 59.0)
        assert s.decide(minute * 59.0).give_up is None


def test_a_missed_heartbeat_alone_does_not_end_a_session() -> None:
    # M1.5
    s = session()
    s.heartbeat_received(1.0)
    for second in range(2, 300):
        s.receive([keepalive(START)], float(second))
        assert s.decide(float(second)).give_up is None


def test_a_heartbeat_alone_keeps_a_session() -> None:
    # M1.5
    s = session()
    for minute in range(1, 10):
        s.heartbeat_received(minute * 59.0)
        assert s.decide(minute * 59.0).give_up is None
    assert isinstance(s.decide(9 * 59.0 + 60.0).give_up, ConnectionStale)


def test_a_timeout_shorter_than_the_servers_own_silence_is_refused() -> None:
    # M1.4: a walsender that is busy with a large commit is silent for half its timeout.
    with pytest.raises(ValueError, match="half of wal_sender_timeout_s"):
        SessionSettings(wal_sender_timeout_s=20.0, stale_timeout_s=10.0)


# --- a server that shuts down -------------------------------------------------------------------


def storm(s: ReplicationSession, wal_end: int, start: float, seconds: float) -> list[float]:
    """The server asks 64 times a second; returns when we answered, until we hang up."""
    answers = []
    for step in range(int(seconds * 64)):
        now = start + step / 64
        s.receive([keepalive(wal_end, reply=True)], now)
        decision = s.decide(now)
        if decision.give_up is not None:
            raise decision.give_up
        if decision.send is not None:
            answers.append(now)
    return answers


def test_the_storm_of_a_shutdown_gets_a_few_answers_a_second() -> None:
    # M1.6
    s = session()
    answers = storm(s, 0x200, 1.0, 3.0)
    assert s.shutting_down
    first_second = [a for a in answers if a < 2.0]
    assert len(first_second) <= 12
    assert all(3 <= sum(t <= a < t + 1 for a in answers) <= 5 for t in (2.0, 3.0))


def test_a_client_that_cannot_confirm_leaves_after_the_grace() -> None:
    # M1.6
    s = session()
    with pytest.raises(ServerShutdown):
        storm(s, 0x200, 1.0, 10.0)
    assert s.confirmed_lsn == START, "and confirms nothing that is not durable"


def test_the_grace_is_kept_before_leaving() -> None:
    s = session()
    storm(s, 0x200, 1.0, SETTINGS.shutdown_grace_s)
    assert s.shutting_down


def test_a_client_that_can_confirm_does_so_at_once_and_stays() -> None:
    # M1.6
    s = session()
    storm(s, 0x200, 1.0, 1.0)
    answered = s.decide(3.0).send
    assert answered is not None
    s.made_durable(Lsn(0x200))
    update = sent(s, 3.0)
    assert update is not None, "not after the usual pause between two reports"
    assert update.durable_lsn == 0x200
    storm(s, 0x200, 3.0, 2 * SETTINGS.shutdown_grace_s)
    assert s.confirmed_lsn == 0x200


def test_waiting_for_the_server_to_end_does_not_spin() -> None:
    # It has all that it asked for, and takes longer than the grace.
    s = session()
    storm(s, 0x200, 1.0, 1.0)
    s.made_durable(Lsn(0x200))
    late = 2.0 + SETTINGS.shutdown_grace_s
    s.decide(late)
    assert s.decide(late).wake_at > late


def test_requests_at_the_servers_usual_pace_are_no_storm() -> None:
    # An idle server asks once per half of its timeout, always with the same position.
    s = session()
    for step in range(1, 60):
        now = step * SETTINGS.wal_sender_timeout_s / 2
        s.receive([keepalive(0x200, reply=True)], now)
        assert sent(s, now) is not None
        assert not s.shutting_down


def test_requests_with_new_positions_are_no_storm() -> None:
    s = session()
    for step in range(100):
        s.receive([keepalive(0x200 + step, reply=True)], step / 64)
        assert sent(s, step / 64) is not None
    assert not s.shutting_down


# --- malformed ----------------------------------------------------------------------------------

WHOLE = {
    "commit": [begin(), commit(0x200)],
    "stream commit": [stream_start(7), stream_stop(), stream_commit(7, 0x200)],
    "keepalive": [keepalive(0x200)],
}


@pytest.mark.parametrize("what", WHOLE)
def test_a_message_that_ends_too_early_is_a_protocol_violation(what: str) -> None:
    # Up to the last byte that this module reads: the rest is the decoder's.
    *before, last = WHOLE[what]
    needed = {"commit": PAYLOAD_POS + 18, "stream commit": PAYLOAD_POS + 22, "keepalive": 18}[what]
    for length in range(needed):
        s = session()
        s.receive(before, 0.0)
        with pytest.raises(ProtocolViolation):
            s.receive([memoryview(last)[:length]], 0.0)
        assert s.received_lsn == START


BAD_ORDER = {
    "an unknown envelope": [b"x" + bytes(30)],
    "an unknown message": [xlog(LogicalMessage(False, Lsn(1), "", b""))[:PAYLOAD_POS] + b"?"],
    "Begin inside a transaction": [begin(), begin()],
    "Begin inside a chunk": [stream_start(7), begin()],
    "a chunk inside a transaction": [begin(), stream_start(7)],
    "a chunk inside a chunk": [stream_start(7), stream_start(8)],
    "Commit without Begin": [commit(0x200)],
    "Commit inside a chunk": [stream_start(7), commit(0x200)],
    "Stream Stop outside a chunk": [stream_stop()],
    "Stream Stop inside a transaction": [begin(), stream_stop()],
    "Stream Commit inside its chunk": [stream_start(7), stream_commit(7, 0x200)],
    "a prepared transaction": [xlog(BeginPrepare(Lsn(1), Lsn(2), 0, 7, "gid"))],
}


@pytest.mark.parametrize("what", BAD_ORDER)
def test_messages_that_cannot_follow_one_another_are_a_protocol_violation(what: str) -> None:
    s = session()
    with pytest.raises(ProtocolViolation):
        s.receive(BAD_ORDER[what], 0.0)
    assert s.received_lsn == START, "and nothing of it can be confirmed"


# --- any history --------------------------------------------------------------------------------

# Multiples of 1/64 s are exact in binary, so that "due at 2.0" and "it is 2.0" agree.
steps = st.integers(0, 64 * 20).map(lambda n: n / 64) | st.integers(0, 16).map(lambda n: n / 64)


class AnyHistory(RuleBasedStateMachine):
    """A server that keeps to the protocol, a log that flushes when it likes, and the time.

    The model is the one sentence of M1.3 and M1.8: `position` is the highest end of a commit or
    keepalive that was received with nothing half received.
    """

    @initialize(start=st.integers(0, 0x1000))
    def connect(self, start: int) -> None:
        self.now = 0.0
        self.s = ReplicationSession(Lsn(start), SETTINGS, now=0.0)
        self.position = self.durable = self.confirmed = start
        self.wal = start
        self.inside: str | None = None
        self.streamed: set[int] = set()
        self.owed = False

    def hear(self, *messages: bytes) -> None:
        self.s.receive([memoryview(message) for message in messages], self.now)

    @rule(step=steps)
    def time_passes(self, step: float) -> None:
        self.now += step

    @precondition(lambda self: self.inside is None)
    @rule()
    def a_transaction_begins(self) -> None:
        self.hear(begin(self.wal + 1))
        self.inside = "transaction"

    @precondition(lambda self: self.inside is None)
    @rule(xid=st.integers(1, 3))
    def a_chunk_begins(self, xid: int) -> None:
        self.hear(stream_start(xid, first=xid not in self.streamed))
        self.streamed.add(xid)
        self.inside = "chunk"

    @precondition(lambda self: self.inside is not None)
    @rule(n=st.integers(1, 3))
    def changes_arrive(self, n: int) -> None:
        self.hear(*[insert(1, xid=1 if self.inside == "chunk" else None)] * n)

    @precondition(lambda self: self.inside == "transaction")
    @rule(length=st.integers(1, 50))
    def it_commits(self, length: int) -> None:
        self.wal += length
        self.hear(commit(self.wal, lsn=1))
        self.inside = None
        self.position = max(self.position, self.wal)

    @precondition(lambda self: self.inside == "chunk")
    @rule()
    def the_chunk_ends(self) -> None:
        self.hear(stream_stop())
        self.inside = None

    @precondition(lambda self: self.inside is None and self.streamed)
    @rule(length=st.integers(1, 50), commits=st.booleans())
    def a_streamed_transaction_ends(self, length: int, commits: bool) -> None:
        xid = self.streamed.pop()
        if not commits:
            self.hear(stream_abort(xid))
            return
        self.wal += length
        self.hear(stream_commit(xid, self.wal + 8))
        self.wal += 8
        self.position = max(self.position, self.wal)

    @rule(offset=st.integers(-100, 100), reply=st.booleans(), times=st.integers(1, 8))
    def a_keepalive_arrives(self, offset: int, reply: bool, times: int) -> None:
        wal_end = max(0, self.wal + offset)
        self.hear(*[keepalive(wal_end, reply=reply)] * times)
        self.owed |= reply
        if self.inside is None:
            self.wal = max(self.wal, wal_end)
            self.position = max(self.position, wal_end)

    @rule()
    def a_heartbeat_arrives(self) -> None:
        self.s.heartbeat_received(self.now)

    @rule(share=st.floats(0, 1))
    def the_log_flushes(self, share: float) -> None:
        up_to = self.durable + int((self.position - self.durable) * share)
        self.s.made_durable(Lsn(up_to))
        self.durable = up_to

    @rule(beyond=st.integers(1, 50))
    def the_log_claims_too_much(self, beyond: int) -> None:
        with pytest.raises(RuntimeError):
            self.s.made_durable(Lsn(self.position + beyond))

    @rule()
    def a_decision_is_asked_for(self) -> None:
        decision = self.s.decide(self.now)
        if decision.give_up is not None:
            return
        if decision.send is not None:
            assert decision.send.received_lsn == self.position
            assert decision.send.durable_lsn == self.durable
            self.confirmed = self.durable
            self.owed = False
        assert not self.owed or self.s.shutting_down, "an owed reply goes out at once"
        self.check_the_wake_up()

    def check_the_wake_up(self) -> None:
        """Nothing is due before the wake-up, and something is at it: no misses, no spinning."""
        wake_at = self.s.decide(self.now).wake_at
        assert wake_at >= self.now
        for when, due in ((wake_at - 1 / 128, False), (wake_at, True)):
            if when < self.now:
                continue
            decision = copy.copy(self.s).decide(when)
            assert bool(decision.send or decision.give_up) is due, (when, self.now)

    @invariant()
    def the_positions_are_those_of_the_model(self) -> None:
        s = self.s
        assert (s.received_lsn, s.durable_lsn) == (self.position, self.durable)
        assert s.confirmed_lsn == self.confirmed
        assert s.confirmed_lsn <= s.durable_lsn <= s.received_lsn
        assert s.half_received is (self.inside is not None)


def test_any_history_keeps_the_invariants() -> None:
    # M1.3, M1.6, M1.8
    run_state_machine_as_test(
        AnyHistory,
        settings=hypothesis_settings(
            max_examples=repeats(60, soak=150), stateful_step_count=40, deadline=None
        ),
    )


def test_a_server_that_does_not_answer_is_silent_long_before_it_is_stale() -> None:  # M1.4
    settings = SessionSettings()
    session = ReplicationSession(Lsn(0x100), settings, now=0.0)
    longest = settings.keepalive_interval_s + settings.wal_sender_timeout_s / 2
    assert longest < settings.stale_timeout_s / 10
    assert session.silent_s(longest) == 0, "it may be busy with one large commit"
    assert session.silent_s(longest + 1) == longest + 1
    assert session.decide(longest + 1).give_up is None
    session.receive([keepalive(0x200)], longest + 2)
    assert session.silent_s(longest + 3) == 0
