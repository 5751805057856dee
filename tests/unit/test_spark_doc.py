"""docs/spark.md names the options and columns that there are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from penstock.decode.metadata import METADATA
from penstock.spark.options import _OPTIONS, SourceOptions
from penstock.spark.schema import _METADATA

DOCUMENT = (Path(__file__).parents[2] / "docs" / "spark.md").read_text()
GIVEN = {"path": "/log", "table": "t"}


def rows(heading: str) -> list[list[str]]:
    """The cells of the table under a heading, but for its head."""
    section = DOCUMENT.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[1:]]


OPTIONS = [(name.strip("`"), default, meaning) for name, default, meaning in rows("Options")]


def test_every_option_is_there_in_its_order() -> None:
    assert [name for name, _, _ in OPTIONS] == list(_OPTIONS)


@pytest.mark.parametrize(("name", "default", "meaning"), OPTIONS, ids=[row[0] for row in OPTIONS])
def test_an_option_has_its_default_and_its_words(name: str, default: str, meaning: str) -> None:
    field, read, expected = _OPTIONS[name]
    given = re.fullmatch("`(.+)`", default)
    assert (read(given[1]) if given else None) == expected
    # What is said to be a choice is one.
    for word in re.findall(r"\(`(\w+)`\)", meaning):
        chosen = SourceOptions.parse({**GIVEN, name: word})
        assert getattr(chosen, field) == word


def test_every_column_of_ours_is_there_with_its_type() -> None:
    found = [(name.strip("`"), kind) for name, kind, _ in rows("Columns")]
    kinds = {name: kind.simpleString() for name, kind in _METADATA.items()}
    expected = [
        (f"_{name}", kinds[name].replace("array<string>", "array of string"))
        for name, _, _ in METADATA
    ]
    assert found == expected
