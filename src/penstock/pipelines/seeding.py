"""Begins an aggregate with the rows that are there, while everything else goes on (M5.5).

One that is declared without seeding begins with nothing, at the end of the log.

Steps, and what a crash at each leaves: the progress row says `seeding`, so that no job applies
anything (a crash: it says so still, and the next seeding starts over); the log keeps what comes
from now on, for a consumer registered under the aggregate's name; a snapshot at an exact position
is summed up (a crash: its session and slot are gone with us); rows and position are written in one
transaction, which makes the state `seeded`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from threading import Event
from typing import Any

import psycopg
import pyarrow as pa
import structlog
from pyspark.sql import SparkSession

from penstock.changelog import consumers
from penstock.changelog.reader import LogReader
from penstock.config import Config
from penstock.declarations import AggregateConfig
from penstock.errors import PipelineFenced, SeedingUnderWay, TargetClash
from penstock.lsn import Lsn
from penstock.names import TableName
from penstock.pipelines import staging
from penstock.pipelines.applying import Aggregate, Batch, add_batch
from penstock.pipelines.bookkeeping import (
    Progress,
    claim,
    clear_stop,
    keep,
    read_kept,
    read_progress,
    skipped_json,
    write_source_marks,
)
from penstock.pipelines.grouping_told import OnGrouping
from penstock.pipelines.held_log import consumer_of
from penstock.pipelines.in_flight import with_in_flight
from penstock.pipelines.locks import is_locked, lock_soon
from penstock.pipelines.log_awaited import wait_for_log
from penstock.pipelines.source_marks import Marks
from penstock.pipelines.source_rows import OnRows, Truth
from penstock.pipelines.source_snapshot import source_snapshot
from penstock.pipelines.sources import require_fit
from penstock.pipelines.target_session import connect_target
from penstock.pipelines.target_tables import read_targets, usable
from penstock.pipelines.truth import true_sums
from penstock.postgres.cancelling import cancelled_by
from penstock.postgres.waiting import OnWait

_LOG = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Seeded:
    lsn: Lsn
    rows: int


@dataclass(frozen=True, slots=True)
class _Before:
    """What a seeding found."""

    progress: Progress
    # The tables that were the aggregate's.
    kept: tuple[TableName, ...]


def seed(
    config: Config,
    aggregate: AggregateConfig,
    spark: Callable[[], SparkSession],
    *,
    on_rows: OnRows = lambda _: None,
    on_grouping: OnGrouping = lambda _: None,
    on_wait: OnWait = lambda _: None,
) -> Seeded:
    """The targets as the source is at one position, which becomes theirs.

    Without seeding they are emptied, and what changes from now on counts. If it fails, whoever
    follows the log goes on from where the targets were.
    """
    log = LogReader(config.log.path)
    with _alone(config, aggregate) as target:
        _require_same_log(target, aggregate.name, log)
        before = _begin(target, aggregate, log)
        try:
            hold(aggregate.name, log, log.end().lsn)
            # Whoever interrupts it is heeded by the thread that waits.
            return _seed(config, aggregate, spark, target, Event(), on_rows, on_grouping, on_wait)
        except BaseException:
            if before is not None and before.progress.state != "seeding":
                with suppress(psycopg.Error, TargetClash):  # else the job seeds it
                    _give_back(target, before)
            raise


def seed_if_due(
    config: Config,
    aggregate: AggregateConfig,
    spark: Callable[[], SparkSession],
    stop: Event,
    *,
    on_rows: OnRows = lambda _: None,
    on_grouping: OnGrouping = lambda _: None,
) -> Seeded | None:
    """As `seed`, for one that a seeding has left unfinished. None: it is no longer.

    `stop` ends it with `Cancelled`, also where it waits for the target.
    """
    with _alone(config, aggregate) as target, cancelled_by(stop, target):
        with usable(aggregate.name):
            progress = read_progress(target, aggregate.name)
        if progress is None or progress.state != "seeding":
            return None
        log = LogReader(config.log.path)
        _begin(target, aggregate, log)
        hold(aggregate.name, log, log.end().lsn)
        on_rows(0)
        return _seed(config, aggregate, spark, target, stop, on_rows, on_grouping)


def _require_same_log(target: psycopg.Connection[Any], aggregate: str, log: LogReader) -> None:
    """Not if a job follows another log for an aggregate of this name: it would be stopped."""
    with usable(aggregate):
        progress = read_progress(target, aggregate)
        other = progress is not None and progress.log_id != str(log.identity.log_id)
        if other and is_locked(target, "job", aggregate):
            raise PipelineFenced(
                f"a job that follows another log keeps an aggregate of the name {aggregate} in "
                "this database",
                remedy="If it is another file's, give this one another name; else stop that job",
                aggregate=aggregate,
            )


@contextmanager
def _alone(config: Config, aggregate: AggregateConfig) -> Iterator[psycopg.Connection[Any]]:
    """A connection to the target, on which the aggregate is seeded: by one at a time, for as long
    as that connection lives.
    """
    with connect_target(aggregate.conninfo(config.source.conninfo)) as target:
        with usable(aggregate.name):
            mine = lock_soon(target, "seeding", aggregate.name)
        if not mine:
            raise SeedingUnderWay(
                f"aggregate {aggregate.name} is being seeded by another process",
                remedy="Wait for it; or end it, if it seeds by another declaration",
                aggregate=aggregate.name,
            )
        yield target


def _seed(
    config: Config,
    aggregate: AggregateConfig,
    spark: Callable[[], SparkSession],
    target: psycopg.Connection[Any],
    stop: Event,
    on_rows: OnRows,
    on_grouping: OnGrouping,
    on_wait: OnWait = lambda _: None,
) -> Seeded:
    log = LogReader(config.log.path)
    if not aggregate.seed:
        require_fit(config, aggregate)
        with usable(aggregate.name):
            return _write(target, aggregate, _nothing(aggregate), log.end().lsn, None)
    with source_snapshot(config, aggregate, log, on_wait=on_wait, stop=stop) as source:
        require_fit(config, aggregate, source.connection)
        truth = true_sums(source.connection, source.bound, spark, on_rows, on_grouping)
    if source.in_flight is not None:
        wait_for_log(
            config.source,
            log,
            source.lsn,
            lambda what: _LOG.info("seeding waits", aggregate=aggregate.name, waits_for=what),
            stop,
        )
        truth = with_in_flight(log, source.bound, truth, source.in_flight, spark)
    with usable(aggregate.name):
        return _write(target, aggregate, truth, source.lsn, source.marks)


def _begin(
    target: psycopg.Connection[Any], aggregate: AggregateConfig, log: LogReader
) -> _Before | None:
    """Returns what was there."""
    log_id, end = str(log.identity.log_id), log.end().lsn
    # In one transaction: a job that applies a batch moves the position meanwhile.
    with usable(aggregate.name), target.transaction():
        before = read_progress(target, aggregate.name, lock=True)
        kept = read_kept(target, [aggregate.name]).get(aggregate.name, ())
        begin(target, aggregate, log_id, end)
    return None if before is None else _Before(before, tuple(map(TableName.parse, kept)))


def hold(aggregate: str, log: LogReader, lsn: Lsn) -> None:
    """The log keeps what comes after a position, for one that begins. Raises `LogNotWritten` or
    `LogInUse`, which pass.
    """
    name, log_id = consumer_of(aggregate), str(log.identity.log_id)
    known = {consumer.name: consumer for consumer in consumers.consumers(log.storage)}.get(name)
    if known is None or known.invalidated or known.log_id != log_id:
        # Seeding is the remedy for all of it. Else what is held back is enough.
        consumers.forget(log.storage, name)
        consumers.register(log.storage, name, log_id, lsn)


def _give_back(target: psycopg.Connection[Any], before: _Before) -> None:
    """As it was, but for `seeded`: what came meanwhile was passed over, and is read again."""
    was = before.progress
    with target.transaction():
        given = target.execute(
            "UPDATE penstock.progress SET state = 'seeded', fingerprint = %s, log_id = %s,"
            " applied_lsn = %s WHERE aggregate = %s AND state = 'seeding'",
            [was.fingerprint, was.log_id, was.applied, was.aggregate],
        )
        # Not if the new rows are there already, and only our own end went wrong.
        if given.rowcount:
            keep(target, was.aggregate, before.kept)


def _nothing(aggregate: AggregateConfig) -> Truth:
    dimensions = {name: pa.array([], pa.string()) for name in aggregate.dimensions}
    measures = {name: pa.array([], pa.int64()) for name in aggregate.measures}
    return Truth(pa.table(dimensions | measures), Counter())


def begin(
    target: psycopg.Connection[Any], aggregate: AggregateConfig, log_id: str, lsn: Lsn
) -> None:
    """From here on no job applies anything to the aggregate."""
    target.execute(
        "INSERT INTO penstock.progress (aggregate, fingerprint, log_id, applied_lsn, state)"
        " VALUES (%(name)s, %(fingerprint)s, %(log)s, %(lsn)s, 'seeding')"
        " ON CONFLICT (aggregate) DO UPDATE SET state = 'seeding',"
        " fingerprint = %(fingerprint)s, log_id = %(log)s, applied_lsn = %(lsn)s",
        {
            "name": aggregate.name,
            "fingerprint": aggregate.fingerprint,
            "log": log_id,
            "lsn": str(lsn),
        },
    )
    claim(target, aggregate.name, [each.table for each in aggregate.targets])


def _write(
    target: psycopg.Connection[Any],
    aggregate: AggregateConfig,
    truth: Truth,
    lsn: Lsn,
    marks: Marks | None,
) -> Seeded:
    tables = read_targets(target, aggregate)
    with target.transaction():
        target.execute(
            "SELECT FROM penstock.progress WHERE aggregate = %s FOR UPDATE", [aggregate.name]
        )
        # Those that it wrote before are free, now that it does not any more.
        keep(target, aggregate.name, [table.table for table in tables])
        target.execute("DELETE FROM penstock.parked WHERE aggregate = %s", [aggregate.name])
        for table in tables:
            # Not TRUNCATE: readers see what was there until this commits.
            target.execute(f"DELETE FROM {table.table.sql}".encode())  # noqa: S608 - quoted
        add_batch(
            target,
            Aggregate(
                aggregate.name, tables, seeded=True, epoch=0, fingerprint=aggregate.fingerprint
            ),
            _batch(target, aggregate, truth.sums),
        )
        target.execute(
            "UPDATE penstock.progress SET applied_lsn = %s, state = 'seeded', seeded_at = now(),"
            " applied_at = now(), changes = 0, skipped = %s, clamped = 0 WHERE aggregate = %s",
            [str(lsn), skipped_json(truth.skipped), aggregate.name],
        )
        clear_stop(target, aggregate.name)
        write_source_marks(target, aggregate.name, marks)
    return Seeded(lsn, len(truth.sums))


def _batch(target: psycopg.Connection[Any], aggregate: AggregateConfig, sums: pa.Table) -> Batch:
    """What is large is added up by the target's server, not here row by row."""
    if len(sums) <= staging.MOST_IN_DRIVER:
        return Batch(sums)
    staged = staging.put_table(
        target, aggregate.name, sums, list(aggregate.dimensions), list(aggregate.measures)
    )
    return Batch(sums.slice(0, 0), staged=staged)
