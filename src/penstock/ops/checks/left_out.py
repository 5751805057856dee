"""What an aggregate has left out: parked keys, skipped changes, counts kept at zero. M4.5, M5.4"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from penstock.declarations import AggregateConfig
from penstock.decode.classify import NOT_IN_WAL, RULE_OFF
from penstock.decode.deltas import CANNOT_HOLD
from penstock.ops.findings import Finding
from penstock.pipelines.bookkeeping import ParkedKeys, Progress
from penstock.pipelines.old_values import corrected
from penstock.pipelines.target_facts import TargetDatabase
from penstock.words import counted


@dataclass(frozen=True, slots=True)
class _Advice:
    """About changes that were skipped: what it means, and what to do before counts are corrected.

    Of what is past, such as a table's former columns, nothing is left to mend.
    """

    why: str = "The counts are without them since it was seeded or repaired last."
    mend: str = ""


# By how their reason ends; the last is for all others.
_SKIPPED = {
    NOT_IN_WAL: _Advice(
        mend="Let the table's replica identity cover these columns: an index over the primary key "
        "and them, or FULL",
    ),
    CANNOT_HOLD: _Advice(
        why="A row with such a value, as infinity in a timestamp or NaN in a sum, does not count "
        "while it has it, and `penstock verify` does not expect it to.",
        mend="Give such rows another value or the column another type, or leave the column out of "
        "the declaration",
    ),
    "": _Advice(),
}


def check_left_out(
    aggregate: AggregateConfig, facts: TargetDatabase, subject: str
) -> Iterator[Finding]:
    parked = [each for each in facts.parked if each.aggregate == aggregate.name]
    if refused := [each for each in parked if not each.is_negative]:
        yield _refused(refused, subject)
    if negative := [each for each in parked if each.is_negative]:
        yield _negative(negative, aggregate, subject)
    progress = facts.progress.get(aggregate.name)
    if progress is not None:
        yield from _skipped(progress, aggregate, subject)
        yield from _clamped(progress, subject)


def _refused(parked: Sequence[ParkedKeys], subject: str) -> Finding:
    keys = _listed((each.keys, f"in {each.target}: {each.reason}") for each in parked)
    return Finding(
        "aggregate_parked",
        "warning",
        subject,
        f"its targets refuse keys: {keys}",
        "What belongs to them waits in penstock.parked, and no target shows it.",
        "Mend what they are refused for, such as the row that a foreign key asks for, or an "
        "expression that gives texts with a zero byte or with characters that the encoding of the "
        "target's database lacks (UntranslatableCharacter); they are tried again by themselves",
    )


def _negative(parked: Sequence[ParkedKeys], aggregate: AggregateConfig, subject: str) -> Finding:
    keys = _listed((each.keys, f"in {each.target}") for each in parked)
    verify = f"`penstock verify {aggregate.name} --repair`, which corrects what differs, or "
    return Finding(
        "aggregate_below_zero",
        "warning",
        subject,
        f"the true counts of keys are below zero: {keys}",
        "They are shown as 0. A target was changed by hand, or changes were skipped.",
        f"Run {verify if aggregate.verifiable else ''}`penstock reset {aggregate.name}`",
    )


def _skipped(progress: Progress, aggregate: AggregateConfig, subject: str) -> Iterator[Finding]:
    often = sorted(progress.skipped.items(), key=lambda item: (-item[1], item[0]))
    by_kind = defaultdict(list)
    for reason, count in often:
        if count > 0:
            kind = next(end for end in (RULE_OFF, *_SKIPPED) if reason.endswith(end))
            by_kind[kind].append((count, f"({reason})"))
    for kind, advice in _SKIPPED.items():
        if kind in by_kind:
            yield Finding(
                "aggregate_skipped",
                "warning",
                subject,
                f"changes were skipped: {_listed(by_kind[kind])}",
                advice.why,
                (f"{advice.mend}. Then run " if advice.mend else "Run ") + corrected([aggregate]),
            )
    if by_rule := by_kind[RULE_OFF]:
        yield Finding(
            "aggregate_skipped",
            "info",
            subject,
            f"changes were skipped: {_listed(by_rule)}",
            "By its declaration they do not count.",
        )


def _clamped(progress: Progress, subject: str) -> Iterator[Finding]:
    if progress.clamped:
        yield Finding(
            "aggregate_clamped",
            "info",
            subject,
            f"counts were kept from going below zero {counted(progress.clamped, 'time')}",
            "It was not seeded, so rows that it never counted are taken away too.",
        )


def _listed(counts: Iterable[tuple[int, str]]) -> str:
    return "; ".join(f"{count:,} {what}" for count, what in counts)
