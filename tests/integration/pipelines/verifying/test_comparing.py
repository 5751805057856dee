"""What should be, beside what a target shows and what is parked for it."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from pydantic import SecretStr

from penstock.config import Config
from penstock.errors import (
    TableRewritten,
    TargetUnavailable,
    WrongServer,
)
from penstock.pipelines import source_snapshot as source_snapshot_module
from penstock.pipelines import staging, verifying
from penstock.pipelines.differences import Difference
from penstock.pipelines.seeding import seed
from penstock.pipelines.truth import true_sums
from penstock.pipelines.verifying import verify
from penstock.postgres.snapshots import keep_as_they_were
from support.database import Database
from support.ops import on_18
from support.truth import no_spark
from support.verifying import COUNTS, verified


@pytest.mark.usefixtures("either_way")
def test_what_was_just_seeded_is_right_also_when_the_source_has_moved_on(
    database: Database, config: Config
) -> None:  # M5.6
    seed(config, COUNTS, no_spark)
    database.run(
        "INSERT INTO notifications VALUES (4, 's', '1', 9)",
        "DELETE FROM notifications WHERE id = 3",
    )
    done = verified(config)
    assert (done.differences, done.keys, done.parked) == ((), 2, 0)


@pytest.mark.usefixtures("either_way")
def test_it_is_right_under_load_while_the_target_is_ahead_of_the_snapshot(
    database: Database, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:  # M5.6
    """The truth is of a moment before: what the log has since is added to it."""
    seed(config, COUNTS, no_spark)

    def then_more_is_applied(*arguments: Any) -> Any:
        found = true_sums(*arguments)
        database.run(
            "INSERT INTO notifications VALUES (4, 's', '1', 9)",
            "DELETE FROM notifications WHERE id = 3",
        )
        monkeypatch.setattr(verifying, "true_sums", true_sums)
        seed(config, COUNTS, no_spark)
        return found

    monkeypatch.setattr(verifying, "true_sums", then_more_is_applied)
    assert verified(config).differences == ()
    assert database.rows("SELECT service, count FROM stats") == [("s", 3)]


@on_18
def test_a_table_that_is_rewritten_meanwhile_is_not_taken_for_empty(
    database: Database, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:  # M5.5, M5.6
    seed(config, COUNTS, no_spark)
    before = database.rows("SELECT * FROM stats")

    def too_late(*arguments: Any) -> None:
        database.run("ALTER TABLE notifications ALTER id TYPE bigint")
        monkeypatch.setattr(source_snapshot_module, "keep_as_they_were", keep_as_they_were)
        keep_as_they_were(*arguments)

    for audit in (lambda: verified(config, repair=True), lambda: seed(config, COUNTS, no_spark)):
        monkeypatch.setattr(source_snapshot_module, "keep_as_they_were", too_late)
        with pytest.raises(TableRewritten):
            audit()
        assert database.rows("SELECT * FROM stats") == before
        assert audit() is not None
        database.run("ALTER TABLE notifications ALTER id TYPE int")
    assert verified(config).differences == ()


@on_18
def test_rows_of_another_server_are_not_compared_with_the_log(
    database: Database, config: Config
) -> None:  # M3.9, M5.6
    seed(config, COUNTS, no_spark)
    with Database(database.server, "another") as other:
        other.run("CREATE TABLE notifications (LIKE pg_class)")
        there = config.model_copy(
            update={"source": config.source.model_copy(update={"dsn": SecretStr(other.dsn())})}
        )
        here = COUNTS.model_copy(update={"target_dsn": SecretStr(database.dsn())})
        with pytest.raises(WrongServer):
            verify(there, here, no_spark, repair=True)


def test_a_target_that_was_never_set_up_is_one_of_our_errors(
    database: Database, config: Config
) -> None:  # M7.3
    database.run("DROP SCHEMA penstock CASCADE")
    with pytest.raises(TargetUnavailable, match="counts cannot be used: UndefinedTable"):
        verified(config)


@pytest.mark.usefixtures("either_way")
def test_differences_are_found_and_repaired(database: Database, config: Config) -> None:  # M5.6
    seed(config, COUNTS, no_spark)
    database.run(
        "UPDATE stats SET count = 5, cost = 1 WHERE service = 's'",
        "DELETE FROM stats WHERE service IS NULL",
        "INSERT INTO stats VALUES ('x', 7, 3, 0)",
    )
    done = verified(config, repair=True)
    found = {(each.key["service"], each.measure): each for each in done.differences}
    assert found.keys() == {("s", "count"), ("s", "cost"), (None, "count"), ("x", "count")}
    assert found["s", "cost"] == Difference(
        "public.stats", {"service": "s", "status": "1"}, "cost", Decimal("3.50"), Decimal(1)
    )
    assert verified(config).differences == ()


@pytest.mark.usefixtures("either_way")
def test_a_key_that_the_target_cannot_hold_is_compared_with_what_is_parked(
    database: Database, config: Config
) -> None:  # M5.4, M5.6
    database.run("INSERT INTO notifications VALUES (5, 's', 'not a number', 1)")
    seed(config, COUNTS, no_spark)
    done = verified(config)
    assert (done.differences, done.parked) == ((), 1)
    database.run("DELETE FROM penstock.parked")
    done = verified(config, repair=True)
    assert (done.repaired, done.parked) == (True, 1)
    (count, cost) = done.differences
    assert (count.key, count.measure, count.expected, count.found) == (
        {"service": "s", "status": "not a number"},
        "count",
        Decimal(1),
        Decimal(0),
    )
    assert (cost.measure, cost.expected) == ("cost", Decimal(1))
    assert verified(config).differences == ()


@on_18
def test_differences_are_the_same_however_many_are_compared_at_once(
    database: Database, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:  # M5.6
    database.run(
        "INSERT INTO notifications SELECT n,"
        " CASE WHEN n % 5 > 0 THEN 'so \"quoted\", \\ ' || n % 7 END,"
        " CASE n % 6 WHEN 0 THEN 'no number ' || n WHEN 1 THEN '0' || n ELSE n::text END, n / 3"
        " FROM generate_series(10, 60) AS n"
    )
    seed(config, COUNTS, no_spark)
    database.run(
        "UPDATE stats SET count = count + 1 WHERE status % 4 = 0",
        "DELETE FROM stats WHERE service IS NULL",
        "DELETE FROM penstock.parked WHERE key->>'service' IS NULL",
        "UPDATE penstock.parked SET deltas = '{\"count\": \"9\"}' WHERE key->>'status' LIKE '%2'",
        "INSERT INTO stats VALUES ('x', 7, 3, 0)",
    )
    found = []
    for most in (1, 7, 100_000):
        monkeypatch.setattr(staging, "MOST_IN_DRIVER", most)
        found.append(verified(config))
    assert len(found[0].differences) > 20
    assert found[0].differences == found[1].differences == found[2].differences


def test_what_is_seeded_or_repaired_is_parked_as_the_log_has_it(
    database: Database, config: Config
) -> None:  # M5.4, M5.5, M5.6
    """A later session reads it, with other settings perhaps."""
    database.run(
        f"ALTER DATABASE \"{database.name}\" SET datestyle = 'SQL, MDY'",
        "UPDATE notifications SET status = '2026-03-04'",
        "ALTER TABLE stats ALTER status TYPE date USING NULL, ALTER service SET NOT NULL",
    )
    parked = [({"service": None, "status": "2026-03-04"},)]
    seed(config, COUNTS, no_spark)
    assert database.rows("SELECT key FROM penstock.parked") == parked
    database.run("DELETE FROM penstock.parked")
    assert verified(config, repair=True).repaired
    assert database.rows("SELECT key FROM penstock.parked") == parked
