"""The next is read while one is used; what is being read ends with who uses it."""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import closing
from functools import partial
from typing import Any

import psycopg
import pytest
from psycopg import errors as pg

from penstock.postgres import cancelling, reading_ahead
from penstock.postgres.reading_ahead import ahead
from support.database import Database
from support.proxy import Proxy
from support.waiting import eventually

NUMBERS = "SELECT n / CASE n WHEN {} THEN 0 ELSE 1 END FROM generate_series({}, {}) AS n"


def numbers(
    connection: psycopg.Connection[Any], *starts: int, bad: int = -1
) -> Generator[list[int], None, None]:
    for start in starts:
        found = connection.execute(NUMBERS.format(bad, start, start + 9).encode())
        yield [n for (n,) in found]


def _is_last(read: list[int], number: int) -> bool:
    return read[-1] == number


@pytest.mark.parametrize("starts", [(), (0,), (0, 10, 20)])
def test_everything_comes_in_its_order(database18: Database, starts: tuple[int, ...]) -> None:
    with database18.connect() as connection:
        found = list(ahead(numbers(connection, *starts), connection))
        assert found == [list(range(start, start + 10)) for start in starts]
        assert connection.execute("SELECT 1").fetchone() == (1,)


def test_one_is_read_ahead_and_no_more(database18: Database) -> None:  # M5.5: little memory
    read: list[int] = []

    def items() -> Generator[int, None, None]:
        for number in range(5):
            read.append(number)
            yield number

    with database18.connect() as connection, closing(ahead(items(), connection)) as found:
        for number in found:
            last = min(number + 1, 4)
            eventually(partial(_is_last, read, last), "the next is read")
            assert read == list(range(last + 1))


def test_an_error_comes_where_it_happened(database18: Database) -> None:
    with database18.connect() as connection:
        found = ahead(numbers(connection, 0, 10, 20, bad=15), connection)
        assert next(found) == list(range(10))
        with pytest.raises(pg.DivisionByZero):
            next(found)
        assert connection.execute("SELECT 1").fetchone() == (1,)


def nobody_reads() -> bool:
    return not [each for each in threading.enumerate() if each.name == "reading"]


@pytest.mark.parametrize("first", ["SELECT 1", "SELECT pg_sleep(3600)"])
def test_who_closes_it_does_not_wait_for_what_is_being_read(
    database18: Database, first: str
) -> None:  # M5.5
    """A statement that would take an hour is cancelled; the generator is closed in any case."""
    closed = threading.Event()

    def items(connection: psycopg.Connection[Any]) -> Generator[int, None, None]:
        try:
            yield 1
            connection.execute(first.encode())
            yield 2
            yield 3
        finally:
            closed.set()

    with database18.connect() as connection:
        kept = items(connection)
        with closing(ahead(kept, connection)) as found:
            assert next(found) == 1
        assert closed.is_set()
        assert nobody_reads()
        assert connection.execute("SELECT 1").fetchone() == (1,)


def test_a_server_that_does_not_answer_is_not_waited_for(
    database18: Database, monkeypatch: pytest.MonkeyPatch
) -> None:  # M7.3: else Ctrl-C would be without effect
    monkeypatch.setattr(reading_ahead, "_ANSWERS_S", 0.2)
    monkeypatch.setattr(cancelling, "_CANCEL_S", 0.2)

    def items(connection: psycopg.Connection[Any]) -> Generator[int, None, None]:
        yield 1
        connection.execute("SELECT pg_sleep(3600)")

    with Proxy(database18.server.port) as proxy:
        connection = psycopg.connect(proxy.through(database18.dsn()))
        found = ahead(items(connection), connection)
        assert next(found) == 1
        proxy.stall()
        found.close()
        assert nobody_reads()
        connection.close()


def test_what_fails_where_it_is_used_is_told_and_ends_the_reading(database18: Database) -> None:
    def use(connection: psycopg.Connection[Any]) -> None:
        with closing(ahead(numbers(connection, *range(0, 1000, 10)), connection)) as found:
            for each in found:
                used.append(1 // (each[0] - 50))  # noqa: PERF401 - until it fails

    used: list[int] = []
    with database18.connect() as connection, pytest.raises(ZeroDivisionError):
        use(connection)
    assert len(used) == 5
