"""A target that is away, busy, locked or refuses for a while is written when it can be, once."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import psycopg
import pytest
from structlog.testing import capture_logs

from penstock.changelog.consumers import consumers
from penstock.changelog.storage import LocalStorage
from penstock.changelog.writer import LogWriter
from penstock.errors import (
    LogNotWritten,
    PipelineFenced,
    ProgressGap,
    SourceUnavailable,
    TargetUnavailable,
)
from penstock.lsn import Lsn
from penstock.pipelines import writing
from penstock.pipelines.applying import Applied, Batch
from penstock.pipelines.deciding import Covered
from penstock.pipelines.staging import put_table
from penstock.pipelines.writing import Writer
from support.disk import no_room
from support.locks import held_up, waits_for_lock
from support.ops import on_18
from support.targets import A, B, batch_of, declared
from support.waiting import eventually
from support.writers import Job


def test_a_lost_connection_is_opened_again_and_the_batch_applied_once(job: Job) -> None:  # M5.3
    with job.writer() as writer:
        job.apply(writer, 0, {A: 1})
        job.kill(writer)
        assert job.applied(writer, 1, {A: 1}) == Applied("apply", changes=1)
        with held_up(job.database, "SELECT FROM stats FOR UPDATE") as run:
            applying = run(lambda: job.applied(writer, 2, {A: 1}))
            job.kill(writer)
        assert applying.result(15) == Applied("apply", changes=1)
        # Whether it had committed or not: what is applied already is skipped.
        assert job.apply(writer, 2, {A: 1}) == Applied("skip")
    assert job.shown() == {A: 3}


@on_18
def test_what_was_missed_while_the_target_was_away_comes_from_the_log(job: Job) -> None:  # M5.3
    with job.writer() as writer:
        job.apply(writer, 0, {A: 1})
        job.kill(writer)
        assert job.apply(writer, 1, {A: 1}) is None
        # It is left alone for a moment, and the batches go on.
        writer._try_at += 60
        assert job.apply(writer, 2, {A: 1}) is None
        writer._try_at -= 60
        assert job.applied(writer, 3, {A: 5}) == Applied("read", changes=1)
        # Only what this very job left behind: anything else is a gap still.
        with pytest.raises(ProgressGap):
            job.apply(writer, 5, {A: 1})
    assert job.shown() == {A: 6}


@on_18
def test_a_long_range_that_was_missed_is_read_in_portions(job: Job) -> None:  # M5.3
    with job.writer() as writer:
        job.leave_behind(writer)
        for end in (30, 50):
            # Between them, the others have their turn.
            assert job.apply(writer, 5, {A: 2}, at_once=20) == Applied("read", changes=1)
            assert writer.is_behind
            assert int(writer.applied_lsn) == job.start + end
        assert job.apply(writer, 6, {A: 2}, at_once=20) == Applied("read", changes=1)
        assert not writer.is_behind
        assert job.apply(writer, 7, {A: 1}) == Applied("apply", changes=1)
    assert job.shown() == {A: 8}


@on_18
def test_between_two_portions_it_may_be_reset_or_started_again(job: Job) -> None:  # M5.3, M5.5
    with job.writer() as writer:
        job.leave_behind(writer)
        job.apply(writer, 5, {A: 2}, at_once=20)
        assert writer.is_behind
        # It is seeded anew, up to another position.
        job.database.run("UPDATE penstock.progress SET state = 'seeding'")
        assert job.apply(writer, 5, {A: 9}, at_once=20) == Applied("wait")
        assert (writer.needs_seed, writer.is_behind) == (True, False)
        seeded = Lsn(job.start + 25)
        job.database.run(f"UPDATE penstock.progress SET state = 'seeded', applied_lsn = '{seeded}'")
        assert job.apply(writer, 6, {A: 2}, at_once=15) == Applied("read", changes=1)
        assert writer.is_behind
    # The next job begins where that one ended.
    with job.writer() as writer:
        assert int(writer.applied_lsn) == job.start + 40
        assert job.apply(writer, 4, {A: 1}) == Applied("apply", changes=1)
    assert job.shown() == {A: 6}


@on_18
def test_a_trigger_that_misses_its_search_path_is_told_what_to_do(job: Job) -> None:  # M7.6
    job.database.run(
        "CREATE TABLE audit (n bigint)",
        "CREATE FUNCTION audit() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN INSERT INTO audit VALUES (1); RETURN NULL; END $$",
        "CREATE TRIGGER audit AFTER INSERT ON stats EXECUTE FUNCTION audit()",
    )
    with job.writer() as writer:
        with pytest.raises(TargetUnavailable, match="UndefinedTable") as caught:
            job.apply(writer, 0, {A: 1})
        assert "ALTER FUNCTION … SET search_path = public" in caught.value.remedy
        job.database.run("ALTER FUNCTION audit() SET search_path = public")
        assert job.applied(writer, 0, {A: 1}) == Applied("apply", changes=1)
    assert job.database.value("SELECT count(*) FROM audit") == 1


@on_18
def test_a_serialization_failure_is_tried_again(job: Job) -> None:  # M5.3
    job.database.run(
        "CREATE SEQUENCE tries",
        "CREATE FUNCTION fail_once() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " IF nextval('public.tries') = 1 THEN RAISE serialization_failure; END IF;"
        " RETURN NULL; END $$",
        "CREATE TRIGGER fail_once AFTER INSERT ON stats EXECUTE FUNCTION fail_once()",
    )
    with job.writer() as writer, capture_logs() as said:
        assert job.applied(writer, 0, {A: 1}) == Applied("apply", changes=1)
    # Without the server's text, which may quote a row.
    assert said[0] == {
        "event": "target not written, trying again",
        "log_level": "warning",
        "aggregate": "counts",
        "reason": "another transaction was in the way",
        "error": "SerializationFailure",
        "sqlstate": "40001",
    }
    assert [each["event"] for each in said[1:]] == ["target written again"]
    assert job.shown() == {A: 1}


@on_18
def test_a_large_batch_is_applied_also_where_transactions_are_isolated_by_default(
    job: Job,
) -> None:  # M5.3
    job.database.isolate()
    with job.writer() as writer, job.database.connect() as executor, capture_logs() as said:
        covered = Covered(str(job.log.identity.log_id), Lsn(job.start), Lsn(job.start + 10))
        batch = batch_of(writer.config, {A: 2, B: 1})

        def compute() -> Batch:
            names = ["service", "status"], ["count"]
            staged = put_table(executor, writer.name, batch.sums, *names)
            return replace(batch, sums=batch.sums.slice(0, 0), staged=staged)

        applied = writer.apply(covered, compute, lambda _: (compute(), covered.end))
    assert (applied, said) == (Applied("apply", changes=2), [])
    assert job.shown() == {A: 2, B: 1}
    assert job.database.rows("SELECT FROM penstock.staged") == []


@on_18
def test_what_somebody_changes_meanwhile_is_waited_for_also_there(job: Job) -> None:  # M5.3
    job.database.isolate()
    with job.writer() as writer:
        job.apply(writer, 0, {A: 1})
        with capture_logs() as said, held_up(job.database, "UPDATE stats SET count = 5") as run:
            applying = run(lambda: job.apply(writer, 1, {A: 1}))
        assert (applying.result(15), said) == (Applied("apply", changes=1), [])
    assert job.shown() == {A: 6}
    # At the start it may be a reset, which has the row.
    with held_up(job.database, "UPDATE penstock.progress SET changes = 0") as run:
        starting = run(job.writer().__enter__)
    with starting.result(15) as writer:
        assert not writer.away


@on_18
@pytest.mark.parametrize("limit", ["statement_timeout", "lock_timeout"])
def test_a_limit_on_statements_is_not_for_the_job(job: Job, limit: str) -> None:  # M5.3
    job.database.run(f'ALTER DATABASE "{job.database.name}" SET {limit} = 100')
    with job.writer() as writer:
        job.apply(writer, 0, {A: 1})
        with held_up(job.database, "SELECT FROM stats FOR UPDATE") as run:
            applying = run(lambda: job.apply(writer, 1, {A: 1}))
            time.sleep(0.3)
        assert applying.result(15) == Applied("apply", changes=1)
    assert job.shown() == {A: 2}


@on_18
@pytest.mark.parametrize("limit", ["idle_in_transaction_session_timeout", "transaction_timeout"])
def test_nor_is_one_on_transactions(job: Job, limit: str) -> None:  # M5.3
    job.database.run(f'ALTER DATABASE "{job.database.name}" SET {limit} = 100')
    with job.writer() as writer, capture_logs() as said:
        batch = batch_of(writer.config, {A: 1})
        covered = Covered(str(job.log.identity.log_id), Lsn(job.start), Lsn(job.start + 10))

        def compute() -> Batch:
            time.sleep(0.5)
            return batch

        applied = writer.apply(covered, compute, lambda _: (batch, covered.end))
    assert applied == Applied("apply", changes=1)
    assert said == []


@on_18
def test_a_deadlock_is_tried_again(job: Job) -> None:  # M5.3
    with (
        job.writer() as writer,
        ThreadPoolExecutor(2) as pool,
        job.database.connect(autocommit=False) as other,
    ):
        job.apply(writer, 0, {A: 1})
        other.execute("SET deadlock_timeout = '1min'")
        other.execute("SELECT FROM stats FOR UPDATE")
        with capture_logs() as said:
            applying = pool.submit(job.applied, writer, 1, {A: 1})
            eventually(lambda: waits_for_lock(job.database), "it waits")
            other.execute("SELECT FROM penstock.progress FOR UPDATE")
            other.rollback()
            assert applying.result(20) == Applied("apply", changes=1)
    assert next(each["error"] for each in said if "error" in each) == "DeadlockDetected"
    assert job.shown() == {A: 2}


@on_18
def test_a_target_that_somebody_has_locked_is_left_alone_after_a_while(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:  # M5.3
    monkeypatch.setattr(writing, "_WAIT_S", 0.2)
    with job.writer() as writer, job.database.connect(autocommit=False) as other:
        other.execute("LOCK TABLE stats")
        assert job.apply(writer, 0, {A: 1}) is None
        other.rollback()
        assert job.applied(writer, 0, {A: 1}) == Applied("apply", changes=1)


@on_18
@pytest.mark.parametrize("table", ["stats", "penstock.progress"])
def test_nor_is_it_waited_for_at_the_start(
    job: Job, monkeypatch: pytest.MonkeyPatch, table: str
) -> None:  # M5.3
    monkeypatch.setattr(writing, "_WAIT_S", 0.2)
    with job.database.connect(autocommit=False) as other:
        other.execute(f"LOCK TABLE {table}".encode())
        writer = job.writer()
        writer.check()
        with job.writer() as claimed:
            assert claimed.away
        if table != "stats":  # of a target only the catalog is read
            assert writer.away


@on_18
def test_a_target_that_is_away_at_first_is_claimed_when_it_comes(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:  # M5.3
    with job.writer() as writer:
        job.apply(writer, 0, {A: 1})
    with monkeypatch.context() as patch:

        def away(*_: object, **__: object) -> None:
            raise SourceUnavailable("the server is away", remedy="Start it")

        patch.setattr(writing, "connect_target", away)
        late = job.writer().__enter__()
        assert isinstance(late.away, SourceUnavailable)
        late._try_at = 0.0
        with capture_logs() as said:
            assert job.apply(late, 1, {A: 1}) is None
        assert [(each["error"], each["reason"]) for each in said] == [
            ("SourceUnavailable", "the server is away")
        ]
    with late:
        assert job.applied(late, 2, {A: 5}) == Applied("read", changes=1)
        # It is the only one now.
        monkeypatch.setattr(writing, "_CLAIM_S", 0.3)
        with pytest.raises(PipelineFenced):
            job.writer().__enter__()
    assert job.shown() == {A: 6}


@on_18
def test_a_target_that_only_reads_for_a_while_is_written_when_it_does_not(
    job: Job,
) -> None:  # M5.3
    only_reads = f'ALTER DATABASE "{job.database.name}" SET default_transaction_read_only = '

    def refused(writer: Writer) -> bool:
        return isinstance(writer.away, psycopg.errors.ReadOnlySqlTransaction)

    with job.writer() as writer:
        job.apply(writer, 0, {A: 1})
        job.database.run(only_reads + "on")
        job.kill(writer)
        eventually(lambda: job.apply(writer, 1, {A: 1}) or refused(writer), "it is refused")
        job.database.run("SET default_transaction_read_only = off", only_reads + "off")
        assert job.applied(writer, 1, {A: 1}) == Applied("apply", changes=1)
        job.database.run(only_reads + "on")
    # So is one that it is begun with.
    with job.writer() as writer:
        assert refused(writer)
        job.database.run("SET default_transaction_read_only = off", only_reads + "off")
        assert job.applied(writer, 2, {A: 1}) == Applied("apply", changes=1)
    assert job.shown() == {A: 3}


@on_18
@pytest.mark.parametrize("seed", [True, False])
def test_one_that_begins_while_the_log_s_disk_is_full_begins_when_there_is_room(
    job: Job, monkeypatch: pytest.MonkeyPatch, seed: bool
) -> None:  # M5.3, M5.5
    with LogWriter(job.path) as log:
        log.flush(Lsn(job.start + 10))
    with monkeypatch.context() as patch:
        patch.setattr(LocalStorage, "replace", no_room)
        writer = job.writer(declared(seed=seed)).__enter__()
        assert isinstance(writer.away, LogNotWritten)
        writer._try_at = 0.0
        assert job.apply(writer, 0, {A: 1}) is None
    # Else the log would not be told either when there is room.
    assert job.database.rows("SELECT FROM penstock.progress") == []
    with writer:
        # It counts from where the log is then.
        assert job.applied(writer, 0, {A: 1}) == Applied("wait" if seed else "skip")
        (consumer,) = consumers(job.log.storage)
        assert int(consumer.applied_lsn) == job.start + 10
        assert writer.needs_seed is seed
