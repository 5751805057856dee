"""What a connection does is ended from another thread."""

from __future__ import annotations

import time
from threading import Event, Timer
from typing import Any

import psycopg
import pytest

from penstock.postgres.cancelling import Cancelled, cancelled_by
from support.database import Database


def test_a_statement_ends_when_the_event_is_set(database18: Database) -> None:  # M5.5
    stop = Event()
    with database18.connect() as connection:
        timer = Timer(0.3, stop.set)
        timer.start()
        began = time.monotonic()
        with pytest.raises(Cancelled) as raised, cancelled_by(stop, connection):
            connection.execute("SELECT pg_sleep(60)")
        assert time.monotonic() - began < 10
        assert isinstance(raised.value.__cause__, psycopg.errors.QueryCanceled)
        timer.join()
        # Nobody cancels what comes after.
        connection.execute("SELECT pg_sleep(0.5)")


def test_what_comes_between_two_statements_is_heeded_by_the_next(
    database18: Database,
) -> None:  # M5.5
    stop = Event()
    stop.set()
    with (
        database18.connect() as connection,
        pytest.raises(Cancelled),
        cancelled_by(stop, connection),
    ):
        long_after_a_moment(connection)


def long_after_a_moment(connection: psycopg.Connection[Any]) -> None:
    time.sleep(0.5)
    connection.execute("SELECT pg_sleep(60)")


def test_without_the_event_results_and_errors_are_as_they_are(
    database18: Database,
) -> None:  # M5.5
    with database18.connect() as connection:
        with cancelled_by(Event(), connection):
            assert connection.execute("SELECT 1").fetchone() == (1,)
        with (
            pytest.raises(psycopg.errors.DivisionByZero),
            cancelled_by(Event(), connection),
        ):
            connection.execute("SELECT 1 / 0")
