"""What an aggregate has left out: parked keys, skipped changes, counts kept at zero. M4.5, M5.4"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from penstock.declarations import AggregateConfig
from penstock.decode.classify import RULE_OFF
from penstock.ops.findings import Finding
from penstock.pipelines.bookkeeping import ParkedKeys, Progress
from penstock.pipelines.target_facts import TargetDatabase
from penstock.words import counted


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
        yield from _skipped(progress, subject)
        yield from _clamped(progress, subject)


def _refused(parked: Sequence[ParkedKeys], subject: str) -> Finding:
    keys = _listed((each.keys, f"in {each.target}: {each.reason}") for each in parked)
    return Finding(
        "aggregate_parked",
        "warning",
        subject,
        f"its targets refuse keys: {keys}",
        "What belongs to them waits in penstock.parked, and no target shows it.",
        "Mend what they are refused for, such as the row that a foreign key asks for; they are "
        "tried again by themselves",
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


def _skipped(progress: Progress, subject: str) -> Iterator[Finding]:
    often = sorted(progress.skipped.items(), key=lambda item: (-item[1], item[0]))
    by_rule = [(count, f"({why})") for why, count in often if why.endswith(RULE_OFF)]
    lacking = [(count, f"({why})") for why, count in often if not why.endswith(RULE_OFF)]
    if lacking:
        yield Finding(
            "aggregate_skipped",
            "warning",
            subject,
            f"changes were skipped: {_listed(lacking)}",
            "The counts are without them since it began.",
            "Mend the cause, such as the replica identity, then run "
            f"`penstock reset {progress.aggregate}`",
        )
    if by_rule:
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
