"""Whether old values are in the WAL, and how they would be, from facts alone. M4.2"""

from __future__ import annotations

from typing import Any

import pytest

from penstock.config import Config
from penstock.errors import OldValuesMissing
from penstock.ops.old_values import old_value_errors
from penstock.postgres.publications import PublishedTable
from penstock.postgres.tables import Index, TableFacts
from support.aggregates import declared
from support.facts import column, publication, source, table

COLUMNS = (column("id"), column("status"), column("job", not_null=False))
PKEY = Index("notes_pkey", ("id",))


def notes(**changes: Any) -> TableFacts:
    given = {"columns": COLUMNS, "primary_key": PKEY, "candidates": (PKEY,)}
    return table("notes", **{**given, **changes})


def errors(facts: TableFacts, choice: str = "auto", **changes: Any) -> list[OldValuesMissing]:
    held = changes.pop("publications", {"penstock": publication("notes")})
    entry = {"table": "notes", **changes.pop("source", {})}
    aggregate = declared(sources=[entry], **{"dimensions": ["status"], **changes})
    tables = [{"name": "notes", "replica_identity": choice}]
    config = Config.model_validate(
        {"source": {"dsn": "postgresql://h/app", "tables": tables}, "aggregate": [aggregate]}
    )
    all_facts = source(facts, publications=held)
    return list(old_value_errors(config.aggregate[0], config.source, all_facts, all_facts.tables))


def fix(facts: TableFacts, **changes: Any) -> str:
    (error,) = errors(facts, **changes)
    return error.remedy


BY_INDEX = (
    "Run: CREATE UNIQUE INDEX CONCURRENTLY notes_penstock_key ON public.notes (id, status); "
    "ALTER TABLE public.notes REPLICA IDENTITY USING INDEX notes_penstock_key"
)


def test_full_and_an_index_that_covers_have_all() -> None:
    covering = Index("covering", ("status", "id"))
    assert errors(notes(identity="full")) == []
    assert errors(notes(identity="index", identity_index=covering)) == []
    assert errors(notes(), dimensions=["id"]) == []


def test_an_index_is_preferred_to_full() -> None:
    assert fix(notes()) == BY_INDEX
    assert fix(notes(identity="nothing")) == BY_INDEX


def test_an_index_that_is_there_already_is_taken() -> None:
    covering = Index("covering", ("status", "id"))
    facts = notes(candidates=(covering, PKEY))
    assert fix(facts) == "Run: ALTER TABLE public.notes REPLICA IDENTITY USING INDEX covering"


def test_full_is_for_nullable_columns_and_tables_without_a_key() -> None:
    full = "Run: ALTER TABLE public.notes REPLICA IDENTITY FULL"
    assert fix(notes(), dimensions=["job"]) == full
    assert fix(notes(primary_key=None, candidates=())) == full


def test_full_is_not_advised_where_it_would_break_the_applications_writes() -> None:
    listed = publication(PublishedTable(notes().name, columns=("id", "job", "status")))
    told = fix(notes(), dimensions=["job"], publications={"penstock": listed})
    assert told.startswith("Run: ALTER TABLE public.notes ALTER job SET NOT NULL; CREATE UNIQUE")
    virtual = notes(columns=(*COLUMNS, column("v", "virtual")))
    assert "FULL" not in fix(virtual, dimensions=["job"])
    assert "ADD PRIMARY KEY" in fix(
        notes(columns=virtual.columns, primary_key=None, candidates=()), dimensions=["job"]
    )


@pytest.mark.parametrize(
    ("rules", "words"),
    [
        ({}, ["UPDATE", "DELETE"]),
        ({"delete": False}, ["UPDATE"]),
        ({"update": False}, ["DELETE"]),
        ({"immutable": ["status"]}, ["DELETE"]),
        ({"immutable": ["status"], "delete": False}, []),
        ({"update": False, "delete": False}, []),
    ],
)
def test_each_operation_needs_its_own(rules: dict[str, Any], words: list[str]) -> None:
    found = errors(notes(), source=rules, verifiable=False)
    text = found[0].problem if found else ""
    assert [word for word in ("UPDATE", "DELETE") if word in text] == words


def test_a_setting_that_would_undo_the_fix_is_told() -> None:
    (error,) = errors(notes(), choice="default")
    assert error.remedy.endswith('set replica_identity = "auto" of public.notes in [source]')


def test_a_column_goes_by_the_name_that_the_table_has() -> None:
    aliased = {"aliases": {"state": ["state", "status"]}}
    assert fix(notes(), dimensions=["state"], source=aliased) == BY_INDEX
    assert errors(notes(identity="full"), dimensions=["state"], source=aliased) == []


# POSTGRES.md section 4: the root describes, the leaf decides.
def test_of_a_partition_only_what_both_it_and_its_root_hold_is_known() -> None:
    covering = Index("covering", ("id", "status"))
    by_index: dict[str, Any] = {"identity": "index", "identity_index": covering}

    def partitioned(leaf: dict[str, Any], root: dict[str, Any]) -> TableFacts:
        one = table("leaf", **{"columns": COLUMNS, "candidates": (covering,), **leaf})
        return notes(kind="partitioned table", leaves=(one,), **root)

    assert errors(partitioned(by_index, by_index)) == []
    full = {"identity": "full"}
    assert errors(partitioned(full, full), dimensions=["job"]) == []
    # Its whole old row is sent as a key, under the root's description.
    assert errors(partitioned(full, {}), dimensions=["id"]) == []
    assert errors(partitioned(full, by_index)) == []
    (error,) = errors(partitioned(full, {}))
    assert "UPDATE and DELETE of public.notes do not write the old status" in error.problem
    assert error.remedy == (
        "Run: ALTER TABLE public.notes REPLICA IDENTITY FULL; "
        "ALTER TABLE public.leaf REPLICA IDENTITY FULL"
    )
    assert fix(partitioned(by_index, full)) == "Run: ALTER TABLE public.leaf REPLICA IDENTITY FULL"
    assert fix(partitioned({}, {"identity": "full"})) == (
        "Run: ALTER TABLE public.leaf REPLICA IDENTITY FULL"
    )
    assert fix(partitioned({}, by_index)) == (
        "Run: ALTER TABLE public.leaf REPLICA IDENTITY USING INDEX covering"
    )
    assert fix(partitioned(by_index, {})) == (
        "Run: ALTER TABLE public.notes REPLICA IDENTITY FULL; "
        "ALTER TABLE public.leaf REPLICA IDENTITY FULL"
    )
