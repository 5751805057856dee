"""Tear-down: the slot first, so that its WAL is released, then the publication if we made it."""

from __future__ import annotations

from penstock.config import Config
from penstock.names import quote
from penstock.ops.capture_role import capture_role_name
from penstock.ops.facts import SourceFacts, read_facts
from penstock.ops.setup import OnStep, connect_for_setup
from penstock.ops.steps import Plan, Step
from penstock.pipelines.bookkeeping import SCHEMA
from penstock.postgres.failures import translated
from penstock.postgres.slots import check_kind, drop_slot, drop_sql


def plan_teardown(config: Config, facts: SourceFacts) -> Plan:
    source = config.source
    steps, notes = [], []
    if facts.slot is not None:
        # Two-phase and invalidated slots may go; one that cannot be ours may not.
        check_kind(facts.slot, source.slot, facts.server.database)
        title = f'replication slot "{source.slot}"'
        steps.append(Step(title, (drop_sql(source.slot),), kind="drop slot"))
    publication = facts.publications.get(source.publication)
    drop = f"DROP PUBLICATION {quote(source.publication)}"
    if publication is not None and publication.ours:
        steps.append(Step(f'publication "{source.publication}"', (drop,)))
    elif publication is not None:
        notes.append(
            f'publication "{source.publication}" was not made by Penstock and is kept; '
            f"{drop} removes it"
        )
    notes.append("replica identities are left as they are, for others may rely on them")
    if config.aggregate:
        names = ", ".join(str(t.table) for one in config.aggregate for t in one.targets)
        notes.append(
            f"the targets ({names}) and the schema {SCHEMA} beside them are left as they are: drop "
            "them yourself if nobody needs the counts"
        )
    return Plan(tuple(steps), tuple(notes))


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
        plan = plan_teardown(config, read_facts(connection, config.source, capture_user))
        if not dry_run:
            for step in plan.steps:
                on_step(step)
                if step.kind == "drop slot":
                    drop_slot(connection, config.source.slot, force=force)
                else:
                    with translated(f"drop {step.title}"):
                        connection.execute(step.statements[0].encode())
    return plan
