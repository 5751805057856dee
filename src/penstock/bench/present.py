"""How a benchmark's figures look on a terminal."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from penstock.bench.report import Report

_MARKS = {True: ("✓", "green"), False: ("✗", "bold red"), None: (" ", "")}


def show_report(console: Console, report: Report) -> None:
    console.print(Text(report.name, style="bold"))
    for figure in report.figures:
        goal = f"goal {figure.limit} {figure.goal:,}" if figure.goal is not None else ""
        value = f"{figure.value:>14,} {figure.unit}"
        console.print(Text.assemble(_MARKS[figure.met], f" {figure.name:<32}{value}  {goal}"))
