"""Keys that a target refused are tried again although no batch comes."""

from __future__ import annotations

import time
from datetime import date
from typing import Any

import pytest
from structlog.testing import capture_logs

from penstock.errors import (
    PipelineFenced,
)
from penstock.pipelines import applying, writing
from penstock.pipelines.applying import Applied
from penstock.pipelines.parking import next_try_s
from penstock.pipelines.writing import Writer
from support.locks import held_up
from support.ops import on_18
from support.targets import A
from support.waiting import eventually
from support.writers import Job

REFUSING = (
    "CREATE TABLE services (id text PRIMARY KEY)",
    "INSERT INTO services VALUES ('s')",
    "ALTER TABLE stats ADD FOREIGN KEY (service) REFERENCES services",
)
REFUSED = ("missing", "a")


def refused(job: Job, writer: Writer) -> None:
    """A batch with a key that the target would take by now."""
    applied = job.apply(writer, 0, {A: 1, REFUSED: 5})
    assert applied == Applied("apply", changes=2, parked=1)
    job.database.run("INSERT INTO services VALUES ('missing')")
    job.database.run("UPDATE penstock.parked SET retry_at = now()")


@pytest.fixture
def refusing(job: Job) -> Job:
    job.database.run(*REFUSING)
    return job


@on_18
def test_a_refused_key_is_tried_again_although_nothing_comes(refusing: Job) -> None:  # M5.4
    job = refusing
    with job.writer() as writer:
        job.apply(writer, 0, {A: 1, REFUSED: 5})
        eventually(lambda: tried(job, writer) == 2, "tried a second time, in vain")
        assert job.shown() == {A: 1}
        job.database.run("INSERT INTO services VALUES ('missing')")
        eventually(lambda: tried(job, writer) is None, "it is shown")
        assert job.shown() == {A: 1, REFUSED: 5}
        # The position is where it was.
        assert job.apply(writer, 0, {A: 9}) == Applied("skip")
        assert job.apply(writer, 1, {REFUSED: 1}) == Applied("apply", changes=1)
    assert job.shown() == {A: 1, REFUSED: 6}


@on_18
def test_a_parked_date_is_the_same_whatever_a_database_is_set_to_meanwhile(
    refusing: Job,
) -> None:  # M5.4
    job = refusing
    style = f'ALTER DATABASE "{job.database.name}" SET datestyle = '
    job.database.run("ALTER TABLE stats ALTER status TYPE date USING NULL", style + "'SQL, MDY'")
    with job.writer() as writer:
        job.apply(writer, 0, {("missing", "2026-03-04"): 5})
    job.database.run(
        style + "'SQL, DMY'",
        "INSERT INTO services VALUES ('missing')",
        "UPDATE penstock.parked SET retry_at = now()",
    )
    with job.writer() as writer:
        assert tried(job, writer) is None
    assert job.shown() == {("missing", date(2026, 3, 4)): 5}


def tried(job: Job, writer: Writer) -> int | None:
    """How often, after it was called once more; None: nothing waits."""
    writer.retry()
    waiting = job.database.rows("SELECT attempts FROM penstock.parked")
    return waiting[0][0] if waiting else None


@on_18
def test_what_is_more_than_one_retry_takes_is_tried_soon_after(
    refusing: Job, monkeypatch: pytest.MonkeyPatch
) -> None:  # M5.4
    monkeypatch.setattr(applying, "_MOST_DUE", 2)
    monkeypatch.setattr(writing, "_LOOK_SOONEST_S", 3600.0)
    job = refusing
    deltas = {("missing", status): 1 for status in "abcde"}
    with job.writer() as writer:
        job.apply(writer, 0, deltas)
        job.database.run(
            "INSERT INTO services VALUES ('missing')", "UPDATE penstock.parked SET retry_at = now()"
        )
        writer.retry()
        assert len(job.shown()) == 2
        eventually(lambda: tried(job, writer) is None, "all are shown")
    assert job.shown() == deltas


@on_18
def test_where_nothing_is_due_nothing_is_written_and_seldom_looked(
    refusing: Job, monkeypatch: pytest.MonkeyPatch
) -> None:  # M5.4
    job = refusing
    looks: list[float | None] = []

    def looked(*given: Any) -> float | None:
        looks.append(next_try_s(*given))
        return looks[-1]

    monkeypatch.setattr(writing, "next_try_s", looked)
    monkeypatch.setattr(writing, "retry", lambda *_: pytest.fail("something is due"))
    with job.writer() as writer:
        for _ in range(3):
            writer.retry()
        assert looks == [None]
        # A batch that parks some makes it look when those are due.
        job.apply(writer, 0, {REFUSED: 5})
        for _ in range(3):
            writer.retry()
        assert looks[1:] == [pytest.approx(1.0, abs=0.9)]
        # A sum below zero comes right with its next delta, not by itself.
        job.database.run("UPDATE penstock.parked SET is_negative = true, retry_at = now()")
        writer._look_at = 0.0
        writer.retry()
        assert looks[2:] == [None]


@on_18
def test_what_is_due_is_left_to_a_batch_that_is_being_applied(refusing: Job) -> None:  # M5.3, M5.4
    job = refusing
    with job.writer() as writer:
        refused(job, writer)
        with held_up(job.database, "SELECT FROM stats FOR UPDATE") as run:
            applying = run(lambda: job.apply(writer, 1, {A: 1}))
            begun = time.monotonic()
            writer.retry()
            assert time.monotonic() - begun < 1.0
        assert applying.result(10) == Applied("apply", changes=1)
        assert job.shown() == {A: 2, REFUSED: 5}


@on_18
def test_a_retry_waits_for_no_lock_and_leaves_the_next_batch_as_it_is(
    refusing: Job, monkeypatch: pytest.MonkeyPatch
) -> None:  # M5.3, M5.4
    monkeypatch.setattr(writing, "_LOOK_AGAIN_S", 0.0)
    job = refusing
    with job.writer() as writer:
        refused(job, writer)
        with job.database.connect(autocommit=False) as other, capture_logs() as said:
            other.execute("LOCK TABLE stats")
            begun = time.monotonic()
            writer.retry()
            assert time.monotonic() - begun < 3.0
        assert [each["reason"] for each in said] == ["others have locked what is needed"]
        # Nothing was missed: no batch is read again for it.
        assert job.apply(writer, 1, {}) == Applied("apply")
    assert job.shown() == {A: 1, REFUSED: 5}


@on_18
def test_a_connection_that_was_lost_meanwhile_is_opened_for_a_retry(
    refusing: Job, monkeypatch: pytest.MonkeyPatch
) -> None:  # M5.3, M5.4
    monkeypatch.setattr(writing, "_LOOK_AGAIN_S", 0.0)
    job = refusing
    with job.writer() as writer:
        refused(job, writer)
        job.kill(writer)
        with capture_logs() as said:
            eventually(lambda: tried(job, writer) is None, "it is shown")
        # Not "OperationalError" alone: whoever reads this has just restarted a server.
        assert [each["event"] for each in said] == ["parked keys are retried later"]
        assert "restarted" in said[0]["reason"]
        assert job.shown() == {A: 1, REFUSED: 5}
        assert job.apply(writer, 1, {A: 1}) == Applied("apply", changes=1)


@on_18
def test_nothing_is_tried_that_a_batch_might_not_apply(refusing: Job) -> None:  # M5.3, M5.4
    job = refusing
    with job.writer() as writer:
        refused(job, writer)
        # Whoever seeds it begins with what is there, and throws away what is parked.
        job.database.run("UPDATE penstock.progress SET state = 'seeding'")
        writer.retry()
        job.database.run("UPDATE penstock.progress SET state = 'live', fingerprint = 'another'")
        writer._look_at = 0.0
        with pytest.raises(PipelineFenced, match="reset for another declaration"):
            writer.retry()
        job.database.run("UPDATE penstock.progress SET epoch = epoch + 1")
        with pytest.raises(PipelineFenced, match="has taken over"):
            writer.retry()
    assert job.shown() == {A: 1}
