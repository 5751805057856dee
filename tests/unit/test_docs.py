"""The documents stay true: their commands and links exist."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer

from penstock.cli import app

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/*/*.md")])
TARGETS = re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE)


def shell_lines(document: Path) -> list[list[str]]:
    blocks = re.findall(r"^```sh\n(.*?)^```", document.read_text(), re.MULTILINE | re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines()]
    return [words for line in lines if (words := shlex.split(line, comments=True))]


def unknown_words(words: list[str]) -> list[str]:
    """The options that a command of ours does not have; a wrong command is a KeyError."""
    command: Any = typer.main.get_command(app)
    while hasattr(command, "commands"):
        command, words = command.commands[words[0]], words[1:]
    known = {option for parameter in command.params for option in parameter.opts}
    return [word for word in words if word.startswith("-") and word not in known]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_command_in_a_document_exists(document: Path) -> None:
    for program, *words in shell_lines(document):
        if program == "make":
            assert words[0] in TARGETS
        elif program == "penstock":
            assert unknown_words(words) == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_in_a_document_leads_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", document.read_text()):
        assert (document.parent / target).exists(), target


def test_the_readme_starts_with_the_two_commands_that_show_it() -> None:
    assert shell_lines(ROOT / "README.md")[:2] == [["make", "demo"], ["make", "test"]]


def test_the_readmes_other_commands_are_those_of_the_quickstart_which_are_run() -> None:  # M7.1
    run = shell_lines(ROOT / "docs" / "quickstart.md")
    assert [words for words in shell_lines(ROOT / "README.md") if words[0] == "penstock"] == run
