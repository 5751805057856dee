"""Adds to an aggregate's targets what an audit found missing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

import psycopg
import pyarrow as pa

from penstock.declarations import AggregateConfig
from penstock.decode.classify import RULE_OFF
from penstock.errors import NotSeeded
from penstock.pipelines.applying import Aggregate, Batch, add_batch
from penstock.pipelines.bookkeeping import Progress, read_progress, skipped_json
from penstock.pipelines.differences import Difference
from penstock.pipelines.merging import TargetTable


def repair(
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
