"""What all commands share: where they print, common options, errors in words or as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from penstock.errors import PenstockError

stdout = Console(highlight=False, soft_wrap=True)
stderr = Console(stderr=True, highlight=False, soft_wrap=True)

ConfigPath = Annotated[
    Path | None,
    typer.Option("--config", "-c", help="The configuration file.", show_default="penstock.toml"),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object, for scripts.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the SQL, and run nothing.")]


def print_json(value: dict[str, Any], *, indent: int | None = 2) -> None:
    typer.echo(json.dumps(value, indent=indent, ensure_ascii=False))


@contextmanager
def errors_as_json(as_json: bool) -> Iterator[None]:
    """A script that asked for JSON gets its errors so too; a person reads them on stderr."""
    try:
        yield
    except PenstockError as error:
        if as_json:
            kind = type(error).__name__
            details = {"kind": kind, "problem": error.problem, "remedy": error.remedy}
            print_json({"error": details, "exit_code": 2})
        raise


def report(error: PenstockError) -> None:
    stderr.print(f"error: {error.problem}", style="bold red", markup=False)
    stderr.print(f"  fix: {error.remedy}", markup=False)
