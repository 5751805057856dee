"""What set-up would do about targets, decided from facts alone."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from typing import Any

import pytest

from penstock.config import Config
from penstock.errors import ConfigMissingKey, PrivilegeMissing, ServerTooOld, TargetClash
from penstock.names import TableName
from penstock.ops.destinations import Destination
from penstock.ops.plan import plan_setup
from penstock.ops.steps import SOURCE
from penstock.ops.target_plan import target_steps
from penstock.pipelines.target_facts import SchemaFacts, TargetDatabase, check_target_version
from penstock.pipelines.targets import targets_of
from penstock.postgres.column_types import BaseType
from support.aggregates import declared
from support.facts import bare, column, source, table

FACTS = source(
    table("notes", identity="full", columns=(column("service_id"), column("status"))),
)
PUBLISHED = FACTS.publications["penstock"]
NOWHERE = TargetDatabase(
    system_id=1,
    database="app",
    major=18,
    role="setup",
    superuser=False,
    can_create=True,
    schemas={"public": SchemaFacts(True, True, frozenset({"setup", "writer"}))},
    tables={},
    types={},
    progress={},
)


def config(*aggregates: dict[str, Any]) -> Config:
    given = {"dsn": "postgresql://h/app", "tables": ["notes"]}
    return Config.model_validate({"source": given, "aggregate": aggregates or [declared()]})


def destination(*aggregates: dict[str, Any], writer: str = "setup", **changes: Any) -> Destination:
    held = tuple((aggregate, writer) for aggregate in config(*aggregates).aggregate)
    return Destination(SOURCE, held, replace(NOWHERE, **changes))


def steps(one: Destination) -> list[tuple[str, ...]]:
    return [step.statements for step in target_steps([one], FACTS, FACTS.tables, PUBLISHED)]


# M7.5: 14 has no NULLS NOT DISTINCT.
def test_a_server_before_15_is_too_old_for_targets() -> None:
    with pytest.raises(ServerTooOld, match="NULLS NOT DISTINCT"):
        check_target_version(140_011)
    check_target_version(150_000)


# M4.1
def test_targets_are_made_between_the_publication_and_the_slot() -> None:
    facts = bare(*FACTS.tables.values())
    made = [step.title for step in plan_setup(config(), facts, [destination()]).steps]
    assert made == [
        'publication "penstock" of 1 table',
        "schema penstock",
        "table penstock.progress",
        "table penstock.parked",
        "table penstock.targets",
        "table penstock.stops",
        "table penstock.sources",
        "table penstock.staged",
        "target public.stats of aggregate counts",
        'replication slot "penstock"',
    ]


def test_a_new_target_has_one_row_for_each_key_and_can_be_searched_by_each_dimension() -> None:
    assert steps(destination())[-1] == (
        (
            "CREATE TABLE public.stats (\n"
            "    service_id integer,\n"
            "    status integer,\n"
            "    count bigint NOT NULL DEFAULT 0,\n"
            "    CONSTRAINT stats_dimensions_key UNIQUE NULLS NOT DISTINCT (service_id, status)\n)"
        ),
        "CREATE INDEX ON public.stats (status)",
    )


@pytest.mark.parametrize(
    ("changes", "noted"),
    [
        ({}, False),
        ({"filter": "status > 1"}, True),
        ({"dimensions": {"day": {"expression": "status + 1", "type": "date"}}}, True),
    ],
)
def test_that_expressions_were_not_tried_is_told(changes: dict[str, Any], noted: bool) -> None:
    declaration = declared(**changes)
    kinds = {"date": BaseType("date", "date")}
    plan = plan_setup(config(declaration), FACTS, [destination(declaration, types=kinds)])
    assert [note.endswith("`penstock doctor` tells") for note in plan.notes] == [True] * noted


def test_a_role_that_does_not_set_up_is_granted_what_it_needs() -> None:
    *_, grants = steps(destination(writer="writer"))
    assert grants == (
        "GRANT USAGE ON SCHEMA penstock TO writer",
        "GRANT SELECT, INSERT, UPDATE, DELETE ON penstock.progress TO writer",
        "GRANT SELECT, INSERT, UPDATE, DELETE ON penstock.parked TO writer",
        "GRANT SELECT, INSERT, UPDATE, DELETE ON penstock.targets TO writer",
        "GRANT SELECT, INSERT, UPDATE, DELETE ON penstock.stops TO writer",
        "GRANT SELECT, INSERT, UPDATE, DELETE ON penstock.sources TO writer",
        "GRANT SELECT, INSERT, UPDATE, DELETE ON penstock.staged TO writer",
        "GRANT SELECT, INSERT, UPDATE, DELETE ON public.stats TO writer",
    )


def test_all_that_the_role_lacks_is_told_at_once() -> None:
    closed = {"public": SchemaFacts(False, False, frozenset({"setup"}))}
    with pytest.raises(PrivilegeMissing) as caught:
        steps(destination(writer="writer", can_create=False, schemas=closed))
    for statement in (
        "GRANT CREATE ON DATABASE app TO setup",
        "GRANT USAGE, CREATE ON SCHEMA public TO setup",
        "GRANT USAGE ON SCHEMA public TO writer",
    ):
        assert statement in caught.value.remedy
    assert steps(destination(can_create=False, schemas=closed, superuser=True))


def test_a_target_is_no_source_and_belongs_to_one_aggregate() -> None:
    leaf = table("notes_1", ancestors=(TableName("public", "notes"),))
    facts = source(table("notes", kind="partitioned table", leaves=(leaf,)))
    for name in ("notes", "notes_1"):
        one = destination(declared(targets=[name]))
        with pytest.raises(TargetClash, match="among the tables"):
            list(target_steps([one], facts, FACTS.tables, PUBLISHED))
        # Elsewhere it is another table.
        elsewhere = replace(one, facts=replace(NOWHERE, system_id=2))
        list(target_steps([elsewhere], facts, FACTS.tables, PUBLISHED))
    with pytest.raises(TargetClash, match="counts and again both write"):
        steps(destination(declared(), declared(name="again")))


def test_a_column_that_differs_between_sources_gets_a_type_for_both_or_needs_one() -> None:
    def facts(kind: BaseType) -> Any:
        other = table("old", columns=(column("service_id"), column("status", base=kind)))
        return {**FACTS.tables, other.name: other}

    given = {"dsn": "postgresql://h/app", "tables": ["notes", "old"]}
    aggregate = declared(sources=["notes", "old"])
    held = Config.model_validate({"source": given, "aggregate": [aggregate]}).aggregate
    one = Destination(SOURCE, ((held[0], "setup"),), NOWHERE)
    *_, made = target_steps([one], FACTS, facts(BaseType("int8", "bigint")), PUBLISHED)
    assert "status bigint" in made.sql
    with pytest.raises(ConfigMissingKey, match="no type keeps the values of all") as caught:
        list(target_steps([one], FACTS, facts(BaseType("text", "text")), PUBLISHED))
    instead = '{ expression = "cast(status as string)", type = "text" }'
    assert f"Write status = {instead}" in caught.value.remedy


def test_a_declaration_that_is_advised_can_be_pasted() -> None:  # M7.3
    dimensions = {'a "b" c': {"expression": 'concat(status, "x")', "type": "text"}}
    aggregate = config(declared(dimensions=dimensions)).aggregate[0]
    (target,) = targets_of(aggregate)
    for line, expression, kind in (
        (target.as_text('a "b" c'), 'cast(concat(status, "x") as string)', "text"),
        (target.typed('a "b" c'), 'concat(status, "x")', "…"),
    ):
        assert tomllib.loads(line) == {'a "b" c': {"expression": expression, "type": kind}}
