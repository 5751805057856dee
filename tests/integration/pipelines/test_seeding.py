"""What an aggregate begins with: seeding and resetting, one at a time, all or nothing."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any, NoReturn, cast

import pytest
from pydantic import SecretStr
from structlog.testing import capture_logs

from penstock.changelog.consumers import consumers, invalidate, register
from penstock.changelog.reader import LogReader
from penstock.changelog.storage import LocalStorage
from penstock.config import Config
from penstock.errors import (
    LogNotWritten,
    PipelineFenced,
    SeedingUnderWay,
    ServerRewound,
    TargetClash,
    TargetUnavailable,
    WrongServer,
)
from penstock.lsn import Lsn
from penstock.pipelines import seeding
from penstock.pipelines.grouping_told import Grouping
from penstock.pipelines.job import Job
from penstock.pipelines.locks import try_lock
from penstock.pipelines.passing import may_pass
from penstock.pipelines.seeding import Seeded, begin, seed, seed_if_due
from penstock.pipelines.source_rows import Truth
from penstock.pipelines.truth import true_sums
from penstock.pipelines.writing import Writer
from penstock.postgres.cancelling import Cancelled
from penstock.sections import Dsn
from support.database import Database
from support.disk import no_room
from support.locks import held_up, waits_for_lock
from support.logs import begin_log
from support.ops import on_18
from support.targets import OTHER_LOG, declared, with_tables
from support.truth import NOTIFICATIONS, no_spark
from support.waiting import eventually

STATS = "CREATE TABLE stats (service text, status text, count bigint, note text DEFAULT 'kept')"
SEEDED = declared()


@pytest.fixture
def source(database: Database) -> Database:
    database.run(
        *NOTIFICATIONS,
        "INSERT INTO notifications VALUES (1, 's', 'a', 1), (2, 's', 'a', 2), (3, NULL, 'b', 3)",
    )
    with_tables(database, STATS)
    return database


EXPECTED = {("s", "a"): 2, (None, "b"): 1}


def config_of(database: Database, path: Path, start: Lsn | None = None) -> Config:
    begin_log(database, path, start or database.wal_position())
    return Config.model_validate(
        {
            "source": {"dsn": database.dsn(), "tables": ["notifications"]},
            "log": {"path": path},
            "aggregate": [SEEDED.model_dump(exclude={"target_dsn"})],
        }
    )


def shown(database: Database) -> dict[Any, int]:
    rows = database.rows("SELECT service, status, count FROM stats")
    assert len({row[:2] for row in rows}) == len(rows)
    return {row[:2]: row[2] for row in rows}


def state(database: Database) -> tuple[str, Lsn]:
    ((state, lsn),) = database.rows("SELECT state, applied_lsn::text FROM penstock.progress")
    return state, Lsn.parse(lsn)


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


def test_rows_of_tables_that_inherit_are_not_in_the_log_and_not_in_the_truth(
    source: Database, tmp_path: Path
) -> None:  # M5.5
    source.run(
        "CREATE TABLE more () INHERITS (notifications)",
        "INSERT INTO more VALUES (7, 'other', 'a', 1)",
    )
    seed(config_of(source, tmp_path), SEEDED, no_spark)
    assert shown(source) == EXPECTED


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
    source.run("DROP TABLE penstock.parked, penstock.targets, penstock.progress")
    with pytest.raises(TargetUnavailable, match="counts"):
        seed(config, SEEDED, no_spark)


def test_rows_of_a_server_that_was_restored_are_not_mixed_with_the_log(
    source: Database, tmp_path: Path
) -> None:  # M3.9, M5.5
    config = config_of(source, tmp_path, Lsn(source.wal_position() + 2**30))
    with pytest.raises(ServerRewound, match=r"WAL ends at .*, before our position"):
        seed(config, SEEDED, no_spark)
    assert shown(source) == {}


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
