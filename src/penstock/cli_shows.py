"""`penstock demo` and `bench`: what Penstock does, to look at and in figures."""

from __future__ import annotations

import logging
from typing import Annotated

import typer

from penstock.bench import BENCHES
from penstock.bench.present import show_report
from penstock.logs import configure_logs
from penstock.ops.tools import read_tools, require_tools
from penstock.terminal import AsJson, print_json, stderr, stdout


def demo(
    seconds: Annotated[float, typer.Option(min=1, help="How long the load runs.")] = 30,
    rate: Annotated[int, typer.Option(min=10, max=100_000, help="Changes a second, about.")] = 500,
) -> None:
    """Show everything at work on this machine: a service under load, and its counts, live.

    Exit code 1: the counts differ from the tables.
    """
    require_tools(read_tools())
    # Spark is an extra, and slow to import: only where it is used.
    from penstock.demo.app import run_demo

    configure_logs(logging.WARNING)
    agree = run_demo(stdout, seconds=seconds, rate=rate)
    raise typer.Exit(0 if agree else 1)


def bench(
    names: Annotated[
        list[str] | None, typer.Argument(help=f"Any of: {', '.join(BENCHES)}.", show_default="all")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Measure, and show each figure beside its goal. Exit code 1: a goal was missed."""
    reports = []
    configure_logs(logging.WARNING)
    for name in names or BENCHES:
        if name not in BENCHES:
            raise typer.BadParameter(f"there is no benchmark {name!r}; choose {', '.join(BENCHES)}")
    for name in names or BENCHES:
        reports.append(BENCHES[name](lambda line: stderr.print(f"  {line}", markup=False)))
        if not as_json:
            show_report(stdout, reports[-1])
    if as_json:
        several = {"reports": [report.as_dict() for report in reports]}
        print_json(reports[0].as_dict() if len(reports) == 1 else several)
    raise typer.Exit(0 if all(report.met for report in reports) else 1)
