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
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any

import psycopg
import pyarrow as pa

from penstock.decode.stops import Stop
from penstock.lsn import ZERO, Lsn
from penstock.pipelines import staging
from penstock.pipelines.bookkeeping import Progress, read_progress, skipped_json, write_stop
from penstock.pipelines.deciding import Covered, Decision, decide
from penstock.pipelines.keys import as_held
from penstock.pipelines.merging import TargetTable, arrays_sql, merge_sql
from penstock.pipelines.parking import Parked, is_any_waiting, park, take_back
from penstock.pipelines.refusing import reason, refuses
from penstock.pipelines.sifting import sift
from penstock.pipelines.spelling import has_zero
from penstock.pipelines.staging import Staged
from penstock.pipelines.sums import Amounts, Key, arrays, by_nulls, rolled_up

NEGATIVE = "the sum is below zero"
UNTRIED = "not tried yet: too many others are refused"
ZERO_BYTE = "a text with a zero byte, which PostgreSQL does not have"
# How often a target is asked which of its keys it refuses: it takes milliseconds each time, and the
# next batch waits meanwhile. Keys that are not come to are parked untried: tables and parked keys
# add up all the same, and those are shown a little later. A transaction that takes the longer the
# more keys are refused would hold up all the others, and begin anew when it is broken off.
_MOST_TRIES = 500
# So many are tried again in one transaction, those first that are due for longest: each of them may
# be refused again. The next transaction goes on with the others.
_MOST_DUE = 250
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
    # Why nothing of the range can be applied, if so.
    stop: Stop | None = None


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
    # Why the aggregate applies nothing more until it is seeded again.
    stop: Stop | None = None


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
        progress = locked_progress(connection, aggregate.name)
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
        if batch.stop is not None:
            write_stop(connection, aggregate.name, batch.stop)
            return Applied("stop", end=progress.applied_lsn, stop=batch.stop)
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
        progress = locked_progress(connection, aggregate.name)
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


def locked_progress(connection: psycopg.Connection[Any], name: str) -> Progress | None:
    """An aggregate's progress, which nobody else moves until the transaction ends."""
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
            negative.extend(_merge(connection, target, sql, [staged.plain(target)]))

    portions = staging.portions(connection, staged, target, plain=False)
    is_alone = not is_any_waiting(connection, aggregate.name, target)
    if is_alone and _refusal(connection, merge) is None:
        if aggregate.seeded:
            park(connection, aggregate.name, target, negative, negative=True)
    else:
        negative.clear()
        portions = chain(staging.portions(connection, staged, target, plain=True), portions)
    refused, below_zero = 0, len(negative)
    for deltas in portions:
        # What is due was tried with what came here, once for the batch.
        some_refused, some_below = _add(connection, aggregate, target, deltas, retries=False)
        refused += some_refused
        below_zero += some_below
    return refused, below_zero


def _add(
    connection: psycopg.Connection[Any],
    aggregate: Aggregate,
    target: TargetTable,
    deltas: dict[Key, Amounts],
    *,
    retries: bool = True,
) -> tuple[int, int]:
    """How many keys the target refused, and how many counts would have been below zero."""
    most_due = _MOST_DUE if retries else 0
    merged = take_back(connection, aggregate.name, target, deltas, most_due)
    refused: list[Parked] = []
    negative: list[Parked] = []
    tries = iter(range(_MOST_TRIES))
    # Nobody need be asked, and the others keep their tries.
    for key in list(filter(has_zero, merged.now)):
        attempts, _ = merged.before.get(key, (0, ""))
        if any(amount := merged.now.pop(key)):
            refused.append(Parked(key, amount, attempts + 1, ZERO_BYTE))
    # What was refused before comes last: it is refused again, most often, and leaves the others
    # their tries.
    fresh = by_nulls([key for key in merged.now if key not in merged.before])
    again = by_nulls([key for key in merged.now if key in merged.before])
    for pattern, keys in (*fresh.items(), *again.items()):
        sql = merge_sql(target, pattern, arrays_sql(target))
        merge = partial(_merge_some, connection, target, sql, negative)
        amounts = {key: merged.now[key] for key in keys}
        if merge(list(amounts.items())) is None:
            continue
        amounts = as_held(connection, target, amounts)
        found = sift(list(amounts.items()), merge, tries)
        for (key, amount), why in found.refused:
            attempts, _ = merged.before.get(key, (0, ""))
            refused.append(Parked(key, amount, attempts + 1, why))
        for key, amount in found.untried:
            attempts, why = merged.before.get(key, (0, UNTRIED))
            refused.append(Parked(key, amount, attempts, why, tried=False))
    park(connection, aggregate.name, target, refused, negative=False)
    if aggregate.seeded:
        park(connection, aggregate.name, target, negative, negative=True)
    return len(refused), len(negative)


def _merge_some(
    connection: psycopg.Connection[Any],
    target: TargetTable,
    sql: str,
    negative: list[Parked],
    some: Sequence[tuple[Key, Amounts]],
) -> str | None:
    """Why the target takes none of it, or None: it has all, but for what is added to `negative`."""
    width = len(target.dimensions) + len(target.measures)

    def merge() -> None:
        negative.extend(_merge(connection, target, sql, arrays(dict(some), width)))

    return _refusal(connection, merge)


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
