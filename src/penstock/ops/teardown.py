"""Tear-down: the slot first, so that its WAL is released, then the publication if we made it and
no other slot may read it.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.config import Config
from penstock.names import quote
from penstock.ops.capture_role import capture_role_name
from penstock.ops.facts import SourceFacts, read_facts
from penstock.ops.setup import OnStep, connect_for_setup
from penstock.ops.steps import Plan, Step
from penstock.pipelines.bookkeeping import SCHEMA
from penstock.postgres.failures import translated
from penstock.postgres.output_plugins import PLUGIN
from penstock.postgres.slots import (
    SlotFacts,
    check_kind,
    drop_slot,
    drop_sql,
    read_other_slots,
)
from penstock.printed_sql import SqlKind, printed


def plan_teardown(config: Config, facts: SourceFacts, others: Sequence[SlotFacts] = ()) -> Plan:
    """`others` are the other slots of the database."""
    source = config.source
    steps, notes = [], []
    if facts.slot is not None:
        # Two-phase and invalidated slots may go; one that cannot be ours may not.
        check_kind(facts.slot, source.slot, facts.server.database, source.plugin)
        title = f'replication slot "{source.slot}"'
        steps.append(Step(title, (drop_sql(source.slot),), kind="drop slot"))
    publication = facts.publications.get(source.publication)
    drop = printed(SqlKind.DROP_PUBLICATION, f"DROP PUBLICATION {quote(source.publication)}")
    about = f'publication "{source.publication}"'
    readers = [_spelled(other) for other in others if _may_read_publications(other)]
    if publication is not None and not publication.ours:
        notes.append(drop.after(f"{about} was not made by Penstock and is kept. To remove it"))
    elif publication is not None and readers:
        notes.append(
            drop.after(
                f"{about} is kept, for another slot of this database may read it: "
                f"{', '.join(readers)}. Without it that slot would lose changes for good. When "
                "they are gone, `penstock teardown` removes it, and so does"
            )
        )
    elif publication is not None:
        steps.append(Step(about, drop.statements))
    notes.append("replica identities are left as they are, for others may rely on them")
    if config.aggregate:
        names = ", ".join(str(t.table) for one in config.aggregate for t in one.targets)
        notes.append(
            f"the targets ({names}) and the schema {SCHEMA} beside them are left as they are: drop "
            "them yourself if nobody needs the counts"
        )
    return Plan(tuple(steps), tuple(notes))


def _may_read_publications(slot: SlotFacts) -> bool:
    """Which ones, the server knows only while somebody reads, and tells nobody: so it may be ours.

    Other plugins have no publications, and a slot that the server gave up is never read again.
    """
    return slot.plugin == PLUGIN and slot.invalidation is None


def _spelled(slot: SlotFacts) -> str:
    reader = f"read by process {slot.active_pid}" if slot.active_pid is not None else "at rest"
    return f'"{slot.name}" ({reader})'


def teardown(
    config: Config,
    *,
    dry_run: bool = False,
    force: bool = False,
    on_step: OnStep = lambda _: None,
) -> Plan:
    """Drop what is there and return it; with `force` the slot's reader is terminated first."""
    with connect_for_setup(config.source) as connection:
        capture_user = capture_role_name(config.source, connection)
        facts = read_facts(connection, config.source, capture_user)
        with translated("read the server's replication slots"):
            others = read_other_slots(connection, config.source.slot)
        plan = plan_teardown(config, facts, others)
        if not dry_run:
            for step in plan.steps:
                on_step(step)
                if step.kind == "drop slot":
                    drop_slot(connection, config.source.slot, force=force)
                else:
                    with translated(f"drop {step.title}"):
                        connection.execute(step.statements[0].encode())
    return plan
