"""Which columns an aggregate reads, and which of them cannot be counted. M5.2, M4.5"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import InputUnfit
from penstock.pipelines.inputs import input_columns, input_types
from penstock.pipelines.inputs_checked import (
    _GROUPABLE,
    MAX_SUMMED_PRECISION,
    can_group,
    input_errors,
)
from penstock.pipelines.old_values import needed_old_values
from penstock.postgres.column_types import BaseType
from penstock.postgres.tables import Column
from support.aggregates import by_status
from support.facts import column, publication, table

NUMERIC = BaseType("numeric", "numeric")
TEXT = BaseType("text", "text")


def limited(precision: int, scale: int) -> BaseType:
    return BaseType("numeric", f"numeric({precision},{scale})", 4 + (precision << 16 | scale))


def problems(*columns: Column, **changes: Any) -> list[str]:
    facts = table("notes", columns=columns)
    found = input_errors(by_status(**changes), {facts.name: facts}, publication("notes"), 18)
    errors = list(found)
    assert all(isinstance(error, InputUnfit) and error.remedy for error in errors)
    return [error.problem for error in errors]


def test_the_first_name_that_the_table_has_is_taken() -> None:
    aliased = {"sources": [{"table": "notes", "aliases": {"status": ["state", "status"]}}]}
    old = table("notes", columns=(column("status"),))
    new = table("notes", columns=(column("status"), column("state", base=TEXT)))
    one = by_status(**aliased)
    assert [kind.name for kind in input_types(one, {old.name: old}, "status")] == ["int4"]
    assert [kind.name for kind in input_types(one, {new.name: new}, "status")] == ["text"]
    (problem,) = problems(column("id"), **aliased)
    assert "reads column state or status of public.notes, which has none" in problem


# Issue 22, item 17.
def test_of_aliases_all_are_read_up_to_the_first_that_is_never_null() -> None:  # M4.2, M4.5
    aliases = {"status": ["first", "second", "third"]}
    one = by_status(sources=[{"table": "notes", "aliases": aliases}])
    (source,) = one.sources
    nullable = column("first", not_null=False)
    facts = table("notes", columns=(column("third"), column("second"), nullable))
    assert [each.name for each in input_columns(source, facts, "status")] == ["first", "second"]
    needed = {"first", "second"}
    assert needed_old_values(one, source, facts) == {"update": needed, "delete": needed}
    filled = table("notes", columns=(column("second"), column("first")))
    assert needed_old_values(one, source, filled)["update"] == {"first"}


def test_aliases_that_exist_together_must_have_types_that_go_together() -> None:  # M4.6
    aliased = {"sources": [{"table": "notes", "aliases": {"status": ["state", "status"]}}]}
    state = column("state", base=TEXT, not_null=False)
    (problem,) = problems(column("status"), state, **aliased)
    assert problem.endswith(
        "which is text in column state of public.notes and integer in column status of "
        "public.notes: these do not go together"
    )
    assert problems(column("status", base=TEXT), state, **aliased) == []


# The names that documents and SQL use, where pg_type has others.
_SPELLED = {
    "boolean": "bool",
    "smallint": "int2",
    "integer": "int4",
    "bigint": "int8",
    "real": "float4",
    "double precision": "float8",
    "char(n)": "bpchar",
    '"char"': "char",
}


def test_the_documents_list_the_types_that_can_be_dimensions() -> None:
    text = (Path(__file__).parents[3] / "docs" / "aggregates.md").read_text()
    _, _, rest = text.partition("**Types that can be dimensions**")
    can, _, others = rest.partition("**All others cannot**")
    cannot, _, _ = others.partition("Equal values")

    def grouped(name: str) -> bool:
        base = BaseType(_SPELLED.get(name, name), name)
        return can_group(column("c", base=limited(10, 2) if name == "numeric(p,s)" else base))

    listed = re.findall(r"`([^`]+)`", can)
    assert all(map(grouped, listed))
    assert {_SPELLED.get(name, name) for name in listed} - {"numeric(p,s)"} == _GROUPABLE - {
        "numeric"
    }
    assert not any(map(grouped, re.findall(r"`([^`]+)`", cannot)))
    assert f"at most {MAX_SUMMED_PRECISION} digits" in text


def test_a_source_whose_rules_are_all_off_may_lack_the_columns() -> None:
    off = {"table": "archive", "insert": False, "update": False, "delete": False}
    archive = table("archive", columns=())
    facts = table("notes", columns=(column("status"),))
    tables = {facts.name: facts, archive.name: archive}
    one = by_status(sources=["notes", off])
    assert list(input_errors(one, tables, publication("notes", "archive"), 18)) == []


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
