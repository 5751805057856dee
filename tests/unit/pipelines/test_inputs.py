"""Which columns an aggregate reads, and which of them cannot be counted. M5.2, M4.5"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from penstock.declarations import AggregateConfig
from penstock.errors import InputUnfit
from penstock.names import TableName
from penstock.pipelines.inputs import input_types
from penstock.pipelines.inputs_checked import input_errors
from penstock.postgres.column_types import BaseType
from penstock.postgres.publications import (
    OPERATIONS,
    Operation,
    PublicationFacts,
    PublishedTable,
)
from penstock.postgres.tables import Column, TableFacts
from support.aggregates import declared
from support.facts import column, publication, table

NUMERIC = BaseType("numeric", "numeric")
TEXT = BaseType("text", "text")
NO_DELETES = {
    "seed": False,
    "verifiable": False,
    "sources": [{"table": "notes", "delete": False}],
}


def limited(precision: int, scale: int) -> BaseType:
    return BaseType("numeric", f"numeric({precision},{scale})", 4 + (precision << 16 | scale))


def aggregate(**changes: Any) -> AggregateConfig:
    return AggregateConfig.model_validate(declared(**{"dimensions": ["status"], **changes}))


def problems(*columns: Column, **changes: Any) -> list[str]:
    facts = table("notes", columns=columns)
    found = input_errors(aggregate(**changes), {facts.name: facts}, publication("notes"), 18)
    errors = list(found)
    assert all(isinstance(error, InputUnfit) and error.remedy for error in errors)
    return [error.problem for error in errors]


def test_the_first_name_that_the_table_has_is_taken() -> None:
    aliased = {"sources": [{"table": "notes", "aliases": {"status": ["state", "status"]}}]}
    old = table("notes", columns=(column("status"),))
    new = table("notes", columns=(column("status"), column("state", base=TEXT)))
    one = aggregate(**aliased)
    assert [kind.name for kind in input_types(one, {old.name: old}, "status")] == ["int4"]
    assert [kind.name for kind in input_types(one, {new.name: new}, "status")] == ["text"]
    (problem,) = problems(column("id"), **aliased)
    assert "reads column state or status of public.notes, which has none" in problem


def test_a_source_whose_rules_are_all_off_may_lack_the_columns() -> None:
    off = {"table": "archive", "insert": False, "update": False, "delete": False}
    archive = table("archive", columns=())
    facts = table("notes", columns=(column("status"),))
    tables = {facts.name: facts, archive.name: archive}
    one = aggregate(sources=["notes", off])
    assert list(input_errors(one, tables, publication("notes", "archive"), 18)) == []


@pytest.mark.parametrize(
    ("changes", "sent", "missing"),
    [
        ({}, OPERATIONS, None),
        ({}, ("insert", "update", "truncate"), "delete"),
        ({}, ("insert", "update", "delete"), "truncate"),
        ({"seed": False}, ("insert", "update", "delete"), None),
        ({"seed": False}, ("delete",), "insert, update"),
        (NO_DELETES, ("insert", "update"), None),
    ],
)
def test_what_the_publication_does_not_send_cannot_be_counted(
    changes: dict[str, Any], sent: tuple[Operation, ...], missing: str | None
) -> None:  # M4.6
    facts = table("notes", columns=(column("status"),))
    given = replace(publication("notes"), operations=frozenset(sent))
    found = list(input_errors(aggregate(**changes), {facts.name: facts}, given, 18))
    if missing is None:
        assert found == []
    else:
        (error,) = found
        assert error.problem.endswith(f'publication "{given.name}" does not send {missing}')
        assert "SET (publish = 'insert, update, delete, truncate')" in error.remedy


def test_rows_that_the_publication_leaves_out_cannot_be_seeded() -> None:  # M4.6, M5.5
    facts = table("notes", columns=(column("status"),))
    held = PublishedTable(facts.name, row_filter="(status > 0)", filter_columns=("status",))
    given = replace(publication("notes"), tables=(held,))
    (error,) = input_errors(aggregate(), {facts.name: facts}, given, 18)
    assert "sends only those with (status > 0), while seeding counts all" in error.problem
    assert "ADD TABLE" in error.remedy
    assert list(input_errors(aggregate(seed=False), {facts.name: facts}, given, 18)) == []


def test_changes_that_come_under_another_name_cannot_be_counted() -> None:  # M4.6
    columns = (column("status"),)
    leaf = table("leaf", columns=columns, ancestors=(TableName("public", "notes"),))
    root = table("notes", columns=columns, kind="partitioned table", leaves=(leaf,))
    via_root, by_leaf = publication("notes"), publication("notes", via_root=False)
    of_leaf = aggregate(sources=["leaf"])

    def errors(one: AggregateConfig, facts: TableFacts, given: PublicationFacts) -> list[str]:
        return [str(error) for error in input_errors(one, {facts.name: facts}, given, 18)]

    assert errors(aggregate(), root, via_root) == []
    assert errors(of_leaf, leaf, by_leaf) == []
    (text,) = errors(aggregate(), root, by_leaf)
    assert 'publication "penstock" sends under the names of its partitions' in text
    assert text.endswith("ALTER PUBLICATION penstock SET (publish_via_partition_root = true)")
    (text,) = errors(of_leaf, leaf, via_root)
    assert "sends under the name of public.notes, which is published too and of which" in text
    assert 'Name "public.notes" in sources' in text
    # It is not published yet: set-up will do so.
    assert errors(aggregate(), root, publication("other", via_root=False)) == []


@pytest.mark.parametrize(
    ("kind", "summed"),
    [
        (BaseType("int2", "smallint"), True),
        (BaseType("int8", "bigint"), True),
        (limited(28, 4), True),
        (limited(29, 4), False),
        (NUMERIC, False),
        (BaseType("float4", "real"), False),
        (BaseType("float8", "double precision"), False),
        (BaseType("money", "money"), False),
        (TEXT, False),
    ],
)
def test_only_whole_numbers_and_limited_numerics_are_summed(kind: BaseType, summed: bool) -> None:
    found = problems(column("status"), column("cost", base=kind), measures={"c": "sum(cost)"})
    assert (found == []) is summed


@pytest.mark.parametrize(
    ("counted", "fits"),
    [
        (column("status", base=TEXT), True),
        (column("status", base=limited(10, 2)), True),
        (column("status", base=BaseType("kind", "k", builtin=False, is_enum=True)), True),
        (column("status", base=NUMERIC), False),
        (column("status", base=BaseType("_text", "text[]", is_array=True)), False),
        (column("status", base=BaseType("jsonb", "jsonb")), False),
        (column("status", base=BaseType("citext", "citext", builtin=False)), False),
        (column("status", base=TEXT, exact=False), False),
    ],
)
def test_equal_for_the_server_must_be_equal_for_spark(counted: Column, fits: bool) -> None:
    assert (problems(counted) == []) is fits
    # What an expression makes of it is another matter.
    cast = {"status": {"expression": "cast(status as string)", "type": "text"}}
    assert problems(counted, dimensions=cast) == []
