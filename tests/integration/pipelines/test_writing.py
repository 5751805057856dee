"""One aggregate's writer: what passes is tried again, and one job works at a time."""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from penstock.changelog.consumers import consumers, invalidate
from penstock.changelog.reader import LogReader
from penstock.changelog.storage import LocalStorage
from penstock.changelog.writer import LogWriter
from penstock.declarations import AggregateConfig
from penstock.errors import (
    LogForeignPosition,
    NotSeeded,
    PipelineFenced,
    ProgressGap,
    SourceUnavailable,
    TargetMismatch,
    TargetUnavailable,
)
from penstock.lsn import Lsn
from penstock.pipelines import writing
from penstock.pipelines.applying import Applied, Batch
from penstock.pipelines.deciding import Covered
from penstock.pipelines.writing import Writer
from penstock.postgres.tables import read_tables
from penstock.sections import Dsn
from support.database import Database
from support.locks import held_up, waits_for_lock
from support.logs import begin_log
from support.ops import on_18
from support.targets import OTHER_LOG, batch_of, declared, with_tables
from support.waiting import eventually

STATS = (
    "CREATE TABLE stats (service text, status text, count int NOT NULL DEFAULT 0,"
    " UNIQUE NULLS NOT DISTINCT (service, status))"
)
UNSEEDED = declared(seed=False)
A, B = ("s", "a"), ("s", "b")


class Job:
    """A log that grows with each batch, and writers that follow it."""

    def __init__(self, database: Database, path: Path) -> None:
        self.database = database
        self.path = path
        begin_log(database, path, database.wal_position())
        self.log = LogReader(path)
        self.start = int(self.log.end().lsn)
        self.stopping = threading.Event()

    def writer(self, config: AggregateConfig = UNSEEDED, user: str = "postgres") -> Writer:
        dsn = Dsn(self.database.dsn(user), "dsn in [source]")
        with self.database.connect() as connection:
            tables = read_tables(connection, [source.table for source in config.sources])
        return Writer(config, dsn, tables, self.log, self.stopping)

    def apply(
        self, writer: Writer, number: int, deltas: Any, at_once: int = 2**20
    ) -> Applied | None:
        """The batch of that number, each ten bytes of WAL; so many are read again at once."""
        start = self.start + 10 * number
        covered = Covered(str(self.log.identity.log_id), Lsn(start), Lsn(start + 10))
        if self.log.end().lsn < covered.end:
            with LogWriter(self.path) as log:
                log.flush(covered.end)
        batch = batch_of(writer.config, deltas)
        return writer.apply(
            covered,
            lambda: batch,
            lambda missed: (batch, min(missed.end, Lsn(missed.start + at_once))),
        )

    def applied(self, writer: Writer, number: int, deltas: Any) -> Applied:
        """As `apply`, as often as it takes."""
        applied = eventually(lambda: self.apply(writer, number, deltas), "it is applied")
        assert applied is not None
        return applied

    def shown(self) -> dict[Any, int]:
        return {row[:2]: row[2] for row in self.database.rows("SELECT * FROM stats")}

    def leave_behind(self, writer: Writer) -> None:
        """One batch is applied, the next one is not."""
        self.apply(writer, 0, {A: 1})
        self.kill(writer)
        assert self.apply(writer, 1, {A: 1}) is None
        writer._try_at = 0.0

    def kill(self, writer: Writer) -> None:
        assert writer._connection is not None
        self.database.run(
            f"SELECT pg_terminate_backend({writer._connection.info.backend_pid}, 5000)"
        )


@pytest.fixture
def job(database: Database, tmp_path: Path) -> Iterator[Job]:
    with_tables(database, STATS)
    job = Job(database, tmp_path)
    yield job
    job.stopping.set()


def test_without_seeding_it_counts_from_where_the_log_is(job: Job) -> None:  # M5.3, M5.4
    with job.writer() as writer:
        assert (writer.needs_seed, int(writer.applied_lsn)) == (False, job.start)
        with capture_logs() as said:
            applied = job.apply(writer, 0, {A: 2, B: -1})
        assert applied == Applied("apply", changes=2, below_zero=1)
        # An alarm, without the key.
        (alarm,) = said
        assert alarm == {
            "event": "counts below zero",
            "log_level": "error",
            "aggregate": "counts",
            "keys": 1,
        }
        assert int(writer.applied_lsn) == job.start + 10
    # It goes on where it was.
    with job.writer() as writer:
        assert int(writer.applied_lsn) == job.start + 10
        assert job.apply(writer, 0, {A: 2}) == Applied("skip")
        job.apply(writer, 1, {A: 1})
    assert job.shown() == {A: 3}


@on_18
def test_the_log_keeps_what_is_not_applied_and_what_the_job_still_plans_from(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:  # M5.3
    def told() -> int:
        (consumer,) = consumers(job.log.storage)
        assert consumer.name == "aggregate-counts"
        return consumer.applied_lsn - job.start

    far = Lsn(job.start + 1000)
    monkeypatch.setattr(writing, "_REGISTER_EVERY_S", 0.0)
    with job.writer() as writer:
        assert told() == 0
        for number in (0, 1, 2):
            job.apply(writer, number, {A: 1})
        assert told() == 0, "what is told now and then costs no batch anything"
        writer.register(Lsn(job.start + 15))
        assert told() == 15
        # No room on the disk: it is told later.
        with monkeypatch.context() as patch, capture_logs() as said:
            patch.setattr(LocalStorage, "replace", full)
            writer.register(far)
        assert (told(), said[0]["reason"]) == (15, "[Errno 28] No space left on device")
        writer.register(far)
        assert told() == 30
        writer.register(Lsn(job.start + 20))
        assert told() == 30
        # A reset has told where it begins, which may be further on than what was applied.
        job.apply(writer, 3, {A: 1})
        job.database.run("UPDATE penstock.progress SET state = 'seeding'")
        assert job.apply(writer, 4, {A: 1}) == Applied("wait")
        writer.register(far)
        assert told() == 30
        job.database.run("UPDATE penstock.progress SET state = 'live'")
    # Killed before it had told all of it: the next job does, although nothing comes any more.
    with job.writer() as writer:
        writer.register(far)
        assert told() == 40
        job.apply(writer, 4, {A: 1})
        monkeypatch.setattr(writing, "_REGISTER_EVERY_S", 60.0)
        writer.register(far)
        assert told() == 40, "not for each batch"
        # It was too slow for the disk: what it needs may be gone.
        monkeypatch.setattr(writing, "_REGISTER_EVERY_S", 0.0)
        (consumer,) = consumers(job.log.storage)
        invalidate(job.log.storage, consumer)
        with pytest.raises(NotSeeded, match=r"was released when .* Run: penstock reset counts"):
            writer.register(far)


def full(*_arguments: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_one_that_is_to_be_seeded_applies_nothing_until_then(job: Job) -> None:  # M5.5
    with job.writer(declared()) as writer:
        assert writer.needs_seed
        assert job.apply(writer, 0, {A: 2}) == Applied("wait")
        assert writer.needs_seed
    assert job.shown() == {}
    with job.writer(declared()) as writer:
        assert writer.needs_seed


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


def test_a_row_that_somebody_inserts_meanwhile_is_added_to(job: Job) -> None:  # M5.3
    with (
        job.writer() as writer,
        ThreadPoolExecutor(1) as pool,
        job.database.connect(autocommit=False) as other,
    ):
        other.execute("INSERT INTO stats VALUES ('s', 'a', 10)")
        applying = pool.submit(job.apply, writer, 0, {A: 1})
        eventually(lambda: waits_for_lock(job.database), "it waits")
        other.commit()
        assert applying.result(10) == Applied("apply", changes=1)
    assert job.shown() == {A: 11}


def test_a_second_job_is_refused_while_the_first_works(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:  # M5.3
    monkeypatch.setattr(writing, "_CLAIM_S", 0.3)
    with job.writer() as first:
        with pytest.raises(PipelineFenced, match="another job works on aggregate counts"):
            job.writer().__enter__()
        job.apply(first, 0, {A: 1})
        # The second begins in the moment in which the first has lost its connection.
        job.kill(first)
        with job.writer() as second:
            with pytest.raises(PipelineFenced):
                job.applied(first, 1, {A: 100})
            job.apply(second, 1, {A: 1})
        # Also when the second has gone: the first does not know what happened meanwhile.
        with pytest.raises(PipelineFenced, match="has taken over"):
            job.apply(first, 2, {A: 100})
    assert job.shown() == {A: 2}


@on_18
def test_what_will_not_pass_is_a_named_error(job: Job) -> None:  # M5.3, M7.3
    with job.writer() as writer:
        with pytest.raises(ProgressGap):
            job.apply(writer, 3, {A: 1})
        job.database.run("ALTER TABLE stats RENAME TO others")
        with pytest.raises(TargetUnavailable, match=r'UndefinedTable: .*stats" does not exist'):
            job.apply(writer, 0, {A: 1})
        job.database.run("ALTER TABLE others RENAME TO stats")
        # What a function of the user's says may quote the row.
        job.database.run(
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
            " RAISE EXCEPTION 'no % here', NEW.status USING ERRCODE = '42501'; END $$",
            "CREATE TRIGGER refuse BEFORE INSERT ON stats FOR EACH ROW EXECUTE FUNCTION refuse()",
        )
        with pytest.raises(TargetUnavailable, match=r"used: InsufficientPrivilege\. Run"):
            job.apply(writer, 0, {A: 1})
        job.database.run("DROP TRIGGER refuse ON stats")
        job.apply(writer, 0, {A: 1})
    # So may the server, when it makes a name of a value.
    job.database.run("ALTER TABLE stats ALTER status TYPE regclass USING NULL")
    with (
        job.writer() as writer,
        pytest.raises(TargetUnavailable, match=r"used: UndefinedTable\. Run"),
    ):
        job.apply(writer, 1, {("s", "secret"): 1})
    job.database.run("ALTER TABLE stats ALTER status TYPE text")
    # Before Spark is started, and also if it changes until it has.
    for begin in (Writer.check, Writer.__enter__):
        with pytest.raises(NotSeeded, match="declared differently"):
            begin(job.writer(declared(seed=False, filter="status <> 'x'")))
    job.database.run(f"UPDATE penstock.progress SET log_id = '{OTHER_LOG}'")
    for begin in (Writer.check, Writer.__enter__):
        with pytest.raises(NotSeeded, match=f"a position of log {OTHER_LOG}"):
            begin(job.writer())
    job.database.run("DROP TABLE penstock.parked")
    for begin in (Writer.check, Writer.__enter__):
        with pytest.raises(TargetMismatch, match=r"the table penstock\.parked .* does not exist"):
            begin(job.writer())


@on_18
def test_what_is_only_checked_is_not_begun(job: Job) -> None:  # M5.3
    """Its expressions may be wrong, which only Spark can tell."""
    for config in (UNSEEDED, declared()):
        job.writer(config).check()
    assert job.database.rows("SELECT FROM penstock.progress") == []
    assert consumers(job.log.storage) == []
    # Nor is it held.
    with job.writer() as writer:
        job.writer().check()
        assert job.apply(writer, 0, {A: 1}) == Applied("apply", changes=1)


@on_18
def test_a_role_that_may_not_write_is_told_so(job: Job) -> None:  # M7.3
    job.database.run(
        "DROP ROLE IF EXISTS may_not",
        "CREATE ROLE may_not LOGIN",
        "GRANT USAGE ON SCHEMA penstock TO may_not",
        "GRANT ALL ON ALL TABLES IN SCHEMA penstock TO may_not",
        "GRANT SELECT ON stats TO may_not",
    )
    with (
        job.writer(user="may_not") as writer,
        pytest.raises(TargetUnavailable, match="InsufficientPrivilege"),
    ):
        job.apply(writer, 0, {A: 1})
    job.database.run("REVOKE ALL ON SCHEMA penstock FROM may_not")
    with pytest.raises(TargetUnavailable, match="counts"):
        job.writer(user="may_not").__enter__()
    job.database.run("DROP OWNED BY may_not", "DROP ROLE may_not")


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
def test_a_serialization_failure_is_tried_again(job: Job) -> None:  # M5.3
    job.database.run(
        f'ALTER DATABASE "{job.database.name}" SET default_transaction_isolation'
        " = 'repeatable read'"
    )
    with job.writer() as writer:
        job.apply(writer, 0, {A: 1})
        with capture_logs() as said, held_up(job.database, "UPDATE stats SET count = 5") as run:
            applying = run(lambda: job.applied(writer, 1, {A: 1}))
        # The update has committed.
        assert applying.result(15) == Applied("apply", changes=1)
    assert [each["error"] for each in said if "error" in each] == ["SerializationFailure"]
    assert job.shown() == {A: 6}


@on_18
def test_a_limit_on_statements_is_not_for_the_job(job: Job) -> None:  # M5.3
    job.database.run(f'ALTER DATABASE "{job.database.name}" SET statement_timeout = 100')
    with job.writer() as writer:
        job.apply(writer, 0, {A: 1})
        with held_up(job.database, "SELECT FROM stats FOR UPDATE") as run:
            applying = run(lambda: job.apply(writer, 1, {A: 1}))
            time.sleep(0.3)
        assert applying.result(15) == Applied("apply", changes=1)
    assert job.shown() == {A: 2}


@on_18
def test_nor_is_one_on_idle_transactions(job: Job) -> None:  # M5.3
    job.database.run(
        f'ALTER DATABASE "{job.database.name}" SET idle_in_transaction_session_timeout = 100'
    )
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
def test_a_target_that_refuses_updates_is_an_error_and_not_tried_for_ever(
    job: Job,
) -> None:  # M5.3
    with job.writer() as writer:
        job.apply(writer, 0, {A: 1})
        job.database.run(
            "ALTER TABLE stats REPLICA IDENTITY NOTHING", "CREATE PUBLICATION p FOR TABLE stats"
        )
        with pytest.raises(TargetUnavailable, match="ObjectNotInPrerequisiteState"):
            job.apply(writer, 1, {A: 1})


@on_18
def test_one_that_was_seeded_further_on_than_the_log_waits_for_it(job: Job) -> None:  # M5.5
    with job.writer() as writer:
        job.apply(writer, 0, {A: 1})
    ahead = Lsn(job.start + 25)
    job.database.run(f"UPDATE penstock.progress SET state = 'seeded', applied_lsn = '{ahead}'")
    job.writer().check()
    with job.writer() as writer:
        assert job.apply(writer, 1, {A: 100}) == Applied("skip")
        assert writer.applied_lsn == ahead
        assert job.apply(writer, 2, {A: 1}) == Applied("read", changes=1)
    assert job.shown() == {A: 2}
    # A log that was restored from an older copy is something else.
    job.database.run(f"UPDATE penstock.progress SET applied_lsn = '{Lsn(job.start + 1000)}'")
    with pytest.raises(LogForeignPosition):
        job.writer().check()


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

        patch.setattr(writing, "connect", away)
        late = job.writer().__enter__()
        assert isinstance(late.away, SourceUnavailable)
        late._try_at = 0.0
        assert job.apply(late, 1, {A: 1}) is None
    with late:
        assert job.applied(late, 2, {A: 5}) == Applied("read", changes=1)
        # It is the only one now.
        monkeypatch.setattr(writing, "_CLAIM_S", 0.3)
        with pytest.raises(PipelineFenced):
            job.writer().__enter__()
    assert job.shown() == {A: 6}


@on_18
def test_a_target_from_before_what_the_log_holds_must_be_reset(job: Job) -> None:  # M5.3
    with job.writer() as writer:
        job.apply(writer, 0, {A: 1})
    job.database.run("UPDATE penstock.progress SET applied_lsn = '0/1'")
    with pytest.raises(NotSeeded, match="no longer holds what comes after 0/1") as raised:
        job.writer().__enter__()
    assert raised.value.remedy == "Run: penstock reset counts"


@on_18
def test_a_seeding_that_writes_holds_up_nobody(job: Job) -> None:  # M5.5
    with job.writer(declared()) as writer, job.database.connect(autocommit=False) as seeding:
        seeding.execute("SELECT FROM penstock.progress FOR UPDATE")
        assert writer._connection is not None
        writer._connection.execute("SET lock_timeout = '5s'")
        assert job.apply(writer, 0, {A: 2}) == Applied("wait")
