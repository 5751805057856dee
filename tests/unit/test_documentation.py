"""Messages name documentation that the installed package has."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from penstock import cli_docs
from penstock.cli import app
from penstock.documentation import pages, title
from penstock.terminal import stdout

SOURCE = Path(cli_docs.__file__).parent
NAMED = re.compile(r"penstock docs ([a-z-]+)")


def test_every_page_that_is_named_anywhere_exists() -> None:
    files = [path for path in SOURCE.rglob("*") if path.suffix in {".py", ".sql", ".toml", ".md"}]
    named = {name for path in files for name in NAMED.findall(path.read_text())}
    assert named
    assert named <= pages().keys()


def test_no_message_names_a_file_that_a_wheel_has_not() -> None:
    """Comments of the code may: who reads them has the source."""
    wrong = [
        f"{path.relative_to(SOURCE)}: {line.strip()}"
        for path in SOURCE.rglob("*.py")
        if path.parent.name != "bench"
        for line in path.read_text().splitlines()
        if re.search(r"docs/[a-z-]+\.md", line) and not re.search(r'^"""|`docs/', line.strip())
    ]
    assert wrong == []


def test_a_page_is_printed_as_it_is_where_there_is_no_terminal() -> None:
    shown = CliRunner().invoke(app, ["docs", "roles"])
    assert (shown.exit_code, shown.stdout.strip()) == (0, pages()["roles"].read_text().strip())
    assert CliRunner().invoke(app, ["docs", "roles.md"]).stdout == shown.stdout


def test_without_a_page_all_are_listed_with_their_titles() -> None:
    shown = CliRunner().invoke(app, ["docs"])
    assert shown.exit_code == 0
    for name, path in pages().items():
        assert re.search(rf"^{name} +{re.escape(title(path))}$", shown.stdout, re.MULTILINE)


def test_an_unknown_page_ends_with_2_and_the_list() -> None:
    shown = CliRunner().invoke(app, ["docs", "rules"])
    assert shown.exit_code == 2
    assert "rules" in shown.output
    assert "roles" in shown.output


def test_on_a_terminal_a_page_is_rendered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stdout, "_force_terminal", True)
    shown = CliRunner().invoke(app, ["docs", "roles"])
    assert shown.exit_code == 0
    assert "```" not in shown.stdout
