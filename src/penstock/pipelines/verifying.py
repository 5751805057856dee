"""Audits an aggregate against the source at an exact position, while everything goes on (M5.6).

The source's own tables at a snapshot, plus what the log adds from there to the target's position
(or less, if the target is behind), must equal the target read together with its position.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from penstock.changelog import consumers
from penstock.changelog.reader import LogReader
from penstock.config import Config
from penstock.declarations import AggregateConfig
from penstock.decode.classify import RULE_OFF
from penstock.errors import LogRetired, NotSeeded, NotVerifiable, VerifyTimeout
from penstock.lsn import Lsn
from penstock.pipelines.applying import Aggregate, Batch, add_batch
from penstock.pipelines.binding import Bound
from penstock.pipelines.bookkeeping import Progress, read_progress, skipped_json
from penstock.pipelines.comparing import compare_sql
from penstock.pipelines.grouping_told import OnGrouping
from penstock.pipelines.held_log import consumer_of
from penstock.pipelines.keys import parted
from penstock.pipelines.locks import wait_for_lock
from penstock.pipelines.log_deltas import log_deltas
from penstock.pipelines.merging import TargetTable
from penstock.pipelines.parking import waiting
from penstock.pipelines.source_rows import OnRows, Truth
from penstock.pipelines.source_snapshot import SourceSnapshot, source_snapshot
from penstock.pipelines.sums import arrays, rolled_up
from penstock.pipelines.target_session import connect_target
from penstock.pipelines.target_tables import read_targets, usable
from penstock.pipelines.truth import true_sums
from penstock.postgres.slots import read_slot

# Capture is milliseconds behind the server, if it runs.
_CATCH_UP_S = 30.0
# It may be connecting again: its longest pause, and a connection.
_RECONNECT_S = 12.0
# On an idle database the log may be some seconds behind: who waits longer is told for what.
_QUIET_S = 3.0
_LOOK_EVERY_S = 0.02

Waiting = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Difference:
    """One row of a target that is not what it should be; keys and amounts as text."""

    target: str
    key: dict[str, str | None]
    measure: str
    expected: Decimal
    found: Decimal

    def __str__(self) -> str:
        key = ", ".join(
            f"{name} {'NULL' if value is None else value}" for name, value in self.key.items()
        )
        return f"{self.target}: {self.measure} of {key} is {self.found}, should be {self.expected}"


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
            _require_capture(source, config.source.slot, log, on_wait)
            truth = true_sums(source.connection, source.bound, spark, on_rows, on_grouping)
        _wait_for_log(log, source.lsn, on_wait)
        target.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        progress = _progress(target, aggregate, log)
        _wait_for_log(log, progress.applied_lsn, on_wait)  # it may have been seeded just now
        truth = _at(log, source.bound, spark, truth, source.lsn, progress.applied_lsn)
        tables = read_targets(target, aggregate)
        found = [
            each for table in tables for each in _compare(target, aggregate, table, truth.sums)
        ]
        keys = sum(_count(target, table) for table in tables)
        target.execute("COMMIT")
        if repair:
            _repair(target, aggregate, tables, found, progress, truth.skipped)
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


def _require_capture(source: SourceSnapshot, slot: str, log: LogReader, on_wait: Waiting) -> None:
    """Before the source is read, which may take long: the log gets there only if somebody reads
    the slot.
    """

    def gets_there() -> bool:
        facts = read_slot(source.connection, slot)
        is_read = facts is not None and facts.active_pid is not None
        return is_read or log.end().lsn >= source.lsn

    if not _comes(gets_there, _RECONNECT_S, f'capture to read slot "{slot}"', on_wait):
        raise VerifyTimeout(
            f"the change log is complete up to {log.end().lsn} only, the source is at "
            f'{source.lsn}, and nobody reads slot "{slot}": capture does not run',
            remedy="Start it: penstock run, or penstock capture. If it runs, see what it says",
            lsn=source.lsn,
        )


def _wait_for_log(log: LogReader, lsn: Lsn, on_wait: Waiting) -> None:
    what = f"capture, whose log has to reach {lsn}"
    if not _comes(lambda: log.end().lsn >= lsn, _CATCH_UP_S, what, on_wait):
        raise VerifyTimeout(
            f"the change log is complete up to {log.end().lsn} only, and the source is at "
            f"{lsn} for {_CATCH_UP_S:g} s",
            remedy="Check that capture runs",
            lsn=lsn,
        )


def _comes(done: Callable[[], bool], within_s: float, what: str, on_wait: Waiting) -> bool:
    begun = time.monotonic()
    told = False
    while not done():
        waited_s = time.monotonic() - begun
        if waited_s > within_s:
            return False
        if waited_s > _QUIET_S and not told:
            on_wait(what)
            told = True
        time.sleep(_LOOK_EVERY_S)
    return True


def _progress(
    target: psycopg.Connection[Any], aggregate: AggregateConfig, log: LogReader
) -> Progress:
    progress = read_progress(target, aggregate.name)
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


def _compare(
    target: psycopg.Connection[Any],
    aggregate: AggregateConfig,
    table: TargetTable,
    truth: pa.Table,
) -> list[Difference]:
    names = [column.name for column in table.dimensions]
    measures = [column.name for column in table.measures]
    # What the table's columns cannot hold has to be parked, as it is written.
    should, should_wait = parted(target, table, rolled_up(truth, names, measures))
    parked, waits = parted(target, table, waiting(target, aggregate.name, table))
    width = len(names) + len(measures)
    rows = target.execute(
        compare_sql(table).encode(), [*arrays(should, width), *arrays(parked, width)]
    ).fetchall()
    zero = (0,) * len(measures)
    for key in should_wait | waits:
        pairs = zip(should_wait.get(key, zero), waits.get(key, zero), strict=True)
        rows.append((*key, *(amount for pair in pairs for amount in pair)))
    found = []
    for row in rows:
        held = dict(zip(names, row, strict=False))
        amounts = [Decimal(amount) for amount in row[len(names) :]]
        for number, measure in enumerate(measures):
            expected, shown = amounts[2 * number : 2 * number + 2]
            if expected != shown:
                found.append(Difference(str(table.table), held, measure, expected, shown))
    return found


def _count(target: psycopg.Connection[Any], table: TargetTable) -> int:
    row = target.execute(f"SELECT count(*) FROM {table.table.sql}".encode()).fetchone()  # noqa: S608
    return int(row[0]) if row else 0


def _repair(
    target: psycopg.Connection[Any],
    aggregate: AggregateConfig,
    tables: Sequence[TargetTable],
    differences: Sequence[Difference],
    audited: Progress,
    skipped: Mapping[str, int],
) -> None:
    """Add the differences: they are the same at every later position.

    `skipped`: what the truth leaves out, at the audited position; what the target has skipped since
    then is in no difference.
    """
    with target.transaction():
        now = read_progress(target, aggregate.name, lock=True)
        if now is None or now.state == "seeding" or now.seeded_at != audited.seeded_at:
            raise NotSeeded(
                f"aggregate {aggregate.name} was reset meanwhile",
                remedy="Verify it again",
                aggregate=aggregate.name,
            )
        for table in tables:
            ours = [each for each in differences if each.target == str(table.table)]
            sums: dict[str, list[Any]] = {c.name: [] for c in (*table.dimensions, *table.measures)}
            for each in ours:
                for name, value in each.key.items():
                    sums[name].append(value)
                for column in table.measures:
                    missing = each.expected - each.found if column.name == each.measure else 0
                    sums[column.name].append(Decimal(missing))
            if ours:
                only = Aggregate(
                    aggregate.name,
                    (table,),
                    seeded=True,
                    epoch=now.epoch,
                    fingerprint=now.fingerprint,
                )
                add_batch(target, only, Batch(pa.table(sums)))
        left_out = Counter(now.skipped)
        left_out.subtract(audited.skipped)
        left_out.update(skipped)
        for reason in left_out:
            if reason.endswith(RULE_OFF):  # which was not to count, and does not now
                left_out[reason] = now.skipped.get(reason, 0)
        target.execute(
            "UPDATE penstock.progress SET skipped = %s WHERE aggregate = %s",
            [skipped_json(left_out), aggregate.name],
        )
