"""What to do with a batch, given where its target is (M5.3). Pure.

The target's position P is the truth; Spark's checkpoint is not. A batch covers (start, end].
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from penstock.errors import NotSeeded, PipelineFenced, ProgressGap
from penstock.lsn import ZERO, Lsn
from penstock.pipelines.bookkeeping import Progress

# The batch's own deltas are right; they must be read anew, from P; nothing is to be done; nothing
# can be done before it is seeded. An aggregate that is to be applied may stop instead.
Decision = Literal["apply", "read", "skip", "wait", "stop"]


@dataclass(frozen=True, slots=True)
class Covered:
    """The range of a batch: every commit that ends after `start` and not after `end`."""

    log_id: str
    start: Lsn
    end: Lsn


def of_another_log(name: str) -> str:
    """What to do where a position is of a log that is not ours."""
    return (
        "If another file has an aggregate of that name in the same database, give this one another "
        f"name. Else correct path in [log], or, if the log is a new one, run: penstock reset {name}"
    )


def decide(
    covered: Covered,
    progress: Progress | None,
    *,
    name: str,
    epoch: int,
    fingerprint: str,
    summed_after: Lsn = ZERO,
    left_at: Lsn | None = None,
) -> Decision:
    """Raises the named error of what must not be applied.

    `summed_after`: what commits at or below it is not in the batch's own deltas. `left_at`: where
    the target was when this job could not write to it, and went on without it.
    """
    if progress is None:
        raise NotSeeded(
            f"aggregate {name} has no row in penstock.progress of its target any more",
            remedy=f"Run: penstock reset {name}",
            aggregate=name,
        )
    if progress.epoch < epoch:
        raise ProgressGap(
            f"the target of aggregate {name} was restored from a copy that is older than this job",
            remedy="Start the job again: it begins where the target is, if the log still holds "
            "that",
            aggregate=name,
        )
    if progress.epoch > epoch:
        raise PipelineFenced(
            f"another job has taken over aggregate {name}",
            remedy="Stop one of the two; this one has stopped by itself",
            aggregate=name,
        )
    if progress.state == "seeding":
        return "wait"
    if progress.log_id != covered.log_id:
        raise NotSeeded(
            f"aggregate {name} is at a position of log {progress.log_id}, and this is log "
            f"{covered.log_id}",
            remedy=of_another_log(name),
            aggregate=name,
        )
    applied = progress.applied_lsn
    if covered.end <= applied:
        return "skip"
    if progress.fingerprint != fingerprint:
        raise PipelineFenced(
            f"aggregate {name} was reset for another declaration than this job has",
            remedy="Start the job again, with the configuration that the reset had",
            aggregate=name,
        )
    if covered.start == applied >= summed_after:
        return "apply"
    was_away = left_at is not None and applied >= left_at
    if covered.start <= applied or progress.state == "seeded" or was_away:
        # Other boundaries than before, or the job was further on: the log has it all.
        return "read"
    raise ProgressGap(
        f"aggregate {name} is at {applied}, and the next batch begins at {covered.start}: its "
        "target was restored from an older copy, or its position was changed by hand",
        remedy="Start the job again: it begins where the target is, if the log still holds that",
        aggregate=name,
        applied_lsn=applied,
        start_lsn=covered.start,
    )
