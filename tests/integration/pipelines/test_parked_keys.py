"""Keys that a target refuses are parked, and do not stop the rest."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from psycopg import errors as pg

from penstock.pipelines.applying import NEGATIVE, Applied, retry
from support.database import Database
from support.ops import on_18
from support.targets import LOG, STATS, A, B, Follower, declared, with_tables

WITH_SERVICES = (
    "CREATE TABLE services (id text PRIMARY KEY)",
    "INSERT INTO services SELECT 's' || n FROM generate_series(1, 40) AS n",
    "CREATE TABLE stats (service text REFERENCES services, status text, count int)",
    "CREATE UNIQUE INDEX ON stats (service, status) NULLS NOT DISTINCT",
)


MISSING = ("hidden", "a")


@pytest.mark.parametrize("deferred", ["", " DEFERRABLE INITIALLY DEFERRED"])
def test_a_key_that_a_foreign_key_refuses_waits_and_the_rest_goes_on(
    database: Database, deferred: str
) -> None:  # M5.4
    statements = [each.replace("services,", f"services{deferred},") for each in WITH_SERVICES]
    with_tables(database, *statements)
    deltas: dict[Any, int] = {(f"s{n}", "a"): n for n in range(1, 41)}
    with Follower(database) as follower:
        applied = follower.add({**deltas, MISSING: 5, ("hidden too", None): 1})
        assert (applied.parked, applied.below_zero) == (2, 0)
        assert follower.shown() == deltas
        hidden, hidden_too = follower.parked()
        assert hidden == (
            {"service": "hidden", "status": "a"},
            5,
            "ForeignKeyViolation: stats_service_fkey",
        )
        assert hidden_too[:2] == ({"service": "hidden too", "status": None}, 1)
        # More comes for it, before it is tried again: it waits with the rest.
        follower.add({MISSING: -2, ("s1", "a"): 1})
        assert follower.parked()[0][1] == 3
        # Tried in vain, together with what comes now; the next try is further off.
        follower.make_due()
        assert follower.add({MISSING: 4}).parked == 2
        assert follower.parked()[0][1] == 7
        assert database.rows("SELECT DISTINCT attempts FROM penstock.parked") == [(2,)]
        assert database.value("SELECT bool_and(retry_at > now() + '1 s') FROM penstock.parked")
        database.run("INSERT INTO services VALUES ('hidden')")
        follower.make_due()
        assert follower.add({}).parked == 1
        assert follower.shown() == {**deltas, ("s1", "a"): 2, MISSING: 7}
        database.run("INSERT INTO services VALUES ('hidden too')")
        follower.make_due()
        follower.add({MISSING: -7, ("hidden too", None): 1})
        assert follower.shown()[("hidden too", None)] == 2
        assert follower.shown()[MISSING] == 0
        assert follower.parked() == []


def test_a_refused_key_that_cancels_out_is_forgotten(database18: Database) -> None:  # M5.4
    with_tables(database18, *WITH_SERVICES)
    with Follower(database18) as follower:
        follower.add({MISSING: 5})
        follower.add({MISSING: -5})
        follower.make_due()
        assert follower.add({}).parked == 0
        assert (follower.shown(), follower.parked()) == ({}, [])


def test_a_key_that_is_refused_for_days_is_still_tried_each_minute(
    database18: Database,
) -> None:  # M5.4
    with_tables(database18, *WITH_SERVICES)
    with Follower(database18) as follower:
        follower.add({MISSING: 5})
        database18.run("UPDATE penstock.parked SET attempts = 5000")
        follower.make_due()
        assert follower.add({("s1", "a"): 1}).parked == 1
        assert database18.rows(
            "SELECT attempts, retry_at - now() BETWEEN '30 s' AND '60 s' FROM penstock.parked"
        ) == [(5001, True)]
        assert follower.shown() == {("s1", "a"): 1}


def test_a_clamp_of_what_is_tried_between_batches_is_counted_too(
    database18: Database,
) -> None:  # M5.4
    with_tables(database18, *WITH_SERVICES)
    with Follower(database18, declared(seed=False), seeded=False) as follower:
        follower.add({MISSING: 5})
        follower.add({MISSING: -7})
        database18.run("INSERT INTO services VALUES ('hidden')")
        follower.make_due()
        before = follower.progress()
        tried = retry(follower.connection, follower.aggregate, LOG)
        assert tried == Applied("apply", below_zero=1)
        assert follower.progress() == replace(before, clamped=1)
        assert (follower.shown(), follower.parked()) == ({}, [])


def test_a_refused_key_whose_sum_is_below_zero_is_kept_as_such(
    database18: Database,
) -> None:  # M5.4
    with_tables(database18, *WITH_SERVICES)
    with Follower(database18) as follower:
        follower.add({MISSING: 5})
        database18.run("INSERT INTO services VALUES ('hidden')")
        follower.make_due()
        follower.add({MISSING: -7})
        assert follower.shown() == {}
        assert follower.parked() == [({"service": "hidden", "status": "a"}, -2, NEGATIVE)]
        follower.add({MISSING: 3})
        assert (follower.shown(), follower.parked()) == ({MISSING: 1}, [])


def test_what_does_not_fit_into_the_column_waits_too(database: Database) -> None:  # M5.4
    with_tables(
        database,
        "CREATE TABLE stats (service varchar(3), status int NOT NULL, count int,"
        " UNIQUE (service, status))",
    )
    with Follower(database) as follower:
        largest = 2**31 - 1
        follower.add({("abc", "1"): largest, ("abc", "2"): 1})
        applied = follower.add(
            {
                ("abc", "1"): 5,
                ("abc", "2"): 1,
                ("abcd", "1"): 1,
                ("abc", "x"): 1,
                ("abc", None): 1,
            }
        )
        assert applied.parked == 4
        assert follower.shown() == {("abc", 1): largest, ("abc", 2): 2}
        assert {reason for _, _, reason in follower.parked()} == {
            "NumericValueOutOfRange",
            "InvalidTextRepresentation",
            "NotNullViolation",
            "StringDataRightTruncation",
        }
        follower.make_due()
        follower.add({("abc", "1"): -10})
        assert follower.shown()[("abc", 1)] == largest - 5
        assert len(follower.parked()) == 3


@pytest.mark.parametrize("staged", [False, True])
def test_a_key_that_is_too_long_for_an_index_waits_too(
    database: Database, staged: bool
) -> None:  # M5.4
    with_tables(database, STATS)
    # Of random letters, which do not compress.
    texts = [random.Random(seed).randbytes(5_000).hex() for seed in (1, 2)]
    with Follower(database, staged=staged) as follower:
        keys = [("s", text) for text in texts]
        applied = follower.add({A: 1, keys[0]: 2, keys[1]: 3})
        assert applied.parked == 2
        assert follower.shown() == {A: 1}
        assert {reason for _, _, reason in follower.parked()} == {"ProgramLimitExceeded"}
        follower.make_due()
        follower.add({A: 1, keys[0]: -2})
        assert follower.shown() == {A: 2}
        assert [count for _, count, _ in follower.parked()] == [3]


def test_a_check_of_the_user_s_parks_what_it_refuses(database18: Database) -> None:  # M5.4
    with_tables(database18, STATS, "ALTER TABLE stats ADD CONSTRAINT few CHECK (count < 10)")
    with Follower(database18) as follower:
        follower.add({A: 9, B: 20})
        assert follower.shown() == {A: 9}
        assert [each[2] for each in follower.parked()] == ["CheckViolation: few"]
        follower.make_due()
        follower.add({B: -15})
        assert follower.shown() == {A: 9, B: 5}


@pytest.mark.parametrize(
    ("raised", "reason"),
    [
        ("RAISE EXCEPTION 'secret %', NEW.status;", "RaiseException"),
        ("SELECT NEW.status INTO STRICT NEW.status WHERE false;", "NoDataFound"),
        ("ASSERT false, 'secret ' || NEW.status;", "AssertFailure"),
        ("CASE NEW.count WHEN -1 THEN NULL; END CASE;", "CaseNotFound"),
        ("RAISE 'secret %', NEW.status USING ERRCODE = 'X1234';", "SQLSTATE X1234"),
        ("RAISE 'secret %', NEW.status USING ERRCODE = '42XYZ';", "SQLSTATE 42XYZ"),
    ],
)
def test_so_does_a_trigger_of_the_user_s(
    database18: Database, raised: str, reason: str
) -> None:  # M5.4, M7.3
    with_tables(database18, STATS)
    with Follower(database18) as follower:
        database18.run(*trigger(raised))
        follower.add({A: 1, B: 1})
        assert follower.shown() == {A: 1}
        assert [each[2] for each in follower.parked()] == [reason]
        database18.run("DROP TRIGGER refused ON stats")
        follower.make_due()
        follower.add({A: 1})
        assert follower.shown() == {A: 2, B: 1}


@pytest.mark.parametrize(
    ("raised", "error"),
    [
        ("RAISE serialization_failure;", pg.SerializationFailure),
        ("RAISE disk_full;", pg.DiskFull),
        ("RAISE lock_not_available;", pg.LockNotAvailable),
        ("RAISE 'gone' USING ERRCODE = '08XYZ';", pg.OperationalError),
        ("RAISE insufficient_privilege;", pg.InsufficientPrivilege),
        ("PERFORM FROM missing;", pg.UndefinedTable),
        ("EXECUTE 'SELEKT';", pg.SyntaxError),
    ],
)
def test_what_passes_or_is_wrong_for_all_keys_parks_none(
    database18: Database, raised: str, error: type[Exception]
) -> None:  # M5.3, M5.4
    with_tables(database18, STATS)
    with Follower(database18) as follower:
        database18.run(*trigger(raised))
        with pytest.raises(error):
            follower.add({A: 1, B: 1})
        assert (follower.shown(), follower.parked()) == ({}, [])
        assert int(follower.progress().applied_lsn) == 100


def trigger(raised: str) -> tuple[str, str]:
    """Which raises something for one of the keys."""
    body = f"BEGIN {raised} RETURN NEW; END"
    when = f"BEFORE INSERT OR UPDATE ON stats FOR EACH ROW WHEN (NEW.status = '{B[1]}')"
    return (
        f"CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $${body}$$",
        f"CREATE TRIGGER refused {when} EXECUTE FUNCTION refuse()",
    )


def test_a_key_that_the_users_own_unique_constraint_refuses_is_parked(
    follower: Follower,
) -> None:  # M5.4
    follower.database.run("ALTER TABLE stats ADD UNIQUE (status)")
    follower.add({A: 2, B: 1})
    assert follower.add({("other", "a"): 3, B: 1}).parked == 1
    assert follower.shown() == {A: 2, B: 2}
    (waits,) = follower.parked()
    assert waits[1:] == (3, "UniqueViolation: stats_status_key")


# A statement for each pattern of NULLs: whichever comes first has done its work when the other
# one fails.
@on_18
@pytest.mark.parametrize(
    ("below", "refused"), [((None, "a"), ("x", "bad")), (("x", "a"), (None, "bad"))]
)
def test_what_went_below_zero_beside_a_refused_key_is_told_once(
    follower: Follower, below: tuple[str | None, ...], refused: tuple[str | None, ...]
) -> None:  # M5.4
    follower.database.run("ALTER TABLE stats ADD CHECK (status <> 'bad')")
    applied = follower.add({below: -2, refused: 1})
    assert (applied.below_zero, applied.parked) == (1, 1)
