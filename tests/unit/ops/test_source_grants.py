"""What seeding must be allowed to read, decided from facts alone. M7.5"""

from __future__ import annotations

from typing import Any

import pytest

from penstock.declarations import AggregateConfig
from penstock.ops.facts import SourceFacts
from penstock.ops.source_grants import hidden_rows, missing_reads
from support.aggregates import declared
from support.facts import column, readable, source, table

NOTES = table(
    "notes",
    columns=(
        *(column("id"), column("service_id"), column("status")),
        column("label", not_null=False),
    ),
)


def aggregate(**changes: Any) -> AggregateConfig:
    return AggregateConfig.model_validate(declared(**changes))


def seen(*columns: str, **changes: Any) -> SourceFacts:
    facts = readable(NOTES, columns=frozenset(columns), **changes)
    return source(NOTES, readable={NOTES.name: facts})


SELECT = "GRANT SELECT {}ON public.notes TO capture"


@pytest.mark.parametrize(
    ("changes", "columns", "expected"),
    [
        ({}, ["service_id", "status"], []),
        ({}, ["status"], [SELECT.format("(service_id, ctid) ")]),
        ({"dimensions": {"all": "'x'"}}, ["id"], []),
        ({"dimensions": {"all": "'x'"}}, [], [SELECT.format("")]),
        ({"seed": False}, [], []),
        (
            {"sources": [{"table": "notes", "insert": False}], "verifiable": False},
            [],
            [],
        ),
        (
            {"sources": [{"table": "notes", "aliases": {"status": ["gone", "id"]}}]},
            ["service_id", "status"],
            [SELECT.format("(id, ctid) ")],
        ),
        # Of aliases all that may count are read.
        (
            {"sources": [{"table": "notes", "aliases": {"status": ["label", "status"]}}]},
            ["service_id", "status"],
            [SELECT.format("(label, ctid) ")],
        ),
    ],
)
def test_exactly_what_is_read_is_asked_for(
    changes: dict[str, Any], columns: list[str], expected: list[str]
) -> None:
    found = missing_reads([aggregate(**changes)], seen(*columns))
    assert [sql for _, sql in found] == expected


def test_two_aggregates_of_one_table_ask_once() -> None:
    facts = seen(in_schema=False)
    both = aggregate(), aggregate(name="more", dimensions=["status", "id"])
    assert list(missing_reads(both, facts)) == [
        (False, "GRANT USAGE ON SCHEMA public TO capture"),
        (True, SELECT.format("(service_id, status, id, ctid) ")),
    ]


def test_policies_concern_only_tables_that_are_read() -> None:
    facts = seen(row_security=True)
    assert len(list(hidden_rows([aggregate()], facts))) == 1
    assert list(hidden_rows([aggregate(seed=False)], facts)) == []
