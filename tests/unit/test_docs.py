"""The documents stay true: their commands and links exist."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import typer

from penstock.cli import app

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
COMMANDS = typer.main.get_command(app).commands  # type: ignore[attr-defined]
TARGETS = re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE)


def shell_lines(document: Path) -> list[list[str]]:
    blocks = re.findall(r"^```sh\n(.*?)^```", document.read_text(), re.MULTILINE | re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines()]
    return [words for line in lines if (words := shlex.split(line, comments=True))]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_command_in_a_document_exists(document: Path) -> None:
    for program, *words in shell_lines(document):
        if program == "make":
            assert words[0] in TARGETS
        elif program == "penstock":
            known = {option for parameter in COMMANDS[words[0]].params for option in parameter.opts}
            assert [word for word in words[1:] if word.startswith("-") and word not in known] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_in_a_document_leads_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", document.read_text()):
        assert (document.parent / target).exists(), target


def test_the_readme_starts_with_the_two_commands_that_show_it() -> None:
    assert shell_lines(ROOT / "README.md")[:2] == [["make", "demo"], ["make", "test"]]
