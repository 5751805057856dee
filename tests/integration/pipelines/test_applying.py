"""Batches into targets on real servers: each delta once, with the position, whatever happens."""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from decimal import Decimal
from typing import Any, NoReturn

import psycopg
import pytest
from psycopg import errors as pg

from penstock.errors import NotSeeded, PipelineFenced, ProgressGap, TargetMismatch
from penstock.lsn import Lsn
from penstock.pipelines.applying import NEGATIVE, Applied, apply
from penstock.pipelines.deciding import Covered
from penstock.pipelines.target_tables import read_targets
from support.database import Database
from support.locks import held_up
from support.ops import on_18
from support.targets import (
    CHECKED,
    LOG,
    OTHER_LOG,
    STATS,
    A,
    B,
    Follower,
    batch_of,
    declared,
    with_tables,
)

N = (None, "a")


def never(_: Covered) -> NoReturn:
    raise AssertionError("it was not to be read again")


# --- M5.3 one transaction, each range once -------------------------------------------------------


def test_deltas_are_added_and_the_position_moves(follower: Follower) -> None:  # M5.3
    assert follower.apply(100, 110, {A: 2, B: 1}) == Applied("apply", changes=2)
    assert follower.apply(110, 120, {A: 1, B: -1}).decision == "apply"
    assert follower.shown() == {A: 3, B: 0}
    progress = follower.progress()
    assert (progress.applied_lsn, progress.changes) == (Lsn(120), 4)


def test_reasons_are_counted_over_batches(follower: Follower) -> None:  # M4.5
    batch = batch_of(follower.config, {A: 1})
    batch.skipped["the old status is not in the WAL"] = 2
    for start in (100, 110):
        covered = Covered(LOG, Lsn(start), Lsn(start + 10))
        apply(follower.connection, follower.aggregate, covered, lambda: batch, never)
    assert follower.progress().skipped == {"the old status is not in the WAL": 4}


def test_the_same_batch_again_changes_nothing(follower: Follower) -> None:  # M5.3
    follower.apply(100, 110, {A: 2})
    assert follower.apply(100, 110, {A: 2}) == Applied("skip")
    assert follower.apply(90, 105, {A: 7}) == Applied("skip")
    assert follower.shown() == {A: 2}
    assert follower.progress().applied_lsn == Lsn(110)


def test_a_batch_that_begins_before_the_position_is_read_again_from_there(
    follower: Follower,
) -> None:  # M5.3
    follower.apply(100, 110, {A: 2})
    asked = []

    def again(start: int, end: int) -> Any:
        asked.append((start, end))
        return {A: 5}

    assert follower.apply(100, 120, {A: 7}, again).decision == "read"
    assert asked == [(110, 120)]
    assert follower.shown() == {A: 7}


def test_a_gap_another_log_and_a_newer_job_change_nothing(follower: Follower) -> None:  # M5.3
    with pytest.raises(ProgressGap):
        follower.apply(105, 110, {A: 1})
    follower.connection.execute("UPDATE penstock.progress SET epoch = 1")
    with pytest.raises(PipelineFenced):
        follower.apply(100, 110, {A: 1})
    follower.connection.execute("UPDATE penstock.progress SET epoch = 0, log_id = %s", [OTHER_LOG])
    with pytest.raises(NotSeeded, match="a position of log"):
        follower.apply(100, 110, {A: 1})
    follower.connection.execute("DELETE FROM penstock.progress")
    with pytest.raises(NotSeeded, match="no row"):
        follower.apply(100, 110, {A: 1})
    assert follower.shown() == {}


@pytest.mark.parametrize("seed", range(2))
def test_random_batches_replayed_and_cut_anywhere_come_to_the_same(
    follower: Follower, seed: int
) -> None:
    """What is shown is the sum of everything up to the position, or 0 if that is negative."""
    # M5.3, M5.4
    chance = random.Random(seed)
    keys = [(service, status) for service in ("s", "t", None) for status in ("a", "b", None)]
    log = [
        (lsn, chance.choice(keys), chance.choice([1, 1, 2, -1, -1, -2])) for lsn in range(101, 301)
    ]

    def between(start: int, end: int) -> dict[Any, int]:
        found: dict[Any, int] = {}
        for lsn, key, amount in log:
            if start < lsn <= end:
                found[key] = found.get(key, 0) + amount
        return found

    start = position = 100
    while position < 300:
        # As after a crash: from where it was, or from before.
        start = chance.choice([position, position, max(100, position - chance.randint(1, 30))])
        end = min(300, start + chance.randint(1, 40))
        follower.apply(start, end, between(start, end), between)
        position = max(position, end)
        sums = {key: amount for key, amount in between(100, position).items() if amount}
        shown = {key: count for key, count in follower.shown().items() if count}
        assert shown == {key: amount for key, amount in sums.items() if amount > 0}
        parked = follower.parked()
        below = {(key["service"], key["status"]): amount for key, amount, _ in parked}
        assert below == {key: amount for key, amount in sums.items() if amount < 0}
        assert follower.progress().applied_lsn == Lsn(position)


def test_an_error_in_the_middle_leaves_rows_and_position_as_they_were(
    database18: Database,
) -> None:  # M5.3
    with_tables(
        database18,
        STATS,
        "CREATE TABLE by_status (status text UNIQUE, count bigint)",
        "CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN RAISE 'not today' USING ERRCODE = 'feature_not_supported'; END $$",
        "CREATE TRIGGER fails BEFORE INSERT ON by_status EXECUTE FUNCTION fail()",
    )
    two = declared(targets=["stats", {"table": "by_status", "dimensions": ["status"]}])
    with Follower(database18, two) as follower:
        with pytest.raises(pg.FeatureNotSupported):
            follower.apply(100, 110, {A: 1})
        assert follower.shown() == {}
        assert follower.progress().applied_lsn == Lsn(100)
        database18.run("DROP TRIGGER fails ON by_status")
        follower.apply(100, 110, {A: 1})
        assert follower.shown() == {A: 1}
        assert follower.shown("by_status", "status") == {("a",): 1}


def test_a_connection_that_is_cut_in_the_middle_leaves_all_as_it_was(
    database: Database,
) -> None:  # M5.3
    with_tables(
        database,
        STATS,
        "CREATE TABLE by_status (status text UNIQUE, count bigint)",
        "INSERT INTO by_status VALUES ('a', 5)",
    )
    two = declared(targets=["stats", {"table": "by_status", "dimensions": ["status"]}])
    with Follower(database, two) as follower:
        pid = follower.connection.info.backend_pid
        with held_up(database, "SELECT FROM by_status FOR UPDATE") as run:
            # The first target is written, the second waits.
            applying = run(lambda: follower.apply(100, 110, {A: 1}))
            database.run(f"SELECT pg_terminate_backend({pid}, 5000)")
            with pytest.raises(psycopg.OperationalError):
                applying.result(10)
    with Follower(database, two) as follower:
        assert (follower.shown(), follower.progress().applied_lsn) == ({}, Lsn(100))
        assert follower.apply(100, 110, {A: 1}).decision == "apply"
        assert follower.shown("by_status", "status") == {("a",): 6}


def test_one_pass_for_several_targets(database: Database) -> None:  # M5.2
    with_tables(
        database,
        "CREATE TABLE stats (service text, status text, count bigint, cost numeric)",
        "CREATE TABLE by_service (service text PRIMARY KEY, cost numeric)",
    )
    config = declared(
        measures={"count": "count", "cost": "sum(price)"},
        targets=[
            "stats",
            {"table": "by_service", "dimensions": ["service"], "measures": ["cost"]},
        ],
    )
    with Follower(database, config) as follower:
        follower.add({A: (2, "3.50"), B: (1, "-10.00"), ("t", "a"): (1, "0")})
        follower.add({A: (-1, "-1.00")})
        assert follower.shown() == {
            A: (1, Decimal("2.50")),
            # Sums may be below zero.
            B: (1, Decimal("-10.00")),
            ("t", "a"): (1, 0),
        }
        # Where all that is shown is zero there is no row.
        rows = database.rows("SELECT * FROM by_service")
        assert rows == [("s", Decimal("-7.50"))]


# --- M5.4 zero, and below zero -------------------------------------------------------------------


def test_null_is_a_key_of_its_own(follower: Follower) -> None:  # M5.2
    for _ in range(2):
        follower.add({N: 1, (None, None): 2, ("s", None): 3, A: 4})
    assert follower.shown() == {N: 2, (None, None): 4, ("s", None): 6, A: 8}


def test_a_zero_net_delta_makes_no_row(follower: Follower) -> None:  # M5.4
    follower.add({A: 0, B: 1})
    assert follower.shown() == {B: 1}
    # One that is there stays, at zero.
    follower.add({B: -1})
    assert follower.shown() == {B: 0}


def test_a_negative_sum_is_kept_and_comes_right(follower: Follower) -> None:  # M5.4
    assert follower.add({A: -3, B: 1}).below_zero == 1
    assert follower.shown() == {B: 1}
    assert follower.parked() == [({"service": "s", "status": "a"}, -3, NEGATIVE)]
    # Nothing comes for it: it stays, and is not told again.
    assert follower.add({B: 1}).below_zero == 0
    assert follower.add({A: 2}).below_zero == 1
    assert follower.parked()[0][1] == -1
    assert follower.shown() == {B: 2}
    assert follower.add({A: 5}).below_zero == 0
    assert follower.shown() == {A: 4, B: 2}
    assert follower.add({A: -6}).below_zero == 1
    assert follower.shown() == {A: 0, B: 2}
    assert follower.parked()[0][1] == -2
    follower.add({A: 2})
    assert follower.shown() == {A: 0, B: 2}
    assert follower.parked() == []
    assert follower.progress().clamped == 0


def test_an_unseeded_aggregate_clamps_and_counts_it(database: Database) -> None:  # M5.4
    with_tables(database, CHECKED)
    with Follower(database, declared(seed=False), seeded=False) as follower:
        follower.add({A: -3, B: 1})
        follower.add({A: 2, B: -2})
        assert follower.shown() == {A: 2, B: 0}
        assert follower.parked() == []
        assert follower.progress().clamped == 2


def test_without_a_floor_counts_go_below_zero(database18: Database) -> None:  # M5.4
    with_tables(database18, STATS)
    with Follower(database18, declared(floor=False)) as follower:
        assert follower.add({A: -3}).below_zero == 0
        assert follower.shown() == {A: -3}


# --- one value, written in several ways ----------------------------------------------------------


def test_a_key_is_one_however_it_is_written(database: Database) -> None:  # M5.4
    with_tables(
        database,
        "CREATE TABLE services (id text PRIMARY KEY)",
        "INSERT INTO services VALUES ('s')",
        "CREATE TABLE stats (at timestamptz, service text REFERENCES services, count int,"
        " UNIQUE (at, service))",
    )
    config = declared(dimensions=["at", "service"])
    arrow, ours = "2026-01-01 00:00:00.000000Z", "2026-01-01 02:00:00+02"
    with Follower(database, config) as follower:
        follower.add({(arrow, "s"): -5})
        # One key is refused, so that all are tried in parts; the other has two spellings.
        follower.add({(arrow, "s"): -3, (ours, "s"): 1, (arrow, "missing"): 1})
        assert sorted(amount for _, amount, _ in follower.parked()) == [-7, 1]
        follower.add({(ours, "missing"): 1})
        assert sorted(amount for _, amount, _ in follower.parked()) == [-7, 2]
        follower.add({(arrow, "s"): 4, (ours, "s"): 4})
        assert [amount for _, amount, _ in follower.parked()] == [2]
        assert list(follower.shown(columns="at, service").values()) == [1]
        database.run("INSERT INTO services VALUES ('missing')")
        follower.make_due()
        follower.add({(arrow, "missing"): 1})
        assert sorted(follower.shown(columns="at, service").values()) == [1, 3]


@pytest.mark.parametrize(
    ("kind", "first", "second", "held"),
    [
        ("char(5)", "ab", "ab   ", "ab   "),
        ("char(5)", "ab", "ab", "ab   "),
        ("bit(3)", "101", "101", "101"),
        ("varchar(5)", "ab", "ab", "ab"),
        ("numeric", "1.50", "1.5", "1.50"),
        ("timestamp", "2026-01-01 00:00:00.0", "2026-01-01 00:00:00", "2026-01-01 00:00:00"),
        ("short", "ab", "ab", "ab"),
        ("timestamptz", "2026-01-01 00:00:00Z", "2026-01-01 01:00:00+01", None),
        ("bool", "t", "true", "t"),
        ("bytea", "\\x00ff", "\\x00FF", "\\x00ff"),
        ("double precision", "nan", "NaN", "NaN"),
        ("double precision", "inf", "Infinity", "Infinity"),
        ("interval", "1 day", "24:00:00", None),
        ("jsonb", '{"a": 1}', '{"a":1}', '{"a": 1}'),
        ('"Mood 100%"', "sad", "sad", "sad"),
    ],
)
def test_targets_may_have_other_types_than_the_source(
    database18: Database, kind: str, first: str, second: str, held: str | None
) -> None:  # M4.6, M5.4
    with_tables(
        database18,
        "CREATE TYPE \"Mood 100%\" AS ENUM ('sad')",
        "CREATE DOMAIN short AS varchar(3)",
        f"CREATE TABLE stats (service {kind} UNIQUE, count int)",
    )
    with Follower(database18, declared(dimensions=["service"])) as follower:
        follower.add({(first,): 1, (second,): 1} if first != second else {(first,): 2})
        follower.add({(second,): 1})
        assert follower.parked() == []
        ((text, count),) = database18.rows("SELECT format('%s', service), count FROM stats")
        assert count == 3
        assert held is None or text.rstrip() == held.rstrip()


# --- the user's own table, and others who use it -------------------------------------------------


def test_a_table_of_the_user_s_own_with_another_key_and_more_columns(
    database: Database,
) -> None:  # M4.1, M5.4
    with_tables(
        database,
        'CREATE TABLE "Own table" (id uuid PRIMARY KEY DEFAULT gen_random_uuid(),'
        ' service text, "100% sta""tus" text, note text NOT NULL DEFAULT \'none\','
        ' updated_at timestamptz DEFAULT now(), "Count" int NOT NULL DEFAULT 0)',
        'INSERT INTO "Own table" (service, "100% sta""tus") VALUES (\'s\', \'a\')',
    )
    config = declared(
        dimensions={"service": "service", '100% sta"tus': "status"},
        measures={"Count": "count"},
        targets=['"Own table"'],
    )
    with Follower(database, config) as follower:
        for _ in range(2):
            follower.add({A: 2, N: 1})
        rows = database.rows('SELECT service, "100% sta""tus", note, "Count" FROM "Own table"')
        assert sorted(rows, key=str) == [("s", "a", "none", 4), (None, "a", "none", 2)]


def test_somebody_who_updates_the_same_row_meanwhile_loses_nothing(
    database: Database,
) -> None:  # M5.3
    with_tables(database, STATS, "ALTER TABLE stats ADD note text")
    with Follower(database) as follower:
        follower.add({A: 5, B: 1})
        with held_up(database, "UPDATE stats SET note = 'x' WHERE status = 'a'") as run:
            applying = run(lambda: follower.add({A: 2, B: 1}))
        assert applying.result(10).decision == "apply"
        assert follower.shown() == {A: 7, B: 2}
        assert database.value("SELECT note FROM stats WHERE status = 'a'") == "x"
        # And what the count was then is what decides whether it goes below zero.
        with held_up(database, "UPDATE stats SET count = 1 WHERE status = 'a'") as run:
            applying = run(lambda: follower.add({A: -4}))
        assert applying.result(10).below_zero == 1
        assert follower.shown() == {A: 0, B: 2}
        assert follower.parked()[0][1] == -3


def test_a_row_that_somebody_else_inserts_meanwhile_is_added_to(
    database: Database,
) -> None:  # M5.3
    with_tables(database, STATS)
    with Follower(database) as follower:
        with held_up(database, "INSERT INTO stats VALUES ('s', 'a', 10)") as run:
            applying = run(lambda: follower.add({A: 2, B: 1}))
        assert applying.result(10).parked == 0
        assert follower.shown() == {A: 12, B: 1}


def test_two_jobs_at_once_apply_a_batch_once(follower: Follower) -> None:  # M5.3
    """The position's row is locked: the second looks when the first is done."""
    with Follower(follower.database) as other, ThreadPoolExecutor(2) as pool:
        barrier = threading.Barrier(2)

        def work(one: Follower, end: int) -> None:
            for start in range(100, 300, 10):
                barrier.wait(10)
                one.apply(start, start + end, {A: end}, lambda low, high: {A: high - low})

        # One is ahead of the other by half a batch.
        for future in [pool.submit(work, follower, 10), pool.submit(work, other, 15)]:
            future.result(30)
    assert follower.shown() == {A: 205}
    assert follower.progress().applied_lsn == Lsn(305)


# --- targets that are not as they should be ------------------------------------------------------


@on_18
def test_a_target_that_is_missing_or_lacks_a_column_is_named(database: Database) -> None:  # M7.3
    with database.connect() as connection:
        with pytest.raises(TargetMismatch, match=r"target public\.stats .* does not exist"):
            read_targets(connection, declared())
        database.run("CREATE TABLE stats (service text, count int)")
        with pytest.raises(TargetMismatch, match="has no column status"):
            read_targets(connection, declared())


def test_a_job_of_another_epoch_is_fenced_in_the_transaction(follower: Follower) -> None:  # M5.3
    follower.add({A: 1})
    follower.database.run("UPDATE penstock.progress SET epoch = 7")
    with pytest.raises(PipelineFenced):
        follower.add({A: 1})
    follower.aggregate = replace(follower.aggregate, epoch=8)
    with pytest.raises(ProgressGap, match="older than this job"):
        follower.add({A: 1})
    assert follower.shown() == {A: 1}
