"""Which failures aggregates are tried again after."""

from __future__ import annotations

import psycopg
import pytest

from penstock.errors import (
    AuthenticationFailed,
    ConsumerUnwritable,
    LogInUse,
    LogNotWritten,
    NotSeeded,
    PenstockError,
    SetupBlocked,
    SlotLimitReached,
    TargetUnavailable,
)
from penstock.pipelines.passing import may_pass, meaning, passes


def said_by_server(sqlstate: str) -> psycopg.Error:
    return psycopg.errors.lookup(sqlstate)()


@pytest.mark.parametrize("kind", [SetupBlocked, SlotLimitReached])
def test_a_seeding_waits_for_others(kind: type[PenstockError]) -> None:  # M5.5
    error = kind("held up by somebody", remedy="")
    assert may_pass(error)
    # A target that is written to has none of it.
    assert not passes(error)


@pytest.mark.parametrize(
    "error", [LogNotWritten("log", "No space left on device"), LogInUse("held", remedy="")]
)
def test_so_does_whoever_begins_for_the_log_s_disk(error: PenstockError) -> None:  # M5.3, M5.5
    assert passes(error)
    assert may_pass(error)


def test_a_log_of_somebody_else_is_for_a_person_to_mend() -> None:  # M5.5
    error = ConsumerUnwritable("counts", "log", "Permission denied")
    error.__cause__ = PermissionError()
    assert not may_pass(error)


@pytest.mark.parametrize("kind", [AuthenticationFailed, NotSeeded])
def test_what_a_person_must_mend_does_not_pass(kind: type[PenstockError]) -> None:  # M5.5
    assert not may_pass(kind("wrong", remedy=""))


@pytest.mark.parametrize(
    ("sqlstate", "by_itself"),
    [
        ("25006", True),  # a standby, until a failover is done
        ("40P01", True),  # a deadlock
        ("53100", True),  # a full disk
        ("57P01", True),  # its operator ends the session
        ("42501", False),  # a privilege that is missing
        ("54000", False),  # a limit of the server's own
        ("55000", False),  # a table that refuses to be updated
    ],
)
def test_what_a_server_says_passes_or_not_in_our_words_too(
    sqlstate: str, by_itself: bool
) -> None:  # M5.3, M5.5
    error = said_by_server(sqlstate)
    assert passes(error) is by_itself
    told = TargetUnavailable("not written", remedy="")
    told.__cause__ = error
    assert may_pass(told) is by_itself


@pytest.mark.parametrize(
    ("sqlstate", "means"),
    [
        ("57P01", "it was restarted"),
        ("57P03", "is starting"),
        ("08006", "connection was lost"),
        ("40P01", "another transaction"),
        ("53300", "short of connections"),
        ("25006", "standby"),
        ("55P03", "locked"),
    ],
)
def test_what_passes_says_what_it_means(sqlstate: str, means: str) -> None:  # M7.3
    assert means in meaning(said_by_server(sqlstate))


def test_a_connection_that_breaks_says_what_it_means() -> None:  # M7.3
    assert "the server was restarted" in meaning(psycopg.OperationalError("(1, secret)"))
    assert "secret" not in meaning(psycopg.OperationalError("(1, secret)"))
