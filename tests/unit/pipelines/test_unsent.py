"""What a publication leaves out cannot be counted. M4.6"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from penstock.declarations import AggregateConfig
from penstock.names import TableName
from penstock.pipelines.inputs_checked import input_errors
from penstock.postgres.publications import (
    OPERATIONS,
    Operation,
    PublicationFacts,
    PublishedTable,
)
from penstock.postgres.tables import TableFacts
from support.aggregates import by_status
from support.facts import column, publication, table

NO_DELETES = {
    "seed": False,
    "verifiable": False,
    "sources": [{"table": "notes", "delete": False}],
}


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
    found = list(input_errors(by_status(**changes), {facts.name: facts}, given, 18))
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
    (error,) = input_errors(by_status(), {facts.name: facts}, given, 18)
    assert "sends only those with (status > 0), while seeding counts all" in error.problem
    assert "ADD TABLE" in error.remedy
    assert list(input_errors(by_status(seed=False), {facts.name: facts}, given, 18)) == []


def test_changes_that_come_under_another_name_cannot_be_counted() -> None:  # M4.6
    columns = (column("status"),)
    leaf = table("leaf", columns=columns, ancestors=(TableName("public", "notes"),))
    root = table("notes", columns=columns, kind="partitioned table", leaves=(leaf,))
    via_root, by_leaf = publication("notes"), publication("notes", via_root=False)
    of_leaf = by_status(sources=["leaf"])

    def errors(one: AggregateConfig, facts: TableFacts, given: PublicationFacts) -> list[str]:
        return [str(error) for error in input_errors(one, {facts.name: facts}, given, 18)]

    assert errors(by_status(), root, via_root) == []
    assert errors(of_leaf, leaf, by_leaf) == []
    (text,) = errors(by_status(), root, by_leaf)
    assert 'publication "penstock" sends under the names of its partitions' in text
    assert text.endswith("ALTER PUBLICATION penstock SET (publish_via_partition_root = true)")
    (text,) = errors(of_leaf, leaf, via_root)
    assert "sends under the name of public.notes, which is published too and of which" in text
    assert 'Name "public.notes" in sources' in text
    # It is not published yet: set-up will do so.
    assert errors(by_status(), root, publication("other", via_root=False)) == []
