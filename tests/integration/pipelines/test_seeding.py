"""What an aggregate begins with: seeding and resetting, from which rows and into which tables."""

from __future__ import annotations

import shutil
from pathlib import Path
from threading import Event
from typing import Any, cast

import pytest
from pydantic import SecretStr
from structlog.testing import capture_logs

from penstock.changelog.consumers import consumers, invalidate, register
from penstock.changelog.reader import LogReader
from penstock.config import Config
from penstock.errors import (
    PipelineFenced,
    ServerRewound,
    TargetClash,
    TargetUnavailable,
    WrongServer,
)
from penstock.lsn import Lsn
from penstock.pipelines import seeding, staging
from penstock.pipelines.grouping_told import Grouping
from penstock.pipelines.job import Job
from penstock.pipelines.locks import try_lock
from penstock.pipelines.seeding import Seeded, seed
from penstock.pipelines.source_rows import Truth
from penstock.pipelines.truth import true_sums
from penstock.pipelines.writing import Writer
from penstock.sections import Dsn
from support.database import Database
from support.ops import on_18
from support.seeding import EXPECTED, SEEDED, STATS, config_of, shown, state
from support.targets import OTHER_LOG, declared
from support.truth import NOTIFICATIONS, no_spark


def test_seeding_replaces_what_was_there_with_what_is_there_now(
    source: Database, tmp_path: Path
) -> None:  # M5.5
    source.run("INSERT INTO stats VALUES ('gone', 'x', 9), ('s', 'a', 77)")
    config = config_of(source, tmp_path)
    before = source.wal_position()
    done = seed(config, SEEDED, no_spark)
    assert done == Seeded(done.lsn, rows=2)
    assert before <= done.lsn <= source.wal_position()
    assert shown(source) == EXPECTED
    assert state(source) == ("seeded", done.lsn)
    log = LogReader(tmp_path)
    # The log keeps what comes after it.
    (consumer,) = consumers(log.storage)
    assert (consumer.name, consumer.applied_lsn) == ("aggregate-counts", log.end().lsn)
    # What was parked and counted belongs to what was there before.
    source.run(
        "UPDATE penstock.progress SET changes = 5, clamped = 3, skipped = '{\"x\": 1}', epoch = 7",
        "INSERT INTO penstock.parked (aggregate, target, key, digest, deltas, reason, is_negative)"
        " VALUES ('counts', 'public.stats', '{\"service\": \"s\", \"status\": \"a\"}', '',"
        " '{\"count\": \"-1\"}', 'x', true)",
        "DELETE FROM notifications WHERE id = 1",
    )
    again = seed(config, SEEDED, no_spark)
    assert again.lsn > done.lsn
    assert shown(source) == {("s", "a"): 1, (None, "b"): 1}
    assert source.rows("SELECT FROM penstock.parked") == []
    assert source.rows("SELECT changes, clamped, skipped, epoch FROM penstock.progress") == [
        (0, 0, {}, 7)
    ]


def test_a_table_that_one_aggregate_keeps_is_not_another_s(
    source: Database, tmp_path: Path
) -> None:  # M5.3: each would add its changes to the other's counts
    """Of another file, too, that has a log of its own."""
    seed(config_of(source, tmp_path / "one"), SEEDED, no_spark)
    other, config = declared(name="thief"), config_of(source, tmp_path / "two")
    with pytest.raises(TargetClash, match=r"thief writes to public\.stats, .* counts keeps") as e:
        seed(config, other, no_spark)
    assert shown(source) == EXPECTED
    assert source.rows("SELECT aggregate FROM penstock.progress") == [("counts",)]
    # As is advised, where the first is gone.
    source.run(e.value.remedy.partition("database: ")[2])
    seed(config, other, no_spark)
    with pytest.raises(TargetClash, match="thief keeps"):
        seed(config_of(source, tmp_path / "three"), SEEDED, no_spark)


def test_a_table_that_an_aggregate_no_longer_writes_is_free(
    source: Database, tmp_path: Path
) -> None:  # M5.3
    source.run(STATS.replace("stats", "moved"))
    config = config_of(source, tmp_path)
    seed(config, SEEDED, no_spark)
    seed(config, declared(targets=["moved"]), no_spark)
    seed(config, declared(name="next"), no_spark)
    assert source.rows("SELECT target, aggregate FROM penstock.targets ORDER BY 1") == [
        ("public.moved", "counts"),
        ("public.stats", "next"),
    ]


def test_an_aggregate_that_a_job_of_another_log_follows_is_not_reset(
    source: Database, tmp_path: Path
) -> None:  # M3.9, M5.5: another file's, of the same name
    first = config_of(source, tmp_path / "one")
    seed(first, SEEDED, no_spark)
    before, config = state(source), config_of(source, tmp_path / "two")
    with source.connect() as job:
        assert try_lock(job, "job", "counts")
        with pytest.raises(PipelineFenced, match="follows another log keeps an aggregate of") as e:
            seed(config, SEEDED, no_spark)
        assert "another name" in e.value.remedy
        assert state(source) == before
        seed(first, SEEDED, no_spark)  # whose job it is
        # Not by its end, which the server notices a moment later.
        job.execute("SELECT pg_advisory_unlock_all()")
    seed(config, SEEDED, no_spark)


def test_without_seeding_a_reset_empties_and_begins_at_the_end_of_the_log(
    source: Database, tmp_path: Path
) -> None:  # M5.4, M5.5
    source.run("INSERT INTO stats VALUES ('s', 'a', 77)")
    done = seed(config_of(source, tmp_path), declared(seed=False), no_spark)
    assert done == Seeded(LogReader(tmp_path).end().lsn, rows=0)
    assert shown(source) == {}
    assert state(source) == ("seeded", done.lsn)


@on_18
@pytest.mark.parametrize("foreign", [False, True])
def test_seeding_is_the_remedy_for_a_consumer_that_was_released_or_is_of_another_log(
    source: Database, tmp_path: Path, foreign: bool
) -> None:  # M3.9, M5.5
    config = config_of(source, tmp_path)
    log = LogReader(tmp_path)
    log_id = OTHER_LOG if foreign else str(log.identity.log_id)
    known = register(log.storage, "aggregate-counts", log_id, Lsn(1))
    if not foreign:
        invalidate(log.storage, known)
    seed(config, SEEDED, no_spark)
    (consumer,) = consumers(log.storage)
    assert (consumer.log_id, consumer.invalidated) == (str(log.identity.log_id), False)
    assert shown(source) == EXPECTED


def test_rows_of_tables_that_inherit_are_not_in_the_log_and_not_in_the_truth(
    source: Database, tmp_path: Path
) -> None:  # M5.5
    source.run(
        "CREATE TABLE more () INHERITS (notifications)",
        "INSERT INTO more VALUES (7, 'other', 'a', 1)",
    )
    seed(config_of(source, tmp_path), SEEDED, no_spark)
    assert shown(source) == EXPECTED


@on_18
@pytest.mark.parametrize("most_in_driver", [100, 1])
def test_a_combination_of_several_tables_is_told_once(
    source: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most_in_driver: int
) -> None:  # M5.5, M7.1
    monkeypatch.setattr(staging, "MOST_IN_DRIVER", most_in_driver)
    source.run(
        "CREATE TABLE archive (LIKE notifications INCLUDING ALL)",
        "ALTER TABLE archive REPLICA IDENTITY FULL",
        "INSERT INTO archive VALUES (1, 's', 'a', 1), (2, 'other', 'a', 2)",
    )
    both = declared(sources=["notifications", "archive"])
    assert seed(config_of(source, tmp_path), both, no_spark).rows == 3
    assert shown(source) == {**EXPECTED, ("s", "a"): 3, ("other", "a"): 1}


@on_18
@pytest.mark.parametrize("most_in_driver", [100, 1])
def test_sums_with_many_decimals_are_exact_however_they_are_written(
    source: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most_in_driver: int
) -> None:  # M5.2, M5.5
    monkeypatch.setattr(staging, "MOST_IN_DRIVER", most_in_driver)
    source.run(
        "ALTER TABLE notifications ALTER price TYPE numeric(28,18)",
        "UPDATE notifications SET price = id * 0.000000000000000001",
        "ALTER TABLE stats ADD cost numeric",
    )
    seed(
        config_of(source, tmp_path),
        declared(measures={"count": "count", "cost": "sum(price)"}),
        no_spark,
    )
    expected = "SELECT service, status, sum(price) FROM notifications GROUP BY 1, 2 ORDER BY 2"
    assert source.rows("SELECT service, status, cost FROM stats ORDER BY 2") == source.rows(
        expected
    )


def test_a_key_that_the_target_refuses_is_parked_when_seeding_too(
    source: Database, tmp_path: Path
) -> None:  # M5.4, M5.5
    source.run("ALTER TABLE stats ALTER service SET NOT NULL")
    seed(config_of(source, tmp_path), SEEDED, no_spark)
    assert shown(source) == {("s", "a"): 2}
    assert source.rows("SELECT key, deltas->>'count', reason FROM penstock.parked") == [
        ({"service": None, "status": "b"}, "1", "NotNullViolation")
    ]


def test_a_target_that_cannot_be_written_is_one_of_our_errors(
    source: Database, tmp_path: Path
) -> None:  # M7.3
    config = config_of(source, tmp_path)
    source.run(
        "CREATE TABLE uses_it (stat int)",
        "CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN RAISE 'hidden'; END $$",
        "CREATE TRIGGER fails BEFORE DELETE ON stats EXECUTE FUNCTION fail()",
    )
    with pytest.raises(TargetUnavailable, match="counts") as raised:
        seed(config, SEEDED, no_spark)
    assert "hidden" not in str(raised.value)
    source.run("DROP TABLE penstock.progress CASCADE")
    with pytest.raises(TargetUnavailable, match="counts"):
        seed(config, SEEDED, no_spark)


def test_rows_of_a_server_that_was_restored_are_not_mixed_with_the_log(
    source: Database, tmp_path: Path
) -> None:  # M3.9, M5.5
    config = config_of(source, tmp_path, Lsn(source.wal_position() + 2**30))
    with pytest.raises(ServerRewound, match=r"WAL ends at .*, before our position") as first:
        seed(config, SEEDED, no_spark)
    assert shown(source) == {}
    # M1.8: nor later, when the server's WAL has grown past the log.
    grown = config_of(source, tmp_path / "grown")
    shutil.copy(tmp_path / "refused.json", tmp_path / "grown")
    with pytest.raises(ServerRewound) as again:
        seed(grown, SEEDED, no_spark)
    assert str(again.value) == str(first.value)


def test_nor_are_those_of_one_whose_transactions_have_not_come_as_far(
    source: Database, tmp_path: Path
) -> None:  # M1.8, M5.5
    config = config_of(source, tmp_path)
    next_xid = int(source.value("SELECT pg_snapshot_xmax(pg_current_snapshot())::text"))
    (tmp_path / "highest_xid").write_text(f"{next_xid + 1000}\n")
    with pytest.raises(ServerRewound, match="next transaction"):
        seed(config, SEEDED, no_spark)
    assert (tmp_path / "refused.json").exists()


def test_nor_are_those_of_another_database(source: Database, tmp_path: Path) -> None:  # M3.9, M5.5
    done = seed(config_of(source, tmp_path), SEEDED, no_spark)
    with Database(source.server, "another") as other:
        other.run(*NOTIFICATIONS)
        here = SEEDED.model_copy(update={"target_dsn": SecretStr(source.dsn())})
        there = Config.model_validate(
            {"source": {"dsn": other.dsn(), "tables": ["notifications"]}, "log": {"path": tmp_path}}
        )
        with pytest.raises(WrongServer, match='this is "another'):
            seed(there, here, no_spark)
    assert state(source) == ("seeded", done.lsn)
    assert shown(source) == EXPECTED


def test_rows_that_are_left_out_are_counted_by_reason(
    source: Database, tmp_path: Path
) -> None:  # M4.5, M4.6, M5.5
    source.run("INSERT INTO notifications VALUES (4, 's', 'a', 'NaN'), (5, 'x', 'y', 'NaN')")
    source.run("ALTER TABLE stats ADD cost numeric")
    config = config_of(source, tmp_path)
    costs = declared(measures={"count": "count", "cost": "sum(price)"})
    assert seed(config, costs, no_spark).rows == 2
    assert shown(source) == EXPECTED
    skipped = "SELECT skipped FROM penstock.progress"
    reason = "public.notifications: a price that Spark cannot hold"
    assert source.rows(skipped) == [({reason: 2},)]
    # Mended, they count.
    source.run("UPDATE notifications SET price = 1 WHERE price = 'NaN'")
    seed(config, costs, no_spark)
    assert shown(source) == {**EXPECTED, ("s", "a"): 3, ("x", "y"): 1}
    assert source.rows(skipped) == [({},)]


@on_18
def test_a_job_tells_that_the_server_still_groups(
    source: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # M5.5, M7.1
    config = config_of(source, tmp_path)
    seed(config, SEEDED, no_spark)
    source.run("UPDATE penstock.progress SET state = 'seeding'")

    def slowly(*arguments: Any) -> Truth:
        *_, on_grouping = arguments
        on_grouping(Grouping(SEEDED.sources[0].table, 120_000_000, 5.2))
        return true_sums(*arguments)

    monkeypatch.setattr(seeding, "true_sums", slowly)
    dsn = Dsn(source.dsn(), "dsn in [source]")
    writer = Writer(SEEDED, dsn, {}, LogReader(tmp_path), Event())
    with capture_logs() as said:
        assert Job(config, cast(Any, None))._is_seeded(writer)
    assert {
        "event": "seeding",
        "log_level": "info",
        "aggregate": "counts",
        "table": "public.notifications",
        "about_rows": 120_000_000,
        "for_s": 5,
    } in said
