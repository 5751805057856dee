"""What the job decides by itself, without Spark and databases."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pytest
from psycopg.errors import QueryCanceled
from pyspark.errors import PySparkException
from structlog.testing import capture_logs

from penstock.changelog import reader
from penstock.changelog.runs import BatchRange
from penstock.config import Config
from penstock.decode.deltas import Deltas, WantedDeltas
from penstock.decode.stops import Stop, StopCode
from penstock.errors import (
    ComputationFailed,
    LogBehind,
    SourceError,
    TargetMismatch,
    TargetUnavailable,
)
from penstock.lsn import Lsn
from penstock.pipelines import job as job_module
from penstock.pipelines.deciding import Covered
from penstock.pipelines.job import Job
from penstock.pipelines.sources import Sources
from penstock.postgres.cancelling import Cancelled
from support.disk import no_room
from support.source_log import Log

END = Lsn(0x200)


@pytest.fixture(autouse=True)
def _no_expressions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_module, "places", lambda _: [])


@pytest.fixture
def job(tmp_path: Path) -> Job:
    """One that has one aggregate to write, and has read all of its log."""
    log = Log(tmp_path / "log")
    log.insert(int(END), 1)
    log.writer.close()
    config = {"source": {"dsn": "host=none", "tables": ["notes"]}, "log": {"path": log.path}}
    job = Job(Config.model_validate(config), Mock())
    writer = Mock(stop=None, trouble=None)
    job._writers = [writer]
    job._followed = [job_module._Followed(writer, Mock())]
    job._reached, job._seen = END, job._log.end()
    return job


def mocked(job: Job, **state: Any) -> Any:
    """The writer of its one aggregate."""
    (writer,) = job._writers
    for name, value in {"name": "counts", "stopped_since": None, **state}.items():
        setattr(writer, name, value)
    return writer


def batch(error: Exception | None = None) -> Any:
    """As Spark hands it over, with nothing in it; or it could not be computed."""
    nothing = Deltas(WantedDeltas(())).range_row(BatchRange(END, END, END))
    return Mock(toArrow=Mock(return_value=pa.Table.from_batches([nothing]), side_effect=error))


def failed_with(error: Exception) -> Any:
    """A query that Spark has ended."""
    return Mock(isActive=False, exception=Mock(return_value=error))


def test_what_goes_wrong_in_a_batch_ends_the_job_as_what_it_was(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:  # M7.3
    monkeypatch.setattr(Job, "_is_applied", no_room)
    with pytest.raises(OSError, match="No space left") as raised:
        job._apply(batch(), 0)
    # Spark says only that there was an error in Python.
    with pytest.raises(OSError, match="No space left") as told:
        job._check(failed_with(PySparkException("[STREAM_FAILED] OSError")))
    assert told.value is raised.value


def test_what_spark_could_not_compute_is_told_by_its_query(job: Job) -> None:  # M7.3
    error = PySparkException("[STREAM_FAILED] [CAST_INVALID_INPUT] of a value")
    with pytest.raises(PySparkException):
        job._apply(batch(error), 0)
    with pytest.raises(ComputationFailed, match=r"CAST_INVALID_INPUT\. Correct the expression"):
        job._check(failed_with(error))


def test_what_fails_in_spark_itself_is_not_put_down_to_an_expression(job: Job) -> None:  # M7.3
    lost = PySparkException("[STREAM_FAILED] Python worker failed to connect back")
    with pytest.raises(ComputationFailed, match=r"\(STREAM_FAILED\)\. .*Start it again"):
        job._check(failed_with(lost))


def test_a_seeding_that_a_clean_stop_ends_is_not_told_as_failed(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:  # M5.5, M7.3
    def cancelled(*_: Any, **__: Any) -> None:
        raise Cancelled from QueryCanceled()

    def stopped(*_: Any, on_rows: Any, **__: Any) -> None:
        job.stop()
        on_rows(1)

    for seeding, ended in ((cancelled, Cancelled), (stopped, job_module._Stopped)):
        monkeypatch.setattr(job_module, "seed_if_due", seeding)
        with capture_logs() as said, pytest.raises(ended):
            job._is_seeded(job._writers[0])
        assert said == []


def test_a_driver_that_sees_less_of_the_log_than_its_executors_says_so(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:  # M5.7, M7.3
    monkeypatch.setattr(reader, "_SEEN_WITHIN_S", 0.05)
    with pytest.raises(LogBehind, match=r"up to 0/200 only.*up to 0/210\. Mount the storage"):
        job._read_again(0, Covered(job._log_id, END, Lsn(END + 16)))


def test_what_is_little_for_one_aggregate_is_much_for_many(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:  # M5.3: each makes rows of its own, and all of them would come to the driver
    job._reached = job._log.identity.start_lsn
    job._seen = job._log.locate(job._reached)
    (frame,) = job._log.frames(job._seen, job._log.end())
    monkeypatch.setattr(job_module, "SHARE_BYTES", frame.header.committed_bytes)
    assert job._is_small()
    job._followed *= 4
    assert not job._is_small()


def test_an_aggregate_in_trouble_has_its_next_look_before_others_see_the_trouble(
    job: Job,
) -> None:  # M5.8: another thread reads when that is
    writer = mocked(job)
    writer.fail.side_effect = lambda error: seen.append("counts" in job._retries)
    seen: list[bool] = []
    job._fails(writer, TargetMismatch("it is gone", remedy="Run: penstock setup"))
    assert seen == [True]


def test_a_stopped_aggregate_whose_target_is_unusable_too_is_not_logged_all_the_time(
    job: Job,
) -> None:  # M5.8, M7.3
    writer = mocked(job, stop=Stop(StopCode.TRUNCATED, "notes"))
    unusable = TargetUnavailable("it cannot be used", remedy="Run: penstock doctor")
    writer.is_back.side_effect = [unusable, False] * 3
    with capture_logs() as said:
        for _ in range(6):
            with job._its_own(writer):
                job._look_at(writer)
    assert [each["event"] for each in said] == ["aggregate not followed", "aggregate stopped"]


def test_an_aggregate_that_comes_back_is_applied_by_a_query_that_was_planned_since(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:  # M4.6, M5.8: the running one asks for the tables from before the reset
    writer = mocked(job, stop=Stop(StopCode.TABLE_REPLACED, "notes"), needs_seed=False)

    def is_back() -> bool:
        writer.stop = None
        return True

    writer.is_back = is_back
    bound: Any = job._followed[0].bound
    bound.summed.applied_lsn = 0
    covered = Covered(job._log_id, END, END)
    job._look_at(writer)
    assert job._again.is_set()
    assert job._is_applied(0, Mock(), covered)
    assert not writer.apply.called
    monkeypatch.setattr(job_module, "read_sources", lambda _: Sources({}, {}, {}))
    monkeypatch.setattr(Job, "_plan", Mock())
    monkeypatch.setattr(Job, "_judge", Mock())
    monkeypatch.setattr(Job, "_is_outdated", Mock(return_value=False))
    job._plan_again()
    assert not job._again.is_set()
    job._is_applied(0, Mock(), covered)
    assert writer.apply.called


def test_types_are_known_up_to_where_the_log_was_before_they_were_read(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:  # M4.6: what comes to the log meanwhile may have others
    log = Mock(end=Mock(return_value=Mock(lsn=END)))

    def read(_: Config) -> Sources:
        log.end.return_value = Mock(lsn=Lsn(END + 16))
        return Sources({}, {}, {})

    monkeypatch.setattr(job_module, "read_sources", read)
    monkeypatch.setattr(job, "_log", log)
    monkeypatch.setattr(job, "_plan", planned := Mock())
    monkeypatch.setattr(job, "_look_at_sources", Mock())
    job._plan_again()
    (sources,) = planned.call_args.args
    bound = Mock()
    monkeypatch.setattr(job_module, "bind", bound)
    job._bind(mocked(job), sources)
    assert bound.call_args.args[-1] == END


def test_a_source_that_refuses_to_be_looked_at_leaves_the_old_plan(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:  # M7.3
    mocked(job, away=None, is_behind=False, needs_seed=False, applied_lsn=Lsn(END - 1))
    (was,) = job._followed
    error = SourceError("permission denied", remedy="GRANT CONNECT")
    monkeypatch.setattr(job_module, "read_sources", Mock(side_effect=error))
    job._left.add("another")
    with capture_logs() as said:
        job._plan_again()
    assert [each.writer for each in job._followed] == [was.writer]
    # Not where the query began: the log may have let go of that.
    assert job._start == Lsn(END - 1)
    assert job._left == {"another"}
    (log,) = said
    assert (log["log_level"], log["reason"]) == ("error", "permission denied")
