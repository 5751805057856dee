"""The `penstock` command. Reads flags, calls one function per command, prints; decides nothing.

Exit codes: 0 done, 1 done but look at the warnings (or differences), 2 cannot run. An expected
error is one sentence and its remedy, never a traceback.
"""

from __future__ import annotations

import sys

import typer
from rich.console import Console

from penstock.errors import PenstockError

app = typer.Typer(
    name="penstock",
    help="Carries PostgreSQL's write-ahead log to Apache Spark.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

stderr = Console(stderr=True, highlight=False, soft_wrap=True)


def main() -> None:
    try:
        app()
    except PenstockError as error:
        report(error)
        sys.exit(2)
    except KeyboardInterrupt:
        # 128 + SIGINT, as a shell would report it.
        sys.exit(130)


def report(error: PenstockError) -> None:
    stderr.print(f"error: {error.problem}", style="bold red", markup=False)
    stderr.print(f"  fix: {error.remedy}", markup=False)
