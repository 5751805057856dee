"""Names of aggregates that another file has taken, in a database with targets of both. Pure.

The name is what the position is kept by: set-up would have the other one seeded anew, and a job of
each would stop the other's.
"""

from __future__ import annotations

from collections.abc import Iterator
from uuid import UUID

from penstock.declarations import AggregateConfig
from penstock.errors import TargetClash
from penstock.ops.destinations import Destination
from penstock.ops.facts import SourceFacts
from penstock.printed_sql import SqlKind, printed


def taken_names(
    destination: Destination, facts: SourceFacts, log_id: UUID | None
) -> Iterator[TargetClash]:
    """`log_id`: of our log, if we see one."""
    for aggregate, _ in destination.aggregates:
        name = aggregate.name
        if _is_taken(aggregate, destination, facts, log_id):
            tables = ", ".join(destination.facts.kept[name])
            release = printed(
                SqlKind.RELEASE_NAME,
                f"DELETE FROM penstock.progress WHERE aggregate = '{name}'",  # noqa: S608 - not run
            )
            yield TargetClash(
                f"an aggregate of the name {name} keeps {tables} in database "
                f'"{destination.facts.database}", and its position is one in another change log',
                remedy=release.after(
                    "If it is another file's, give this one another name. Or, if nobody keeps it "
                    "any more, run in that database"
                ),
                aggregate=name,
            )


def _is_taken(
    aggregate: AggregateConfig, destination: Destination, facts: SourceFacts, log_id: UUID | None
) -> bool:
    """Ours may have other targets than before, or a new log, and the same targets."""
    found = destination.facts.progress.get(aggregate.name)
    kept = destination.facts.kept.get(aggregate.name, ())
    if found is None or not kept or any(str(each.table) in kept for each in aggregate.targets):
        return False
    if log_id is None:
        # Perhaps we are elsewhere than the log. But what has no slot has no log that grows.
        return facts.slot is None
    return found.log_id != str(log_id)
