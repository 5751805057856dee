"""M5.3 as a table: where the target is, what a batch covers, and what follows."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import NotSeeded, PipelineFenced, ProgressGap
from penstock.lsn import Lsn
from penstock.pipelines.bookkeeping import Progress, State
from penstock.pipelines.deciding import Covered, Decision, decide

LOG, OTHER = "0a", "0b"


def at(
    lsn: int,
    state: State = "live",
    *,
    log: str = LOG,
    epoch: int = 3,
    fingerprint: str = "f",
) -> Progress:
    return Progress(
        aggregate="counts",
        fingerprint=fingerprint,
        log_id=log,
        applied=str(Lsn(lsn)),
        state=state,
        epoch=epoch,
        changes=0,
        skipped={},
        clamped=0,
    )


def decided(
    start: int,
    end: int,
    progress: Progress | None,
    *,
    summed_after: int = 0,
    left_at: int | None = None,
) -> Decision:
    return decide(
        Covered(LOG, Lsn(start), Lsn(end)),
        progress,
        name="counts",
        epoch=3,
        fingerprint="f",
        summed_after=Lsn(summed_after),
        left_at=None if left_at is None else Lsn(left_at),
    )


@pytest.mark.parametrize(
    ("start", "end", "state", "decision"),
    [
        # The target is at 100 in all of them. Behind it, and up to it: it is there already.
        (10, 50, "live", "skip"),
        (50, 100, "live", "skip"),
        (100, 100, "live", "skip"),
        (50, 100, "seeded", "skip"),
        # Exactly what comes next.
        (100, 150, "live", "apply"),
        (100, 150, "seeded", "apply"),
        # Only the part after 100 is new.
        (50, 150, "live", "read"),
        (0, 101, "live", "read"),
        (50, 150, "seeded", "read"),
        # It was seeded while the job was further on: the log has what lies between.
        (120, 150, "seeded", "read"),
        # Whoever seeds it says where it is, afterwards.
        (10, 50, "seeding", "wait"),
        (100, 150, "seeding", "wait"),
        (120, 150, "seeding", "wait"),
    ],
)
def test_what_to_do(start: int, end: int, state: State, decision: Decision) -> None:  # M5.3
    assert decided(start, end, at(100, state)) == decision


def test_a_batch_from_which_something_was_left_out_is_read_again() -> None:  # M5.3, M5.5
    """The job took it for applied, or about to be seeded, and a reset that failed gave it back."""
    assert decided(100, 150, at(100, "seeded"), summed_after=120) == "read"
    assert decided(100, 150, at(100), summed_after=101) == "read"
    assert decided(100, 150, at(100), summed_after=100) == "apply"


def test_the_position_of_one_that_is_being_seeded_is_not_looked_at() -> None:  # M3.9, M5.5
    assert decided(100, 150, at(100, "seeding", log=OTHER, fingerprint="g")) == "wait"


def test_a_batch_that_begins_after_the_target_s_position_is_a_gap() -> None:  # M5.3
    with pytest.raises(ProgressGap, match="counts is at 0/64, and the next batch begins at 0/65"):
        decided(101, 150, at(100))


@pytest.mark.parametrize("left_at", [100, 90])
def test_a_target_that_was_away_gets_what_it_missed_from_the_log(left_at: int) -> None:  # M5.3
    """It may be further on than was known: the last commit was made, and its answer was lost."""
    assert decided(120, 150, at(100), left_at=left_at) == "read"
    assert decided(100, 150, at(100), left_at=left_at) == "apply"


def test_one_that_was_restored_from_an_older_copy_while_it_was_away_has_a_gap() -> None:  # M5.3
    with pytest.raises(ProgressGap, match="restored from an older copy"):
        decided(120, 150, at(100), left_at=101)


@pytest.mark.parametrize(
    ("progress", "error", "said"),
    [
        (None, NotSeeded, "no row in penstock.progress"),
        (at(100, epoch=4), PipelineFenced, "another job has taken over"),
        (at(100, epoch=2), ProgressGap, "was restored from a copy that is older than this job"),
        # Also where a reset was done before the configuration of the running job was exchanged.
        (at(100, "seeded", fingerprint="g"), PipelineFenced, "reset for another declaration"),
        (at(50, fingerprint="g"), PipelineFenced, "reset for another declaration"),
        # Positions of another log are not compared, whatever they are (M3.9).
        (at(100, log=OTHER), NotSeeded, "a position of log 0b, and this is log 0a"),
        (at(10, log=OTHER), NotSeeded, "a position of log 0b"),
    ],
)
def test_what_must_not_be_applied(progress: Progress | None, error: Any, said: str) -> None:
    # M5.3
    with pytest.raises(error, match=said) as raised:
        decided(100, 150, progress)
    assert raised.value.remedy


@given(st.lists(st.integers(1, 12)), st.randoms(use_true_random=False))
def test_whatever_the_batches_each_commit_is_applied_once(sizes: list[int], chance: Any) -> None:
    """Commits 1, 2, 3, …; batches of any boundaries, some of them again, some from before."""
    # M5.3
    applied: list[int] = []
    position = start = 0
    for size in sizes:
        start = chance.randint(max(0, start - 5), start)
        end = start + size
        match decided(start, end, at(position)):
            case "apply":
                applied += range(start + 1, end + 1)
            case "read":
                applied += range(position + 1, end + 1)
            case "skip":
                assert end <= position
                end = position
        position = end
        start = end
    assert applied == list(range(1, position + 1))
