"""What a repair adds, and what it leaves as skipped."""

from __future__ import annotations

import json
from concurrent.futures import Future, ThreadPoolExecutor
from decimal import Decimal
from typing import Any
from unittest.mock import Mock

import pytest

from penstock.config import Config
from penstock.decode.classify import RULE_OFF
from penstock.errors import (
    NotSeeded,
)
from penstock.names import TableName
from penstock.pipelines import verifying
from penstock.pipelines.applying import Aggregate, apply
from penstock.pipelines.binding import bind, types_of
from penstock.pipelines.bookkeeping import read_progress
from penstock.pipelines.deciding import Covered
from penstock.pipelines.differences import Difference
from penstock.pipelines.log_deltas import log_deltas
from penstock.pipelines.repairing import repair
from penstock.pipelines.seeding import seed
from penstock.pipelines.target_tables import read_targets
from penstock.pipelines.truth import true_sums
from penstock.pipelines.verifying import Verified
from penstock.postgres.tables import read_tables
from support.database import Database
from support.locks import held_up
from support.ops import on_18
from support.truth import complete, no_spark
from support.verifying import COUNTS, verified
from support.waiting import eventually


def test_two_repairs_at_once_add_a_difference_once(
    database: Database, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:  # M5.6
    seed(config, COUNTS, no_spark)
    database.run("UPDATE stats SET count = 1 WHERE service = 's'")
    waiting = (
        "SELECT pid FROM pg_stat_activity WHERE wait_event = 'advisory'"
        " AND datname = current_database()"
    )
    with ThreadPoolExecutor(1) as pool:
        others: list[Future[Verified]] = []

        def while_another_waits(*arguments: Any) -> None:
            monkeypatch.setattr(verifying, "add_missing", repair)
            others.append(pool.submit(lambda: verified(config, repair=True)))
            eventually(lambda: database.rows(waiting), "the other waits")
            repair(*arguments)

        monkeypatch.setattr(verifying, "add_missing", while_another_waits)
        assert len(verified(config, repair=True).differences) == 1
        assert others[0].result(20).differences == ()
    assert verified(config).differences == ()


@on_18
def test_a_repair_waits_for_a_batch_also_where_transactions_are_isolated_by_default(
    database: Database, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:  # M5.6
    seed(config, COUNTS, no_spark)
    database.run("UPDATE stats SET count = 1 WHERE service = 's'")
    database.isolate()

    def while_a_batch_is_applied(*arguments: Any) -> None:
        with held_up(database, "UPDATE penstock.progress SET changes = changes + 1") as run:
            repairing = run(lambda: repair(*arguments))
        repairing.result(15)

    monkeypatch.setattr(verifying, "add_missing", while_a_batch_is_applied)
    assert verified(config, repair=True).repaired
    assert verified(config).differences == ()


def test_what_was_reset_since_the_audit_is_not_repaired(
    database: Database, config: Config
) -> None:  # M5.6
    seed(config, COUNTS, no_spark)
    with database.connect() as connection:
        audited = read_progress(connection, "counts")
        assert audited is not None
        seed(config, COUNTS, no_spark)
        tables = read_targets(connection, COUNTS)
        key: dict[str, str | None] = {"service": "s", "status": "1"}
        wrong = Difference("public.stats", key, "count", Decimal(2), Decimal(1))
        with pytest.raises(NotSeeded, match="was reset meanwhile"):
            repair(connection, COUNTS, tables, [wrong], audited, {})
    assert verified(config).differences == ()


NOT_IN_WAL = "update of public.notifications: the old {} is not in the WAL"
NO_NUMBER = "public.notifications: a price that Spark cannot hold"
# Of which the status, or the price, cannot be subtracted.
KEY_ONLY = "ALTER TABLE notifications REPLICA IDENTITY DEFAULT"
SKIPPED = "SELECT skipped FROM penstock.progress"


def follow(database: Database, config: Config) -> None:
    """Apply what the log has, as the job does."""
    log = complete(config.log.path, database.wal_position())
    with database.connect() as connection:
        progress = read_progress(connection, "counts")
        assert progress is not None
        types = types_of(read_tables(connection, [TableName("public", "notifications")]))
        bound = bind(COUNTS, types, log.end().lsn)
        covered = Covered(progress.log_id, progress.applied_lsn, log.end().lsn)
        aggregate = Aggregate(
            "counts", read_targets(connection, COUNTS), True, progress.epoch, COUNTS.fingerprint
        )
        apply(
            connection,
            aggregate,
            covered,
            lambda: log_deltas(log, bound, covered.start, covered.end, no_spark),
            Mock(),
        )


def test_a_repair_leaves_those_as_skipped_that_the_source_still_holds(
    database: Database, config: Config
) -> None:  # M4.5, M5.6
    seed(config, COUNTS, no_spark)
    database.run(
        KEY_ONLY,
        "INSERT INTO notifications VALUES (5, 's', '1', 'NaN'), (6, 's', '1', 'NaN')",
        "UPDATE notifications SET status = '3' WHERE id IN (1, 2)",
        "ALTER TABLE notifications REPLICA IDENTITY FULL",
        "DELETE FROM notifications WHERE id = 6",
    )
    follow(database, config)
    lost = {NOT_IN_WAL.format("service"): 2, NO_NUMBER: 3}
    assert database.rows(SKIPPED) == [(lost,)]
    # An audit changes nothing.
    assert verified(config).differences != ()
    assert database.rows(SKIPPED) == [(lost,)]
    assert verified(config, repair=True).repaired
    assert database.rows(SKIPPED) == [({NO_NUMBER: 1},)]
    # As a seeding does.
    seed(config, COUNTS, no_spark)
    assert database.rows(SKIPPED) == [({NO_NUMBER: 1},)]


def test_a_repair_that_finds_nothing_to_correct_has_nothing_to_tell_as_skipped(
    database: Database, config: Config
) -> None:  # M4.5, M5.6
    seed(config, COUNTS, no_spark)
    database.run(KEY_ONLY, "UPDATE notifications SET status = '3' WHERE id = 1")
    database.run("UPDATE notifications SET status = '1' WHERE id = 1")
    follow(database, config)
    assert database.rows(SKIPPED) == [({NOT_IN_WAL.format("service"): 2},)]
    done = verified(config, repair=True)
    assert (done.differences, done.repaired) == ((), False)
    assert database.rows(SKIPPED) == [({},)]


def test_what_was_not_to_count_is_told_after_a_repair_as_before(
    database: Database, config: Config
) -> None:  # M4.5, M5.6
    seed(config, COUNTS, no_spark)
    rule_off = {f"insert of public.archive: {RULE_OFF}": 5}
    database.run(
        f"UPDATE penstock.progress SET skipped = '{json.dumps(rule_off)}'",
        "UPDATE stats SET count = 5 WHERE service = 's'",
    )
    assert verified(config, repair=True).repaired
    assert database.rows(SKIPPED) == [(rule_off,)]


def test_what_a_repair_has_counted_before_it_comes_is_not_told_as_skipped(
    database: Database, config: Config
) -> None:  # M5.6
    """The target is behind: what is skipped between it and the snapshot is in the snapshot."""
    seed(config, COUNTS, no_spark)
    database.run(KEY_ONLY, "UPDATE notifications SET status = '3' WHERE id = 1")
    assert verified(config, repair=True).repaired
    assert database.rows(SKIPPED) == [({NOT_IN_WAL.format("service"): -1},)]
    follow(database, config)
    assert database.rows(SKIPPED) == [({},)]
    assert verified(config).differences == ()


def test_what_is_skipped_after_the_snapshot_of_a_repair_is_still_told(
    database: Database, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:  # M5.6
    seed(config, COUNTS, no_spark)
    database.run(KEY_ONLY, "UPDATE notifications SET status = '3' WHERE id = 1")
    follow(database, config)

    def then_another_is_skipped(*arguments: Any) -> Any:
        found = true_sums(*arguments)
        database.run("UPDATE notifications SET status = '3' WHERE id = 2")
        follow(database, config)
        return found

    def before_another_is_repaired(*arguments: Any) -> None:
        database.run("UPDATE notifications SET status = '3' WHERE id = 3")
        follow(database, config)
        repair(*arguments)

    monkeypatch.setattr(verifying, "true_sums", then_another_is_skipped)
    monkeypatch.setattr(verifying, "add_missing", before_another_is_repaired)
    assert verified(config, repair=True).repaired
    monkeypatch.undo()
    assert database.rows(SKIPPED) == [({NOT_IN_WAL.format("service"): 2},)]
    assert verified(config, repair=True).repaired
    assert database.rows(SKIPPED) == [({},)]
