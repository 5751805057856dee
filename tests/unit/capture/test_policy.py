"""What capture does about each error."""

from __future__ import annotations

import inspect

import pytest

from penstock import errors
from penstock.backoff import Backoff
from penstock.capture.policy import _RETRY_BRIEFLY_S, Patience, Reaction, reaction
from penstock.errors import (
    AuthenticationFailed,
    ConnectionLost,
    ConnectionStale,
    LogAtBudget,
    LogFull,
    LogInUse,
    LogNotWritten,
    PenstockError,
    PollerRunning,
    PublicationMissing,
    ServerShutdown,
    SlotInUse,
    SlotLimitReached,
    SourceUnavailable,
    SpillFailed,
)

LOST = ConnectionLost("lost", remedy="")
IN_USE = SlotInUse("penstock", 42)

MAY_PASS = {
    AuthenticationFailed: Reaction.RETRY_BRIEFLY_LATER,
    ConnectionLost: Reaction.RETRY,
    ConnectionStale: Reaction.RETRY,
    PollerRunning: Reaction.RETRY_BRIEFLY_LATER,
    ServerShutdown: Reaction.RETRY,
    SourceUnavailable: Reaction.RETRY,
    LogNotWritten: Reaction.RETRY,
    LogFull: Reaction.RETRY,
    LogAtBudget: Reaction.RETRY,
    LogInUse: Reaction.RETRY_BRIEFLY,
    SpillFailed: Reaction.RETRY,
    SlotInUse: Reaction.RETRY_BRIEFLY,
    SlotLimitReached: Reaction.RETRY_BRIEFLY,
}
EVERY_ERROR = [
    kind
    for _, kind in inspect.getmembers(errors, inspect.isclass)
    if issubclass(kind, PenstockError)
]


@pytest.mark.parametrize("kind", EVERY_ERROR, ids=lambda kind: kind.__name__)
def test_only_what_may_pass_by_itself_is_tried_again(kind: type[PenstockError]) -> None:
    # Trying again would only hide all the others.
    assert reaction(kind.__new__(kind)) is MAY_PASS.get(kind, Reaction.STOP)


def test_a_lost_connection_is_opened_again_for_ever() -> None:
    patience = Patience(wal_sender_timeout_s=20)
    for hour in range(100):
        assert patience.pause_s(LOST, hour * 3600.0) <= 10.0
        assert patience.gives_up_in_s(hour * 3600.0) is None


@pytest.mark.parametrize(
    "error", [PublicationMissing("p"), AuthenticationFailed("no", remedy="")], ids=repr
)
def test_what_needs_a_person_is_raised_at_once(error: PenstockError) -> None:
    with pytest.raises(type(error)) as caught:
        Patience(wal_sender_timeout_s=20).pause_s(error, 0.0)
    assert caught.value is error


def test_a_wrong_password_is_retried_briefly_only_if_it_was_right_before() -> None:
    # M7.3: a secret that is being rotated is wrong for a moment.
    wrong = AuthenticationFailed("no", remedy="")
    patience = Patience(wal_sender_timeout_s=20)
    patience.connected()
    patience.pause_s(wrong, 0.0)
    assert patience.gives_up_in_s(0.0) == _RETRY_BRIEFLY_S
    with pytest.raises(AuthenticationFailed):
        patience.pause_s(wrong, _RETRY_BRIEFLY_S + 1)


def test_a_slot_in_use_is_waited_for_briefly() -> None:
    # Its holder may be our own past: a walsender that has not noticed that we are gone.
    patience = Patience(wal_sender_timeout_s=20)
    patience.pause_s(IN_USE, 100.0)
    assert patience.gives_up_in_s(100.0) == _RETRY_BRIEFLY_S
    patience.pause_s(IN_USE, 100.0 + _RETRY_BRIEFLY_S)
    assert patience.gives_up_in_s(100.0 + _RETRY_BRIEFLY_S) == 0.0
    with pytest.raises(SlotInUse):
        patience.pause_s(IN_USE, 101.0 + _RETRY_BRIEFLY_S)


def test_a_long_outage_before_it_does_not_count_against_a_slot_in_use() -> None:
    patience = Patience(wal_sender_timeout_s=20)
    patience.pause_s(LOST, 0.0)
    patience.pause_s(SourceUnavailable("down", remedy=""), 3600.0)
    patience.pause_s(IN_USE, 3601.0)
    patience.pause_s(IN_USE, 3601.0 + _RETRY_BRIEFLY_S)


def test_progress_makes_the_next_failure_a_new_one() -> None:
    patience = Patience(wal_sender_timeout_s=20, backoff=Backoff(first_s=0.1, most_s=10.0))
    for _ in range(5):
        patience.pause_s(IN_USE, 0.0)
    patience.progressed()
    assert patience.pause_s(IN_USE, 2 * _RETRY_BRIEFLY_S) <= 0.1


def test_a_failure_without_progress_is_not_a_new_one() -> None:
    patience = Patience(wal_sender_timeout_s=20, backoff=Backoff(first_s=0.1, most_s=10.0))
    for _ in range(5):
        patience.pause_s(LOST, 0.0)
    assert patience.pause_s(LOST, 0.0) >= 1.6
