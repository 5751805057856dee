"""docs/types.md says what the code does, row by row."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from penstock.decode.text import Unrepresentable, parse
from penstock.decode.types import _NAMED, _OIDS, _TEXT_ELEMENTS, ValueType, value_type
from penstock.postgres.messages import Column
from penstock.spark.schema import spark_type

DOCUMENT = (Path(__file__).parents[3] / "docs" / "types.md").read_text()
SECTION = DOCUMENT.split("\n## Postgres to Spark\n")[1].split("\n## ")[0]
ROWS = [line.strip("| ").split(" | ") for line in SECTION.splitlines() if line.startswith("| `")]

# What SQL calls them, and what pg_type does.
NAMES = {
    "boolean": "bool",
    "smallint": "int2",
    "integer": "int4",
    "bigint": "int8",
    "real": "float4",
    "double precision": "float8",
    '"char"': "char",
    "char": "bpchar",
}
OIDS = {name: oid for oid, name in _OIDS.items()}
# Of a type that the code does not name: text.
OTHER_OID = 25
WITHOUT_ARRAYS = {"box", "tid"}


def quoted(text: str) -> list[str]:
    return re.findall(r"`([^`]+)`", text)


def internal(name: str) -> tuple[str, int]:
    """The name that pg_type has, and the modifier."""
    plain, *numbers = re.fullmatch(r'([\w" ]+)(?:\((-?\w+),?(-?\d+)?\))?', name).groups()  # type: ignore[union-attr]
    modifier = -1
    if plain == "numeric" and numbers[0]:
        modifier = (int(numbers[0]) << 16 | int(numbers[1]) & 0x7FF) + 4
    return NAMES.get(plain, plain), modifier


def type_of(name: str, *, array: bool = False) -> ValueType:
    plain, modifier = internal(name)
    oid = OIDS.get(f"_{plain}" if array else plain, OTHER_OID)
    return value_type(Column(False, "c", oid, modifier), {})


CASES = [
    (name, quoted(spark)[0], special[0] if special else "")
    for names, spark, *special in ROWS
    for name in quoted(names)
]


@pytest.mark.parametrize(("name", "spark", "special"), CASES, ids=[case[0] for case in CASES])
def test_a_row_of_the_table_is_true(name: str, spark: str, special: str) -> None:
    kind = type_of(name)
    assert spark_type(kind).simpleString() == spark
    kept, _, no_place = special.partition("no place")
    assert ("no place:" in special) == (not kind.total)
    for value in quoted(kept.partition("kept:")[2].split(", they")[0]):
        parse(value.encode(), kind)
    if not kind.total:
        for value in quoted(no_place):
            with pytest.raises(Unrepresentable):
                parse(value.encode(), kind)


@pytest.mark.parametrize("name", [case[0] for case in CASES])
def test_arrays_are_as_the_document_says(name: str) -> None:
    kind, array = type_of(name), type_of(name, array=True)
    if name in WITHOUT_ARRAYS:
        assert spark_type(array).simpleString() == "string"
    else:
        assert array.element == kind
        assert not array.total


def test_the_document_names_every_type_that_the_code_names() -> None:
    assert {internal(name)[0] for name, _, _ in CASES} >= {*_NAMED, *_TEXT_ELEMENTS}
