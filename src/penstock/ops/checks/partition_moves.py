"""Rules that are off, where an UPDATE may move a row to another partition. Pure. M4.5, M4.6

The server sends such an UPDATE as a DELETE and an INSERT, and nothing in the stream tells it from
an application's own. So with some rules off, moved rows are counted by rules that were not meant
for them.
"""

from __future__ import annotations

from collections.abc import Iterator

from penstock.declarations import AggregateConfig, AggregateSource
from penstock.ops.facts import SourceFacts
from penstock.ops.findings import Finding
from penstock.pipelines.inputs import counting_sources

_FIX = (
    "Switch insert, update and delete on in the entry of sources, or all three off; or see to it "
    "that no UPDATE changes what the table is partitioned by"
)


def check_partition_moves(aggregate: AggregateConfig, facts: SourceFacts) -> Iterator[Finding]:
    for source, table in counting_sources(aggregate, facts.tables):
        wrong = wrongly_counted(aggregate, source)
        if table.partitioned and wrong is not None:
            yield Finding(
                "aggregate_partition_moves",
                "warning",
                f"aggregate {aggregate.name}",
                f"an UPDATE that moves a row of {table.name} to another partition counts as a "
                f"DELETE and an INSERT, by their rules: {wrong}",
                "That is how the server sends it, and nothing tells it from others.",
                _FIX,
            )


def wrongly_counted(aggregate: AggregateConfig, source: AggregateSource) -> str | None:
    """What becomes of a row that moves; None: it is counted right."""
    if source.insert != source.delete:
        return "it is counted once more" if source.insert else "it is not counted any more"
    if not source.insert:
        return "it stays counted as it was"
    if source.update or set(aggregate.inputs) <= set(source.immutable):
        return None
    return "it is counted as it is now, although the update rule is off"
