"""Audits an aggregate against the source at an exact position, while everything goes on (M5.6).

The source's own tables at a snapshot, plus what the log adds from there to the target's position
(or less, if the target is behind), must equal the target read together with its position.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from penstock.changelog import consumers
from penstock.changelog.reader import LogReader
from penstock.config import Config
from penstock.declarations import AggregateConfig
from penstock.errors import LogRetired, NotSeeded, NotVerifiable
from penstock.lsn import Lsn
from penstock.pipelines.binding import Bound
from penstock.pipelines.bookkeeping import Progress, read_progress, read_stop
from penstock.pipelines.differences import Difference, differences
from penstock.pipelines.grouping_told import OnGrouping
from penstock.pipelines.held_log import consumer_of
from penstock.pipelines.in_flight import with_in_flight
from penstock.pipelines.locks import wait_for_lock
from penstock.pipelines.log_awaited import Waiting, require_capture, wait_for_log
from penstock.pipelines.log_deltas import log_deltas
from penstock.pipelines.merging import TargetTable
from penstock.pipelines.repairing import repair as add_missing
from penstock.pipelines.source_rows import OnRows, Truth
from penstock.pipelines.source_snapshot import source_snapshot
from penstock.pipelines.target_session import connect_target
from penstock.pipelines.target_tables import read_targets, usable
from penstock.pipelines.truth import true_sums


@dataclass(frozen=True, slots=True)
class Verified:
    """What the audit of one aggregate found."""

    aggregate: str
    # The position that was audited.
    lsn: Lsn
    # How many rows of targets were compared, and how many are parked.
    keys: int
    parked: int
    differences: tuple[Difference, ...]
    # Whether they were corrected since; what a target refuses again is among those parked.
    repaired: bool = False


def as_dict(result: Verified) -> dict[str, Any]:
    """For JSON: numbers as text, which keeps them exact."""
    return {
        "aggregate": result.aggregate,
        "lsn": str(result.lsn),
        "rows": result.keys,
        "parked": result.parked,
        "differences": [
            {
                "target": each.target,
                "key": each.key,
                "measure": each.measure,
                "expected": str(each.expected),
                "found": str(each.found),
            }
            for each in result.differences
        ],
        "repaired": result.repaired,
    }


def verify(
    config: Config,
    aggregate: AggregateConfig,
    spark: Callable[[], SparkSession],
    *,
    repair: bool = False,
    on_rows: OnRows = lambda _: None,
    on_grouping: OnGrouping = lambda _: None,
    on_wait: Waiting = lambda _: None,
) -> Verified:
    """Compare, and with `repair` add what is missing to the targets; what was skipped before counts
    then, and is no longer told as skipped.

    `on_wait` is told what is waited for, if it takes long.
    """
    if not aggregate.seed or not aggregate.verifiable:
        raise NotVerifiable(
            f"aggregate {aggregate.name} cannot be verified: "
            + ("it was not seeded" if not aggregate.seed else "it is declared as not verifiable"),
            remedy="Leave it out",
            aggregate=aggregate.name,
        )
    log = LogReader(config.log.path)
    with (
        consumers.held(log.storage, "verify", str(log.identity.log_id), _needed(log, aggregate)),
        connect_target(aggregate.conninfo(config.source.conninfo)) as target,
        usable(aggregate.name),
    ):
        if repair:
            # One at a time: what two have found would be added twice.
            wait_for_lock(target, "repair", aggregate.name)
        _progress(target, aggregate, log)  # before the source is read, which may take long
        with source_snapshot(
            config, aggregate, log, on_wait=lambda who: on_wait("; ".join(map(str, who)))
        ) as source:
            require_capture(config.source, source, log, on_wait)
            truth = true_sums(source.connection, source.bound, spark, on_rows, on_grouping)
        wait_for_log(config.source, log, source.lsn, on_wait)
        truth = with_in_flight(log, source.bound, truth, source.in_flight, spark)
        target.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        progress = _progress(target, aggregate, log)
        # It may have been seeded just now.
        wait_for_log(config.source, log, progress.applied_lsn, on_wait)
        truth = _at(log, source.bound, spark, truth, source.lsn, progress.applied_lsn)
        tables = read_targets(target, aggregate)
        found = [
            each
            for table in tables
            for each in differences(target, aggregate.name, table, truth.sums)
        ]
        keys = sum(_count(target, table) for table in tables)
        target.execute("ROLLBACK")  # nobody needs what was staged to be compared
        if repair:
            add_missing(target, aggregate, tables, found, progress, truth.skipped)
        (parked,) = target.execute(
            "SELECT count(*) FROM penstock.parked WHERE aggregate = %s", [aggregate.name]
        ).fetchone() or (0,)
    return Verified(
        aggregate.name,
        progress.applied_lsn,
        keys,
        parked,
        tuple(found),
        repaired=repair and bool(found),
    )


def _needed(log: LogReader, aggregate: AggregateConfig) -> Lsn:
    """From where on the log is kept until we are done: where the target is, or will be found."""
    end = log.end().lsn
    held = {consumer.name: consumer for consumer in consumers.consumers(log.storage)}
    of_target = held.get(consumer_of(aggregate.name))
    return end if of_target is None else min(end, of_target.applied_lsn)


def _progress(
    target: psycopg.Connection[Any], aggregate: AggregateConfig, log: LogReader
) -> Progress:
    progress = read_progress(target, aggregate.name)
    if (stopped := read_stop(target, aggregate.name)) is not None:
        raise stopped.stop.error(aggregate.name)
    ours = str(log.identity.log_id)
    if progress is None or progress.state == "seeding":
        raise NotSeeded(
            f"aggregate {aggregate.name} is not seeded yet",
            remedy=f"Wait for it, or run: penstock reset {aggregate.name}",
            aggregate=aggregate.name,
        )
    if progress.log_id != ours or progress.fingerprint != aggregate.fingerprint:
        raise NotSeeded(
            f"aggregate {aggregate.name} was seeded for another log or another declaration",
            remedy=f"Run: penstock reset {aggregate.name}",
            aggregate=aggregate.name,
        )
    return progress


def _at(
    log: LogReader,
    bound: Bound,
    spark: Callable[[], SparkSession],
    truth: Truth,
    known: Lsn,
    wanted: Lsn,
) -> Truth:
    """The truth at another position than that of the snapshot: what a target there must show to be
    right at the snapshot, if it is behind, and what it must have told as skipped.

    Changes that the log's reader skips are in a snapshot after them. So the target has to show
    them before they come, and their counts are below zero until then.
    """
    start, end = min(known, wanted), max(known, wanted)
    if start == end:
        return truth
    try:
        between = log_deltas(log, bound, start, end, spark)
    except LogRetired as error:
        raise LogRetired(
            f"{error.problem}, and the audit of aggregate {bound.config.name} needs what comes "
            f"after {start}",
            remedy="Run it again: the log reached its disk budget, or the target is behind",
        ) from error
    deltas, skipped = between.sums, Counter(truth.skipped)
    if wanted > known:
        skipped.update(between.skipped)
    else:
        skipped.subtract(between.skipped)
        for number, name in enumerate(deltas.column_names):
            if name in bound.config.measures:
                deltas = deltas.set_column(number, name, pc.negate(deltas[name]))
    return Truth(pa.concat_tables([truth.sums, deltas], promote_options="permissive"), skipped)


def _count(target: psycopg.Connection[Any], table: TargetTable) -> int:
    row = target.execute(f"SELECT count(*) FROM {table.table.sql}".encode()).fetchone()  # noqa: S608
    return int(row[0]) if row else 0
