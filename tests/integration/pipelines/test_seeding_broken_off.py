"""Seeding that waits, fails or is ended: one at a time, all or nothing."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any, NoReturn

import pytest

from penstock.changelog.consumers import consumers
from penstock.changelog.reader import LogReader
from penstock.changelog.storage import LocalStorage
from penstock.errors import (
    LogNotWritten,
    SeedingUnderWay,
    TargetClash,
    TargetUnavailable,
)
from penstock.lsn import Lsn
from penstock.pipelines import seeding
from penstock.pipelines.passing import may_pass
from penstock.pipelines.seeding import begin, seed, seed_if_due
from penstock.pipelines.truth import true_sums
from penstock.postgres.cancelling import Cancelled
from support.database import Database
from support.disk import no_room
from support.locks import held_up, waits_for_lock
from support.ops import on_18
from support.seeding import EXPECTED, SEEDED, STATS, config_of, shown, state
from support.targets import declared
from support.truth import no_spark
from support.waiting import eventually


def test_others_see_what_was_there_until_it_is_seeded_also_if_it_is_cut_off(
    source: Database, tmp_path: Path
) -> None:  # M5.5
    source.run("INSERT INTO stats VALUES ('old', 'x', 9), ('s', 'a', 77)")
    old = shown(source)
    config = config_of(source, tmp_path)
    find = (
        "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE 'DELETE%'"
    )
    find += " AND datname = current_database()"
    with source.connect(autocommit=False) as other, ThreadPoolExecutor(1) as pool:
        # A lock that leaves no transaction id, or the snapshot would wait for it.
        other.execute("LOCK TABLE stats IN SHARE MODE")
        seeding = pool.submit(seed, config, SEEDED, no_spark)
        pid = eventually(lambda: source.rows(find), "the seeding waits to write")[0][0]
        assert state(source)[0] == "seeding"
        assert shown(source) == old
        source.run(f"SELECT pg_terminate_backend({pid}, 5000)")
        with pytest.raises(TargetUnavailable, match="counts"):
            seeding.result(10)
    assert state(source)[0] == "seeding"
    assert shown(source) == old
    seed(config, SEEDED, no_spark)
    assert shown(source) == EXPECTED


def test_a_reset_that_fails_leaves_an_aggregate_as_it_was(
    source: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # M5.5
    config = config_of(source, tmp_path)
    seed(config, SEEDED, no_spark)
    source.run("UPDATE penstock.progress SET state = 'live'")
    before = source.rows("SELECT fingerprint, log_id, applied_lsn FROM penstock.progress")
    source.run("INSERT INTO notifications VALUES (9, 's', 'a', 1)")

    def interrupted(*_: Any) -> NoReturn:
        assert state(source)[0] == "seeding"
        raise KeyboardInterrupt

    monkeypatch.setattr(seeding, "true_sums", interrupted)
    with pytest.raises(KeyboardInterrupt):
        seed(config, declared(filter="id > 0"), no_spark)
    # Whoever follows the log reads again what it has passed over meanwhile.
    assert state(source)[0] == "seeded"
    assert source.rows("SELECT fingerprint, log_id, applied_lsn FROM penstock.progress") == before
    assert shown(source) == EXPECTED


@on_18
def test_a_reset_for_other_tables_that_fails_leaves_an_aggregate_its_own(
    source: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # M5.3, M5.5: the job still writes to them
    source.run(STATS.replace("stats", "moved"))
    config = config_of(source, tmp_path)
    seed(config, SEEDED, no_spark)
    kept = "SELECT target, aggregate FROM penstock.targets"

    def fails(*_: Any) -> NoReturn:
        # Meanwhile nobody else gets either.
        for table in ("stats", "moved"):
            with pytest.raises(TargetClash, match="counts keeps"):
                seed(config, declared(name="thief", targets=[table]), no_spark)
        raise KeyboardInterrupt

    monkeypatch.setattr(seeding, "true_sums", fails)
    with pytest.raises(KeyboardInterrupt):
        seed(config, declared(targets=["moved"]), no_spark)
    assert source.rows(kept) == [("public.stats", "counts")]
    assert state(source)[0] == "seeded"
    monkeypatch.undo()
    # The one that it did not get is free, until it does.
    seed(config, declared(targets=["moved"]), no_spark)
    assert source.rows(kept) == [("public.moved", "counts")]


@on_18
def test_a_reset_that_fails_while_a_batch_is_applied_goes_back_behind_that_batch(
    source: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # M5.3, M5.5
    config = config_of(source, tmp_path)
    log = LogReader(tmp_path)
    begun = seed(config, SEEDED, no_spark).lsn
    moved = Lsn(begun + 100)
    monkeypatch.setattr(seeding, "true_sums", lambda *_: 1 / 0)
    # The job has the row while it applies a batch.
    with source.connect(autocommit=False) as job, ThreadPoolExecutor(1) as pool:
        job.execute("SELECT FROM penstock.progress FOR UPDATE")
        job.execute("UPDATE penstock.progress SET applied_lsn = %s, state = 'live'", [str(moved)])
        resetting = pool.submit(seed, config, SEEDED, no_spark)
        eventually(lambda: waits_for_lock(source), "the reset waits")
        job.commit()
        with pytest.raises(ZeroDivisionError):
            resetting.result(15)
    assert state(source) == ("seeded", moved)
    assert log.end().lsn < moved


@on_18
def test_a_reset_waits_for_a_batch_also_where_transactions_are_isolated_by_default(
    source: Database, tmp_path: Path
) -> None:  # M5.5
    config = config_of(source, tmp_path)
    before = seed(config, SEEDED, no_spark)
    source.isolate()
    with held_up(source, "UPDATE penstock.progress SET changes = changes + 1") as run:
        resetting = run(lambda: seed(config, SEEDED, no_spark))
    assert resetting.result(15).lsn > before.lsn


def test_a_reset_that_ends_in_disorder_after_its_commit_is_done_all_the_same(
    source: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # M5.3, M5.5: its rows are there, so is its position
    config = config_of(source, tmp_path)
    seed(config, SEEDED, no_spark)
    source.run("UPDATE penstock.progress SET state = 'live'")
    source.run("INSERT INTO notifications VALUES (9, 's', 'a', 1)")
    write = seeding._write

    def interrupted(*arguments: Any) -> NoReturn:
        raise KeyboardInterrupt(write(*arguments).lsn)

    monkeypatch.setattr(seeding, "_write", interrupted)
    with pytest.raises(KeyboardInterrupt) as raised:
        seed(config, SEEDED, no_spark)
    assert state(source) == ("seeded", raised.value.args[0])
    assert shown(source) == {**EXPECTED, ("s", "a"): 3}


def test_two_do_not_seed_at_once(
    source: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # M5.5
    config = config_of(source, tmp_path)
    others: list[BaseException | None] = []

    def meanwhile(*arguments: Any) -> Any:
        monkeypatch.setattr(seeding, "true_sums", true_sums)
        with pytest.raises(SeedingUnderWay, match="counts is being seeded by another process"):
            seed(config, SEEDED, no_spark)
        with pytest.raises(SeedingUnderWay):
            seed_if_due(config, SEEDED, no_spark, Event())
        others.append(None)
        return true_sums(*arguments)

    monkeypatch.setattr(seeding, "true_sums", meanwhile)
    seed(config, SEEDED, no_spark)
    assert others
    assert shown(source) == EXPECTED
    # And one that is seeded meanwhile is not seeded again.
    assert seed_if_due(config, SEEDED, no_spark, Event()) is None
    source.run("UPDATE penstock.progress SET state = 'seeding'", "DELETE FROM stats")
    assert seed_if_due(config, SEEDED, no_spark, Event()) is not None
    assert shown(source) == EXPECTED


def test_a_seeding_that_waits_for_the_source_ends_when_it_is_stopped(
    source: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # M5.5
    config = config_of(source, tmp_path)
    seed(config, SEEDED, no_spark)
    source.run("UPDATE penstock.progress SET state = 'seeding'")
    stop = Event()
    with ThreadPoolExecutor(1) as pool, source.connect() as other:
        other.execute("SELECT pg_advisory_lock(1)")

        def held_up(connection: Any, *more: Any) -> Any:
            connection.execute("SELECT pg_advisory_lock(1)")
            return true_sums(connection, *more)

        monkeypatch.setattr(seeding, "true_sums", held_up)
        under_way = pool.submit(seed_if_due, config, SEEDED, no_spark, stop)
        eventually(lambda: waits_for_lock(source), "the seeding waits in the source")
        stop.set()
        with pytest.raises(Cancelled):
            under_way.result(5)
        assert not waits_for_lock(source)
    # What was there is there, and the next one seeds it.
    assert state(source)[0] == "seeding"
    assert shown(source) == EXPECTED
    monkeypatch.setattr(seeding, "true_sums", true_sums)
    assert seed_if_due(config, SEEDED, no_spark, Event()) is not None


@on_18
@pytest.mark.parametrize(
    ("held_by", "seeded"),
    [
        ("CREATE TABLE somebody_elses (a int)", True),  # for its snapshot
        ("LOCK TABLE stats IN SHARE MODE", True),  # to write
        ("LOCK TABLE stats IN SHARE MODE", False),
        ("SELECT FROM penstock.progress FOR UPDATE", True),  # to begin
    ],
)
def test_so_does_one_that_waits_elsewhere(
    source: Database, tmp_path: Path, held_by: str, *, seeded: bool
) -> None:  # M5.5
    config = config_of(source, tmp_path)
    seed(config, SEEDED, no_spark)
    source.run("UPDATE penstock.progress SET state = 'seeding'")
    stop = Event()
    with source.connect(autocommit=False) as other, ThreadPoolExecutor(1) as pool:
        other.execute(held_by.encode())
        aggregate = declared(seed=seeded)
        under_way = pool.submit(seed_if_due, config, aggregate, no_spark, stop)
        eventually(lambda: waits_for_lock(source), "it waits")
        stop.set()
        with pytest.raises(Cancelled):
            under_way.result(10)
    assert shown(source) == EXPECTED
    assert state(source)[0] == "seeding"


@on_18
def test_a_reset_that_cannot_hold_the_log_leaves_an_aggregate_as_it_was(
    source: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # M5.5
    config = config_of(source, tmp_path)
    done = seed(config, SEEDED, no_spark)
    monkeypatch.setattr(seeding, "hold", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        seed(config, SEEDED, no_spark)
    assert state(source) == ("seeded", done.lsn)


@on_18
def test_one_that_begins_while_the_log_s_disk_is_full_is_seeded_later(
    source: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # M5.5
    config = config_of(source, tmp_path)
    log = LogReader(tmp_path)
    with source.connect() as target:
        begin(target, SEEDED, str(log.identity.log_id), log.end().lsn)
    with monkeypatch.context() as patch:
        patch.setattr(LocalStorage, "replace", no_room)
        with pytest.raises(LogNotWritten, match="No space left on device") as raised:
            seed_if_due(config, SEEDED, no_spark, Event())
        assert may_pass(raised.value)
    assert state(source)[0] == "seeding"
    assert seed_if_due(config, SEEDED, no_spark, Event()) is not None
    assert shown(source) == EXPECTED
    assert [consumer.name for consumer in consumers(log.storage)] == ["aggregate-counts"]
