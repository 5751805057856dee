"""Whether old values are in the WAL, and how they would be, from facts alone. M4.2"""

from __future__ import annotations

from typing import Any

import pytest

from penstock.config import Config
from penstock.errors import OldValuesMissing
from penstock.ops.old_values import old_value_errors
from penstock.postgres.column_types import BaseType
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
    others = changes.pop("others", ())
    aggregate = declared(sources=[entry], **{"dimensions": ["status"], **changes})
    tables = [{"name": "notes", "replica_identity": choice}]
    config = Config.model_validate(
        {
            "source": {"dsn": "postgresql://h/app", "tables": tables},
            "aggregate": [aggregate, *others],
        }
    )
    all_facts = source(facts, publications=held)
    return list(old_value_errors(config.aggregate[0], config, all_facts, all_facts.tables))


def fix(facts: TableFacts, **changes: Any) -> str:
    (error,) = errors(facts, **changes)
    return error.remedy


BY_INDEX = (
    "Run:\n"
    "  CREATE UNIQUE INDEX CONCURRENTLY IF NOT EXISTS notes_penstock_key "
    "ON public.notes (id, status);\n"
    "  ALTER TABLE public.notes REPLICA IDENTITY USING INDEX notes_penstock_key;"
)
FULL = "Run: ALTER TABLE public.notes REPLICA IDENTITY FULL\n"
TEXT, JSONB = BaseType("text", "text"), BaseType("jsonb", "jsonb")


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
    assert fix(notes(), dimensions=["job"]).startswith(FULL)
    assert "job may be NULL" in fix(notes(), dimensions=["job"])
    assert fix(notes(primary_key=None, candidates=())).startswith(FULL)


# The application's INSERT of a long value would fail.
@pytest.mark.parametrize("base", [TEXT, JSONB, BaseType("varchar", "varchar(700)", 704)])
def test_no_index_is_advised_over_columns_without_a_small_bound(base: BaseType) -> None:
    columns = (column("id"), column("status", base=base))
    told = fix(notes(columns=columns))
    assert told.startswith(FULL)
    assert "writes the whole old row to the WAL" in told
    assert "values of " in told
    assert "CREATE" not in told
    # The key's columns are in the index, too.
    assert fix(notes(columns=(column("id", base=base), column("status")))).startswith(FULL)


def test_an_index_of_an_earlier_advice_is_not_taken_if_values_do_not_fit() -> None:
    wide = Index("notes_penstock_key", ("id", "status"))
    columns = (column("id"), column("status", base=JSONB))
    assert fix(notes(columns=columns, candidates=(PKEY, wide))).startswith(FULL)


def test_an_identity_serves_all_aggregates_of_its_table() -> None:
    other = declared(name="by_job", dimensions=["k"], targets=["ks"])
    facts = notes(columns=(*COLUMNS, column("k")))
    both = BY_INDEX.replace("(id, status)", "(id, k, status)")
    assert fix(facts, others=[other]) == both
    # Its own columns are there already, and must still be after the change for the other one.
    had = Index("notes_penstock_key", ("id", "k"))
    by_index: dict[str, Any] = {"identity": "index", "identity_index": had}
    facts = notes(
        columns=facts.columns, candidates=(had, PKEY), index_names=frozenset({had.name}), **by_index
    )
    free = both.replace("notes_penstock_key", "notes_penstock_key_2")
    assert fix(facts, others=[other]) == free


def test_full_is_not_advised_where_it_would_break_the_applications_writes() -> None:
    listed = publication(PublishedTable(notes().name, columns=("id", "job", "status")))
    told = fix(notes(), dimensions=["job"], publications={"penstock": listed})
    assert told.startswith("FULL is not possible")
    assert "job may be NULL" in told
    virtual = notes(columns=(*COLUMNS, column("v", "virtual")))
    (error,) = errors(virtual, dimensions=["job"])
    assert error.sql is None
    assert fix(virtual) == BY_INDEX
    keyless = notes(columns=virtual.columns, primary_key=None, candidates=())
    assert "With a primary key" in fix(keyless, dimensions=["job"])


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
    assert error.remedy.endswith('Set replica_identity = "auto" of public.notes in [source].')


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
    both_full = (
        "Run:\n  ALTER TABLE public.notes REPLICA IDENTITY FULL;\n"
        "  ALTER TABLE public.leaf REPLICA IDENTITY FULL;\n"
    )
    assert error.remedy.startswith(both_full)
    assert fix(partitioned(by_index, full)) == "Run: ALTER TABLE public.leaf REPLICA IDENTITY FULL"
    assert fix(partitioned({}, {"identity": "full"})) == (
        "Run: ALTER TABLE public.leaf REPLICA IDENTITY FULL"
    )
    assert fix(partitioned({}, by_index)) == (
        "Run: ALTER TABLE public.leaf REPLICA IDENTITY USING INDEX covering"
    )
    assert fix(partitioned(by_index, {})).startswith(both_full)
