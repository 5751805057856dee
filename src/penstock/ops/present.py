"""How findings and steps look on a terminal. Plain text where there is none.

Names may hold anything. In sentences, what cannot be seen is escaped; SQL keeps its line breaks,
for it is there to be pasted.
"""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from penstock.ops.findings import Finding, exit_code
from penstock.ops.steps import Plan, Step
from penstock.postgres.waiting import Blocker
from penstock.words import visible

_MARKS = {
    "error": ("✗ error", "bold red"),
    "warning": ("! warning", "yellow"),
    "info": ("· info", "cyan"),
    "ok": ("✓ ok", "green"),
}


def show_findings(console: Console, findings: list[Finding]) -> None:
    for finding in findings:
        mark, style = _MARKS[finding.level]
        what = visible(f"{finding.subject}: {finding.what}")
        console.print(Text.assemble((f"{mark:<10}", style), what))
        if finding.level != "ok":
            for label, text in (("why", visible(finding.why)), ("fix", _pasted(finding.fix))):
                if text:
                    console.print(Text.assemble((f"{label:>14}  ", "dim"), text))
    conclusions = ("Ready.", "Ready, but look at the warnings.", "Cannot run: mend the errors.")
    console.print(Text(conclusions[exit_code(findings)], style="bold"))


class Progress:
    """Prints each step as it starts, and whom it waits for."""

    def __init__(self, console: Console, verb: str) -> None:
        """`verb`: such as "setting up", for whether it succeeds is not known yet."""
        self._console = console
        self._verb = verb

    def step(self, step: Step) -> None:
        self._console.print(Text.assemble((f"{self._verb} ", "bold"), visible(step.title)))
        self._console.print(Text(_indented(_pasted(step.sql)), style="dim"))

    def waiting(self, blockers: tuple[Blocker, ...]) -> None:
        who = visible("; ".join(map(str, blockers)))
        self._console.print(Text(f"  waiting for {who}", style="yellow"))


def show_dry_run(console: Console, plan: Plan) -> None:
    """SQL that can be pasted, as it is, in the database that it is for: all else is comments."""
    database = None
    for step in plan.steps:
        if step.database != database:
            database = step.database
            console.print(Text(_comment(f"in the database of {database}:"), style="dim"))
        console.print(Text(_comment(step.title), style="dim"))
        console.print(Text(step.sql))
    for note in plan.notes:
        console.print(Text(_comment(f"note: {note}"), style="dim"))
    if not plan.steps:
        console.print(Text("-- nothing to do", style="dim"))


def show_outcome(console: Console, plan: Plan, nothing: str) -> None:
    for note in plan.notes:
        console.print(Text.assemble(("note ", "yellow"), visible(note)))
    console.print(Text("Done." if plan.steps else nothing, style="bold"))


def plan_as_json(plan: Plan, *, dry_run: bool) -> dict[str, object]:
    return {
        "dry_run": dry_run,
        "steps": [
            {"title": step.title, "database": step.database, "sql": step.sql} for step in plan.steps
        ],
        "notes": list(plan.notes),
        "exit_code": 0,
    }


def _comment(text: str) -> str:
    """On one line: what follows a line break would be live SQL."""
    return f"-- {visible(text)}"


def _pasted(sql: str) -> str:
    return visible(sql, keep="\n\t")


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines())
