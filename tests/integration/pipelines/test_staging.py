"""Large results wait in the target's database: whole, as they were, and nothing beside them."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal

import psycopg
import pyarrow as pa
import pytest

from penstock.pipelines.applying import Batch, add_batch
from penstock.pipelines.staging import put_table
from support.database import Database
from support.targets import Deltas, Follower, declared, with_tables

STATS = (
    "CREATE TABLE stats (service text, status text, count bigint NOT NULL,"
    " UNIQUE NULLS NOT DISTINCT (service, status))"
)
A = ("s", "a")
ODD = ['"', "\\", ",", "{}", "NULL", "", " ", "a\nb\r\t", "\\N", "'", "ü", '\\"', "\\."]


@pytest.fixture
def follower(database: Database) -> Iterator[Follower]:
    with_tables(database, STATS)
    with Follower(database, staged=True) as follower:
        yield follower


def test_keys_arrive_as_they_were(follower: Follower) -> None:  # M5.3
    keys: Deltas = {
        (service, status): n for n, service in enumerate(ODD, 1) for status in (*ODD, None)
    }
    follower.add(keys)
    assert follower.shown() == keys


def test_a_group_of_nulls_adds_nothing(database18: Database) -> None:  # M5.2
    with_tables(
        database18,
        "CREATE TABLE stats (service text, status text, count bigint, cost numeric,"
        " UNIQUE NULLS NOT DISTINCT (service, status))",
    )
    config = declared(measures={"count": "count", "cost": "sum(price)"})
    empty = pa.table(
        {
            "service": ["s", "s"],
            "status": ["a", "b"],
            "count": pa.array([1, 1]),
            "cost": pa.array([None, None], pa.decimal128(38, 2)),
        }
    )
    with Follower(database18, config) as follower:
        follower.add({A: (1, "5.00")})
        names = ["service", "status"], ["count", "cost"]
        with follower.connection.transaction():
            staged = put_table(follower.connection, "counts", empty, *names)
            add_batch(
                follower.connection, follower.aggregate, Batch(empty.slice(0, 0), staged=staged)
            )
        assert follower.shown() == {A: (2, Decimal("5.00")), ("s", "b"): (1, Decimal(0))}


def test_what_another_attempt_left_there_is_not_counted_and_goes(
    follower: Follower,
) -> None:  # M5.3
    left = pa.table({"service": ["s"], "status": ["a"], "count": pa.array([7])})
    put_table(follower.connection, "counts", left, ["service", "status"], ["count"])
    put_table(follower.connection, "another", left, ["service", "status"], ["count"])
    follower.add({A: 2})
    assert follower.shown() == {A: 2}
    assert follower.database.rows("SELECT DISTINCT aggregate FROM penstock.staged") == [
        ("another",)
    ]


def test_rows_that_the_server_has_lost_are_noticed(follower: Follower) -> None:  # M5.3
    """The table is empty after a crash, as any that is not logged."""
    follower.database.run(
        "CREATE FUNCTION forget() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN DELETE FROM penstock.staged WHERE keys[2] = 'a'; RETURN NULL; END $$",
        "CREATE TRIGGER forget AFTER INSERT ON penstock.staged EXECUTE FUNCTION forget()",
    )
    with pytest.raises(psycopg.OperationalError, match="1 of 2 staged rows"):
        follower.add({A: 2, ("s", "b"): 1})
    assert follower.shown() == {}
    follower.database.run("DROP TRIGGER forget ON penstock.staged")
    follower.add({A: 2, ("s", "b"): 1})
    assert follower.shown() == {A: 2, ("s", "b"): 1}
