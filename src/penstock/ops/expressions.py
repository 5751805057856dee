"""What Spark says about declared expressions, for doctor. It takes as long as Spark to start."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.config import Config
from penstock.errors import PenstockError
from penstock.names import TableName
from penstock.ops.destinations import Destination
from penstock.ops.facts import SourceFacts
from penstock.pipelines.target_facts import TargetFacts


def look_at_expressions(
    config: Config,
    facts: SourceFacts,
    destinations: Mapping[str, Destination | PenstockError],
) -> dict[str, tuple[PenstockError, ...]]:
    """By aggregate, all that is wrong with those that have any; what is not one is not asked."""
    computed = [each for each in config.aggregate if not each.all_plain]
    if not computed:
        return {}
    # Spark is an extra, and slow to import: only where it is used.
    from penstock.lsn import Lsn
    from penstock.pipelines.binding import bind, types_of
    from penstock.pipelines.expressions_checked import expression_errors
    from penstock.pipelines.running import spark_when_needed

    found: dict[str, tuple[PenstockError, ...]] = {}
    with spark_when_needed("penstock doctor") as spark:
        for aggregate in computed:
            there = destinations.get(aggregate.name)
            tables: Mapping[TableName, TargetFacts] = (
                there.facts.tables if isinstance(there, Destination) else {}
            )
            try:
                bound = bind(aggregate, types_of(facts.tables), Lsn(0))
            except PenstockError:  # a column that is missing or unfit has a finding of its own
                continue
            found[aggregate.name] = tuple(expression_errors(spark(), bound, tables))
    return found
