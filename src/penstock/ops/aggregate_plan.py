"""What set-up would do about aggregates: refuse what could not be counted, and make the targets.

Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from penstock.config import Config
from penstock.names import TableName
from penstock.ops.destinations import Destination
from penstock.ops.facts import SourceFacts
from penstock.ops.old_values import old_value_errors
from penstock.ops.steps import Plan
from penstock.ops.target_plan import target_steps
from penstock.pipelines.inputs_checked import input_errors
from penstock.postgres.publications import PublicationFacts
from penstock.postgres.tables import TableFacts


def plan_aggregates(
    config: Config,
    facts: SourceFacts,
    tables: Mapping[TableName, TableFacts],
    publication: PublicationFacts,
    destinations: Sequence[Destination],
) -> Plan:
    """`tables` and `publication` as set-up will leave them. Raises the first error."""
    notes = []
    for aggregate in config.aggregate:
        for unfit in input_errors(aggregate, tables, publication, facts.server.major):
            raise unfit
        for missing in old_value_errors(aggregate, config, facts, tables):
            if aggregate.verifiable:
                raise missing
            notes.append(f"{missing.problem}: such changes are skipped and counted")
        if not aggregate.all_plain:
            # Only Spark knows, and set-up does not wait for it to start.
            notes.append(
                f"whether Spark can compute the expressions of aggregate {aggregate.name}, and its "
                "targets hold what comes out, `penstock doctor` tells"
            )
    return Plan(tuple(target_steps(destinations, facts, tables, publication)), tuple(notes))
