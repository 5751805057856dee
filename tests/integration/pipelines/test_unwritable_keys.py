"""Keys that a target's database cannot hold in any text are parked as others are, and stop nothing.

An expression may give a text with a zero byte, and a database that is not UTF-8 lacks characters.
"""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal

import pytest

from penstock.names import TableName
from penstock.pipelines import applying, keys, staging
from penstock.pipelines.applying import ZERO_BYTE, retry
from penstock.pipelines.differences import Difference, differences
from penstock.pipelines.merging import Column, TargetTable
from penstock.postgres.embedded import EmbeddedPostgres
from support.database import Database
from support.ops import on_18
from support.targets import LOG, STATS, A, B, Deltas, Follower, batch_of, declared, with_tables

ZERO, ZERO_TOO = ("a\0b", "a"), (None, "a\0")
# In LATIN1 there is no such character; there is the other one.
MISSING, THERE = ("日本", "a"), ("né", "a")
Counts = dict[tuple[str | None, ...], int]
BY_STATUS = "CREATE TABLE by_status (status text UNIQUE, count bigint NOT NULL)"
ROLLED_UP = {"targets": ["stats", {"table": "by_status", "dimensions": ["status"]}]}
on_latin1 = pytest.mark.parametrize("encoded", ["LATIN1"], indirect=True)


@pytest.fixture(params=["UTF8", "LATIN1", "SQL_ASCII"])
def encoded(server: EmbeddedPostgres, request: pytest.FixtureRequest) -> Iterator[Database]:
    with Database(server, f"encoded_{request.param.lower()}", request.param) as database:
        with_tables(database, STATS, BY_STATUS)
        yield database


@pytest.fixture(params=[False, True], ids=["small", "large"])
def staged(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture
def following(encoded: Database, staged: bool) -> Iterator[Follower]:
    with Follower(encoded, declared(**ROLLED_UP), staged=staged) as follower:
        yield follower


def refused_by(database: Database) -> set[tuple[str | None, ...]]:
    latin = database.value("SHOW server_encoding") == "LATIN1"
    return {ZERO, ZERO_TOO, MISSING} if latin else {ZERO, ZERO_TOO}


def test_the_rest_is_shown_and_what_comes_for_it_adds_up(following: Follower) -> None:  # M5.4
    refused = refused_by(following.database)
    deltas: Counts = {A: 1, ZERO: 2, MISSING: 3, THERE: 4, (None, "a"): 5, ZERO_TOO: 6}
    # Of the coarser target one key is refused, too.
    assert following.add(deltas).parked == len(refused) + 1
    shown = {key: count for key, count in deltas.items() if key not in refused}
    assert following.shown() == shown
    # It does not have the other dimension: all of it is there.
    assert following.shown("by_status", "status") == {("a",): 15}
    assert counts_parked(following) == sorted([*(deltas[key] for key in refused), 6])
    must_equal(following, deltas)
    # More comes, and it waits together; then it is due, and refused once more; then it goes.
    following.add({ZERO: 10, B: 1})
    following.make_due()
    assert following.add({ZERO: 1}).parked == len(refused) + 1
    must_equal(following, {**deltas, ZERO: 13, B: 1})
    following.add({ZERO: -13, MISSING: -3, ZERO_TOO: -6})
    following.make_due()
    following.add({})
    assert counts_parked(following) == []
    shown = {**deltas, B: 1, MISSING: 0}
    assert following.shown() == {k: n for k, n in shown.items() if k not in refused}
    assert following.shown("by_status", "status") == {("a",): 10, ("b",): 1}


@on_18
def test_such_a_key_is_kept_as_its_bytes_with_the_reason(following: Follower) -> None:  # M5.4
    following.add({ZERO: 2, MISSING: 1})
    parked = {str(key): reason for key, _, reason in following.parked()}
    expected = {str({"status": "a", "service": {"utf8": "610062"}}): ZERO_BYTE}
    if MISSING in refused_by(following.database):
        key = {"status": "a", "service": {"utf8": "e697a5e69cac"}}
        expected[str(key)] = "UntranslatableCharacter"
    assert parked == expected


@on_18
def test_where_no_text_can_be_asked_no_tries_are_spent(
    following: Follower, monkeypatch: pytest.MonkeyPatch
) -> None:  # M5.4
    monkeypatch.setattr(applying, "_MOST_TRIES", 0)
    zeros: Counts = {(f"{n}\0", "b"): 1 for n in range(20)}
    following.add({**zeros, A: 1})
    assert following.shown() == {A: 1}
    assert {reason for _, _, reason in following.parked()} == {ZERO_BYTE}


@on_18
def test_other_keys_are_printed_as_the_target_does_however_many_have_zeros(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:  # M5.4
    monkeypatch.setattr(keys, "_MOST_TRIES", 0)
    cost = TargetTable(
        TableName("public", "stats"), (Column("cost", "numeric(10,2)"),), (), frozenset()
    )
    with database.connect() as connection:
        found = keys.printed(connection, cost, [("1\0",), ("1.5",), ("2\0",)])
    assert found == [("1\0",), ("1.50",), ("2\0",)]


@on_18
def test_a_coarser_target_gets_all_of_it_at_once(encoded: Database, staged: bool) -> None:  # M5.4
    # What is not seeded is kept from going below zero: with what, makes a difference.
    with Follower(encoded, declared(**ROLLED_UP), seeded=False, staged=staged) as follower:
        follower.add({A: 1})
        applied = follower.add({("x", "a"): -3, ZERO: 3})
        # Of the finer one only.
        assert applied.below_zero == 1
        assert follower.shown("by_status", "status") == {("a",): 1}


@on_18
@on_latin1
def test_what_the_encoding_has_is_as_any_other_key(following: Follower) -> None:  # M5.4
    following.database.run(
        "CREATE TABLE services (id text PRIMARY KEY)",
        "INSERT INTO services VALUES ('s')",
        "ALTER TABLE stats ADD FOREIGN KEY (service) REFERENCES services",
    )
    following.add({THERE: 3, A: 1})
    assert [key for key, _, _ in following.parked()] == [{"service": "né", "status": "a"}]
    following.database.run("INSERT INTO services VALUES ('né')")
    following.make_due()
    retry(following.connection, following.aggregate, LOG)
    assert following.shown() == {A: 1, THERE: 3}


@on_18
def test_an_audit_of_many_combinations_has_them_all(
    following: Follower, monkeypatch: pytest.MonkeyPatch
) -> None:  # M5.6
    deltas: Counts = {A: 1, ZERO: 2, MISSING: 3, THERE: 4, ZERO_TOO: 5}
    following.add(deltas)
    # So few are many here: they are compared by the server.
    monkeypatch.setattr(staging, "MOST_IN_DRIVER", 2)
    must_equal(following, deltas)


@on_18
@pytest.mark.parametrize("encoded", ["EUC_JP"], indirect=True)
def test_what_python_does_not_know_of_an_encoding_the_server_does(
    following: Follower, monkeypatch: pytest.MonkeyPatch
) -> None:  # M5.4, M5.6
    # Python has that character in EUC_JP, and PostgreSQL does not.
    deltas: Counts = {A: 1, ("¥100", "a"): 2, ("日本", "a"): 3}
    assert following.add(deltas).parked == 1
    assert following.shown() == {A: 1, ("日本", "a"): 3}
    must_equal(following, deltas)
    monkeypatch.setattr(staging, "MOST_IN_DRIVER", 2)
    must_equal(following, deltas)


@on_18
def test_what_is_wrong_with_such_a_key_is_a_difference(following: Follower) -> None:  # M5.6
    following.add({A: 1, ZERO: 2})
    finer, coarser = difference(following, {A: 1, ZERO: 5})
    assert finer.key == {"service": ZERO[0], "status": "a"}
    assert (finer.expected, finer.found) == (Decimal(5), Decimal(2))
    assert (coarser.expected, coarser.found) == (Decimal(6), Decimal(3))


@on_18
def test_a_key_that_is_parked_under_two_spellings_adds_up(following: Follower) -> None:  # M5.6
    # As where the rows of a database came into one that can hold it.
    following.add({A: 1, ZERO: 2})
    key = '{"service": {"utf8": "610062"}, "status": {"utf8": "61"}}'
    following.database.run(
        "INSERT INTO penstock.parked (aggregate, target, key, digest, deltas, reason, is_negative)"
        f" SELECT aggregate, target, '{key}', 'other', deltas, reason, is_negative"
        "   FROM penstock.parked",
        "UPDATE by_status SET count = count + 2",
    )
    must_equal(following, {A: 1, ZERO: 4})
    following.make_due()
    following.add({ZERO: -4})
    assert counts_parked(following) == []


def counts_parked(follower: Follower) -> list[int]:
    return sorted(int(count) for _, count, _ in follower.parked())


def must_equal(follower: Follower, deltas: Deltas) -> None:
    assert difference(follower, deltas) == []


def difference(follower: Follower, deltas: Deltas) -> list[Difference]:
    truth = batch_of(follower.config, deltas).sums
    with follower.connection.transaction(force_rollback=True):
        return [
            each
            for target in follower.aggregate.targets
            for each in differences(follower.connection, follower.config.name, target, truth)
        ]
