"""Adds the deltas of one batch to an aggregate's targets, with its position, in one transaction.

Invariant: a target's tables hold exactly the changes that commit at or below the `applied_lsn` of
its row in `penstock.progress`, less what `penstock.parked` holds. Everything here happens in the
transaction in which that row is locked, so a crash at any step leaves both as they were.

What a target refused is tried again with each batch, and between them when none comes: it goes from
`penstock.parked` to the tables in one such transaction, so the two add up to the same whenever
anybody looks, however often it is tried; the position stays.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import psycopg
import pyarrow as pa

from penstock.lsn import ZERO, Lsn
from penstock.pipelines import staging
from penstock.pipelines.bookkeeping import Progress, read_progress, skipped_json
from penstock.pipelines.deciding import Covered, Decision, decide
from penstock.pipelines.keys import as_held
from penstock.pipelines.merging import TargetTable, arrays_sql, merge_sql
from penstock.pipelines.parking import Parked, park, take_back, waiting
from penstock.pipelines.refusing import reason, refuses
from penstock.pipelines.staging import Staged
from penstock.pipelines.sums import Amounts, Key, arrays, by_nulls, rolled_up

NEGATIVE = "the sum is below zero"
# A batch may come meanwhile, and what is not tried now is tried later.
_RETRY_WAIT_S = 0.5


@dataclass(frozen=True, slots=True)
class Batch:
    """What a range of the log adds to one aggregate."""

    # Dimensions as text, measures as numbers, by their names.
    sums: pa.Table
    changes: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    # What is too large to come here.
    staged: Staged | None = None


@dataclass(frozen=True, slots=True)
class Applied:
    """What became of a batch."""

    decision: Decision
    changes: int = 0
    # Keys that a target refused, and counts that would have been below zero.
    parked: int = 0
    below_zero: int = 0
    # Where the targets are now, if it was applied; before the batch's end, if that was far away.
    end: Lsn = field(default=ZERO, compare=False)


@dataclass(frozen=True, slots=True)
class Aggregate:
    """One aggregate as this job applies it."""

    name: str
    targets: tuple[TargetTable, ...]
    seeded: bool
    # Of this job: a newer one fences it.
    epoch: int
    # Of its declaration, as this job knows it.
    fingerprint: str


def apply(
    connection: psycopg.Connection[Any],
    aggregate: Aggregate,
    covered: Covered,
    compute: Callable[[], Batch],
    read_again: Callable[[Covered], tuple[Batch, Lsn]],
    *,
    summed_after: Lsn = ZERO,
    left_at: Lsn | None = None,
) -> Applied:
    """Apply what the targets do not have yet; afterwards they are at the batch's end.

    Or before it: `read_again` may take the beginning of a long range only, and says where it ends.
    """
    with connection.transaction():
        progress = _locked_progress(connection, aggregate.name)
        decision = decide(
            covered,
            progress,
            name=aggregate.name,
            epoch=aggregate.epoch,
            fingerprint=aggregate.fingerprint,
            summed_after=summed_after,
            left_at=left_at,
        )
        if decision in ("skip", "wait") or progress is None:
            return Applied(decision, end=progress.applied_lsn if progress else ZERO)
        if decision == "read":
            missed = Covered(covered.log_id, progress.applied_lsn, covered.end)
            batch, end = read_again(missed)
        else:
            batch, end = compute(), covered.end
        parked, below_zero = add_batch(connection, aggregate, batch)
        skipped = Counter(progress.skipped)
        skipped.update(batch.skipped)
        connection.execute(
            "UPDATE penstock.progress SET applied_lsn = %s, state = 'live', applied_at = now(),"
            " changes = changes + %s, skipped = %s, clamped = clamped + %s WHERE aggregate = %s",
            [
                *(str(end), batch.changes, skipped_json(skipped)),
                *(0 if aggregate.seeded else below_zero, aggregate.name),
            ],
        )
    return Applied(decision, batch.changes, parked, below_zero, end)


def retry(connection: psycopg.Connection[Any], aggregate: Aggregate, log_id: str) -> Applied:
    """Try what the targets refused and is due, if the next batch could be applied now."""
    with connection.transaction():
        connection.execute(f"SET LOCAL lock_timeout = {_RETRY_WAIT_S * 1000:.0f}".encode())
        progress = _locked_progress(connection, aggregate.name)
        at = progress.applied_lsn if progress else ZERO
        decision = decide(
            Covered(log_id, at, Lsn(at + 1)),
            progress,
            name=aggregate.name,
            epoch=aggregate.epoch,
            fingerprint=aggregate.fingerprint,
        )
        if decision != "apply":
            return Applied(decision)
        _check_at_once(connection)
        tried = [_add(connection, aggregate, target, {}) for target in aggregate.targets]
        parked, below_zero = (sum(found) for found in zip(*tried, strict=True))
        if below_zero and not aggregate.seeded:
            connection.execute(
                "UPDATE penstock.progress SET clamped = clamped + %s WHERE aggregate = %s",
                [below_zero, aggregate.name],
            )
    return Applied(decision, parked=parked, below_zero=below_zero)


def _locked_progress(connection: psycopg.Connection[Any], name: str) -> Progress | None:
    seen = read_progress(connection, name)
    # Not to wait for a seeding that writes its rows: its position is told when it is done.
    if seen is not None and seen.state == "seeding":
        return seen
    return read_progress(connection, name, lock=True)


def add_batch(
    connection: psycopg.Connection[Any], aggregate: Aggregate, batch: Batch
) -> tuple[int, int]:
    """To all targets; how many keys they refused, and how many counts would be below zero."""
    parked = below_zero = 0
    _check_at_once(connection)
    for target in aggregate.targets:
        names = [column.name for column in target.dimensions]
        deltas = rolled_up(batch.sums, names, [column.name for column in target.measures])
        refused, negative = _add(connection, aggregate, target, deltas)
        if batch.staged is not None:
            more_refused, more_negative = _add_staged(connection, aggregate, target, batch.staged)
            refused, negative = refused + more_refused, negative + more_negative
        parked += refused
        below_zero += negative
    if batch.staged is not None:
        staging.clear(connection, aggregate.name)
    return parked, below_zero


def _check_at_once(connection: psycopg.Connection[Any]) -> None:
    """Else a key that the target refuses would be told when everything is committed."""
    connection.execute("SET CONSTRAINTS ALL IMMEDIATE")


def _add_staged(
    connection: psycopg.Connection[Any], aggregate: Aggregate, target: TargetTable, staged: Staged
) -> tuple[int, int]:
    """As `_add`; where all goes well, without a row of it coming here."""
    staging.check_complete(connection, staged)
    negative: list[Parked] = []

    def merge() -> None:
        for pattern in staging.patterns(connection, staged, target):
            sql = merge_sql(target, pattern, staging.source_sql(staged, target, pattern))
            negative.extend(_merge(connection, target, sql, [list(staged.parts)]))

    if not waiting(connection, aggregate.name, target) and _refusal(connection, merge) is None:
        if aggregate.seeded:
            park(connection, aggregate.name, target, negative, negative=True)
        return 0, len(negative)
    refused = below_zero = 0
    for deltas in staging.portions(connection, staged, target):
        some_refused, some_below = _add(connection, aggregate, target, deltas)
        refused += some_refused
        below_zero += some_below
    return refused, below_zero


def _add(
    connection: psycopg.Connection[Any],
    aggregate: Aggregate,
    target: TargetTable,
    deltas: dict[Key, Amounts],
) -> tuple[int, int]:
    """How many keys the target refused, and how many counts would have been below zero."""
    merged = take_back(connection, aggregate.name, target, deltas)
    refused: list[Parked] = []
    negative: list[Parked] = []
    width = len(target.dimensions) + len(target.measures)
    for pattern, keys in by_nulls(list(merged.now)).items():
        sql = merge_sql(target, pattern, arrays_sql(target))

        def merge(some: dict[Key, Amounts], sql: str = sql) -> None:
            negative.extend(_merge(connection, target, sql, arrays(some, width)))

        amounts = {key: merged.now[key] for key in keys}
        if _refusal(connection, partial(merge, amounts)) is None:
            continue
        amounts = as_held(connection, target, amounts)
        for key, why in _refused(connection, amounts, merge):
            tried = merged.attempts.get(key, 0) + 1
            refused.append(Parked(key, amounts[key], tried, why))
    park(connection, aggregate.name, target, refused, negative=False)
    if aggregate.seeded:
        park(connection, aggregate.name, target, negative, negative=True)
    return len(refused), len(negative)


def _merge(
    connection: psycopg.Connection[Any],
    target: TargetTable,
    sql: str,
    parameters: list[Any],
) -> list[Parked]:
    """What would have gone below zero."""
    below = []
    width = len(target.dimensions)
    for row in connection.execute(sql.encode(), parameters).fetchall():
        short = dict(
            zip(
                (c.name for c in target.measures if c.name in target.floored),
                row[width:],
                strict=True,
            )
        )
        missing = tuple(short.get(column.name, 0) for column in target.measures)
        below.append(Parked(tuple(row[:width]), missing, 1, NEGATIVE))
    return below


def _refused(
    connection: psycopg.Connection[Any],
    amounts: dict[Key, Amounts],
    merge: Callable[[dict[Key, Amounts]], None],
) -> Iterator[tuple[Key, str]]:
    """All at once; if the target refuses one, by halves until it is alone. Those refused."""
    if (why := _refusal(connection, partial(merge, amounts))) is None:
        return
    keys = list(amounts)
    if len(keys) == 1:
        yield keys[0], why
        return
    half = len(keys) // 2
    for some in (keys[:half], keys[half:]):
        yield from _refused(connection, {key: amounts[key] for key in some}, merge)


def _refusal(connection: psycopg.Connection[Any], merge: Callable[[], None]) -> str | None:
    """Why the target takes none of it, or None: it has all."""
    try:
        with connection.transaction():
            merge()
    except psycopg.Error as error:
        if not refuses(error):
            raise
        return reason(error)
    return None
