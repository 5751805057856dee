"""One aggregate's writer: where it begins, what it tells the log, and one job at a time."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from structlog.testing import capture_logs

from penstock.changelog.consumers import consumers, invalidate
from penstock.changelog.storage import LocalStorage
from penstock.changelog.writer import LogWriter
from penstock.decode.stops import Stop, StopCode
from penstock.errors import (
    LogForeignPosition,
    NotSeeded,
    PipelineFenced,
    ProgressGap,
    TargetMismatch,
    TargetUnavailable,
)
from penstock.lsn import Lsn
from penstock.pipelines import seeding, writing
from penstock.pipelines.applying import Applied
from penstock.pipelines.writing import Writer
from support.disk import no_room
from support.locks import waits_for_lock
from support.ops import on_18
from support.targets import OTHER_LOG, A, B, declared
from support.waiting import eventually
from support.writers import UNSEEDED, Job


def test_without_seeding_it_counts_from_where_the_log_is(job: Job) -> None:  # M5.3, M5.4
    with job.writer() as writer:
        assert (writer.needs_seed, int(writer.applied_lsn)) == (False, job.start)
        with capture_logs() as said:
            applied = job.apply(writer, 0, {A: 2, B: -1})
        assert applied == Applied("apply", changes=2, below_zero=1)
        # No alarm: the row may have been there before.
        assert said == [
            {
                "event": "counts kept at zero",
                "log_level": "info",
                "aggregate": "counts",
                "keys": 1,
            }
        ]
        assert int(writer.applied_lsn) == job.start + 10
    # It goes on where it was.
    with job.writer() as writer:
        assert int(writer.applied_lsn) == job.start + 10
        assert job.apply(writer, 0, {A: 2}) == Applied("skip")
        job.apply(writer, 1, {A: 1})
    assert job.shown() == {A: 3}


@on_18
def test_a_count_below_zero_is_an_alarm_where_everything_was_counted(job: Job) -> None:  # M5.4
    with job.writer(declared()) as writer, capture_logs() as said:
        job.database.run("UPDATE penstock.progress SET state = 'seeded'")
        applied = job.apply(writer, 0, {A: 2, B: -1})
    assert applied == Applied("apply", changes=2, below_zero=1)
    # Without the key.
    assert said == [
        {"event": "counts below zero", "log_level": "error", "aggregate": "counts", "keys": 1}
    ]


@on_18
def test_the_log_keeps_what_is_not_applied_and_what_the_job_still_plans_from(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:  # M5.3
    far = Lsn(job.start + 1000)
    monkeypatch.setattr(writing, "_REGISTER_EVERY_S", 0.0)
    with job.writer() as writer:
        assert job.told() == 0
        for number in (0, 1, 2):
            job.apply(writer, number, {A: 1})
        assert job.told() == 0, "what is told now and then costs no batch anything"
        writer.register(Lsn(job.start + 15))
        assert job.told() == 15
        # No room on the disk: it is told later.
        with monkeypatch.context() as patch, capture_logs() as said:
            patch.setattr(LocalStorage, "replace", no_room)
            writer.register(far)
        assert job.told() == 15
        assert "No space left on device" in said[0]["reason"]
        writer.register(far)
        assert job.told() == 30
        writer.register(Lsn(job.start + 20))
        assert job.told() == 30
        # A reset has told where it begins, which may be further on than what was applied.
        job.apply(writer, 3, {A: 1})
        job.database.run("UPDATE penstock.progress SET state = 'seeding'")
        assert job.apply(writer, 4, {A: 1}) == Applied("wait")
        writer.register(far)
        assert job.told() == 30
        job.database.run("UPDATE penstock.progress SET state = 'live'")
    # Killed before it had told all of it: the next job does, although nothing comes any more.
    with job.writer() as writer:
        writer.register(far)
        assert job.told() == 40
        job.apply(writer, 4, {A: 1})
        monkeypatch.setattr(writing, "_REGISTER_EVERY_S", 60.0)
        writer.register(far)
        assert job.told() == 40, "not for each batch"
        # It was too slow for the disk: what it needs may be gone.
        monkeypatch.setattr(writing, "_REGISTER_EVERY_S", 0.0)
        (consumer,) = consumers(job.log.storage)
        invalidate(job.log.storage, consumer)
        writer.register(far)
        assert writer.stop == Stop(StopCode.RELEASED)
        assert consumers(job.log.storage) == []
    with job.writer() as writer:
        assert writer.stop == Stop(StopCode.RELEASED)
        assert job.apply(writer, 5, {A: 100}) is None


@on_18
def test_the_log_keeps_what_is_not_applied_when_a_reset_fails_while_a_job_starts(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:  # M5.3, M5.5
    far = Lsn(job.start + 1000)
    monkeypatch.setattr(writing, "_REGISTER_EVERY_S", 0.0)
    with job.writer() as writer:
        job.apply(writer, 0, {A: 1})
        writer.register(far)
    with LogWriter(job.path) as log:
        log.flush(Lsn(job.start + 50))
    with job.database.connect() as resetting:
        before = seeding._begin(resetting, UNSEEDED, job.log)
        assert before is not None
        with job.writer() as writer:
            assert writer.needs_seed
            seeding._give_back(resetting, before)
            writer.needs_seed = False  # as the job notes when it finds it so
            writer.register(far)
            assert job.told() == 10
            assert job.apply(writer, 4, {A: 2}) == Applied("read", changes=1)
            writer.register(far)
            assert job.told() == 50
    assert job.shown() == {A: 3}


def test_one_that_is_to_be_seeded_applies_nothing_until_then(job: Job) -> None:  # M5.5
    with job.writer(declared()) as writer:
        assert writer.needs_seed
        assert job.apply(writer, 0, {A: 2}) == Applied("wait")
        assert writer.needs_seed
    assert job.shown() == {}
    with job.writer(declared()) as writer:
        assert writer.needs_seed


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
def test_a_target_from_before_what_the_log_holds_must_be_reset(job: Job) -> None:  # M5.3
    with job.writer() as writer:
        job.apply(writer, 0, {A: 1})
    job.database.run("UPDATE penstock.progress SET applied_lsn = '0/1'")
    with pytest.raises(NotSeeded, match="no longer holds what comes after 0/1") as raised:
        job.writer().__enter__()
    assert raised.value.remedy == "Run: penstock reset counts"


@on_18
def test_a_job_that_starts_during_a_reset_frees_no_table_that_is_still_shown(
    job: Job,
) -> None:  # M5.5: the reset does, when it is done
    with job.writer() as writer:
        assert writer.needs_seed is False
    job.database.run(
        "UPDATE penstock.progress SET state = 'seeding'",
        "INSERT INTO penstock.targets VALUES ('public.before', 'counts')",
    )
    with job.writer() as writer:
        assert writer.needs_seed
    kept = job.database.rows("SELECT target FROM penstock.targets ORDER BY 1")
    assert kept == [("public.before",), ("public.stats",)]


def test_a_seeding_that_writes_holds_up_nobody(job: Job) -> None:  # M5.5
    with job.writer(declared()) as writer, job.database.connect(autocommit=False) as seeding:
        seeding.execute("SELECT FROM penstock.progress FOR UPDATE")
        assert writer._connection is not None
        writer._connection.execute("SET lock_timeout = '5s'")
        assert job.apply(writer, 0, {A: 2}) == Applied("wait")


@on_18
def test_one_that_fails_after_an_outage_is_no_longer_taken_for_unavailable(
    job: Job,
) -> None:  # M5.8: else it would not come back when what was wrong is corrected
    with job.writer() as writer:
        job.leave_behind(writer)
        assert writer.away is not None
        writer.fail(TargetMismatch("it is gone", remedy="Run: penstock setup"))
        writer.check()
        assert writer.away is None


@on_18
def test_a_stop_of_one_whose_position_is_gone_ends_no_other_aggregate(job: Job) -> None:  # M5.8
    with job.writer() as writer:
        job.database.run("DELETE FROM penstock.progress")
        with pytest.raises(NotSeeded, match="counts has no position") as raised:
            writer.stop_for(Stop(StopCode.TRUNCATED, "notes"))
    assert raised.value.remedy == "Run: penstock reset counts"
