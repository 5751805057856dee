"""Findings and steps on a terminal, whatever the names in them hold. M7.3"""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from penstock.errors import TableMissing
from penstock.ops.findings import Finding
from penstock.ops.present import Progress, show_dry_run, show_findings, show_outcome
from penstock.ops.steps import Plan, Step
from penstock.terminal import report

# A line of its own that looks like ours, and what clears a terminal.
NAME = '"new\n✓ ok      all is well\x1b[2J"'
SHOWN = '"new\\u000a✓ ok      all is well\\u001b[2J"'


@pytest.fixture
def console() -> Console:
    return Console(file=io.StringIO(), soft_wrap=True)


def shown(console: Console) -> list[str]:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def test_a_name_in_a_finding_stays_on_its_line(console: Console) -> None:
    sql = 'ALTER TABLE "new\nline" REPLICA IDENTITY FULL'
    show_findings(console, [Finding("table", "error", NAME, f"{NAME} is lost", f"By {NAME}.", sql)])
    what, why, *fix, conclusion = shown(console)
    assert what == f"✗ error   {SHOWN}: {SHOWN} is lost"
    assert why.endswith(f"why  By {SHOWN}.")
    # As the server needs it.
    assert "\n".join(fix).endswith(f"fix  {sql}")
    assert conclusion == "Cannot run: mend the errors."


def test_a_name_in_a_step_or_note_stays_on_its_line(console: Console) -> None:
    plan = Plan((Step(f"target {NAME}", ("CREATE TABLE t ()",)),), (f"{NAME} is kept",))
    Progress(console, "making").step(plan.steps[0])
    show_outcome(console, plan, "nothing")
    show_dry_run(console, plan)
    assert shown(console) == [
        f"making target {SHOWN}",
        "    CREATE TABLE t ();",
        f"note {SHOWN} is kept",
        "Done.",
        "-- in the database of [source]:",
        f"-- target {SHOWN}",
        "CREATE TABLE t ();",
        f"-- note: {SHOWN} is kept",
    ]


def test_an_error_does_not_command_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    report(TableMissing(f"table {NAME} does not exist", remedy=f"Make {NAME}"))
    said = capsys.readouterr().err
    assert said.count("\\u001b[2J") == 2
    assert "\x1b[2J" not in said
