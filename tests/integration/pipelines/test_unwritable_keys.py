"""Keys that a target's database cannot hold in any text are parked as others are, and stop nothing.

An expression may give a text with a zero byte, and a database that is not UTF-8 lacks characters.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock.pipelines import staging
from penstock.pipelines.differences import Difference, differences
from penstock.postgres.embedded import EmbeddedPostgres
from support.database import Database
from support.ops import on_18
from support.targets import STATS, A, B, Deltas, Follower, batch_of, declared, with_tables

ZERO = ("a\0b", "a")
# In LATIN1 there is no such character; there is the other one.
MISSING, THERE = ("日本", "a"), ("né", "a")
Counts = dict[tuple[str | None, ...], int]
BY_STATUS = "CREATE TABLE by_status (status text UNIQUE, count bigint NOT NULL)"
ROLLED_UP = {"targets": ["stats", {"table": "by_status", "dimensions": ["status"]}]}


@pytest.fixture(params=["UTF8", "LATIN1", "SQL_ASCII"])
def encoded(server: EmbeddedPostgres, request: pytest.FixtureRequest) -> Iterator[Database]:
    with Database(server, f"encoded_{request.param.lower()}", request.param) as database:
        with_tables(database, STATS, BY_STATUS)
        yield database


@pytest.fixture(params=[False, True], ids=["small", "large"])
def following(encoded: Database, request: pytest.FixtureRequest) -> Iterator[Follower]:
    with Follower(encoded, declared(**ROLLED_UP), staged=request.param) as follower:
        yield follower


def refused_by(database: Database) -> set[tuple[str, str]]:
    latin = database.value("SHOW server_encoding") == "LATIN1"
    return {ZERO, MISSING} if latin else {ZERO}


def test_the_rest_is_shown_and_what_comes_for_it_adds_up(following: Follower) -> None:  # M5.4
    refused = refused_by(following.database)
    deltas: Counts = {A: 1, ZERO: 2, MISSING: 3, THERE: 4, (None, "a"): 5}
    applied = following.add(deltas)
    assert applied.parked == len(refused)
    shown = {key: count for key, count in deltas.items() if key not in refused}
    assert following.shown() == shown
    # A coarser target does not have the dimension: all of it is there.
    assert following.shown("by_status", "status") == {("a",): 15}
    assert counts_parked(following) == sorted(deltas[key] for key in refused)
    must_equal(following, deltas)
    # More comes, and it waits together; then it is due, and refused once more; then it goes.
    following.add({ZERO: 10, B: 1})
    following.make_due()
    assert following.add({ZERO: 1}).parked == len(refused)
    assert counts_parked(following) == sorted({**deltas, ZERO: 13}[key] for key in refused)
    must_equal(following, {**deltas, ZERO: 13, B: 1})
    following.add({ZERO: -13, MISSING: -3})
    following.make_due()
    following.add({})
    assert counts_parked(following) == []
    shown = {**deltas, B: 1, ZERO: 0, MISSING: 0}
    assert following.shown() == {k: n for k, n in shown.items() if k not in refused}
    assert following.shown("by_status", "status") == {("a",): 10, ("b",): 1}


@on_18
def test_an_audit_of_many_combinations_has_them_all(
    following: Follower, monkeypatch: pytest.MonkeyPatch
) -> None:  # M5.6
    deltas: Counts = {A: 1, ZERO: 2, MISSING: 3, THERE: 4}
    following.add(deltas)
    # So few are many here: they are compared by the server.
    monkeypatch.setattr(staging, "MOST_IN_DRIVER", 2)
    must_equal(following, deltas)


@on_18
def test_what_is_wrong_with_such_a_key_is_a_difference(following: Follower) -> None:  # M5.6
    following.add({A: 1, ZERO: 2})
    found = difference(following, {A: 1, ZERO: 5})
    key = {"service": ZERO[0], "status": "a"}
    assert found == [Difference("public.stats", key, "count", 5, 2)]  # type: ignore[arg-type]  # equal


def counts_parked(follower: Follower) -> list[int]:
    return sorted(int(count) for _, count, _ in follower.parked())


def must_equal(follower: Follower, deltas: Deltas) -> None:
    assert difference(follower, deltas) == []


def difference(follower: Follower, deltas: Deltas) -> list[Difference]:
    stats = follower.aggregate.targets[0]
    truth = batch_of(follower.config, deltas).sums
    with follower.connection.transaction(force_rollback=True):
        return differences(follower.connection, follower.config.name, stats, truth)
