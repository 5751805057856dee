"""The `penstock` command: which module has which command, and how the process ends.

A command reads flags, calls one function, prints; it decides nothing. Its module is imported when
it is asked for: all of them together take a second.

Exit codes: 0 done, 1 done but look at the warnings (or differences), 2 cannot run, 128 + n ended
by signal n (services end with 0 then). An expected error is one sentence and its remedy, never a
traceback.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from penstock.errors import PenstockError
from penstock.terminal import (
    Interrupted,
    as_given,
    output_lost,
    raise_on_signals,
    report,
    show_what_can_be_shown,
    stderr,
)

# In the order of help: how one begins, what runs, what one looks at.
_MODULES = {
    "init": "cli_init",
    "doctor": "cli_ops",
    "setup": "cli_ops",
    "run": "cli_services",
    "capture": "cli_services",
    "aggregate": "cli_aggregates",
    "reset": "cli_aggregates",
    "verify": "cli_aggregates",
    "log": "cli_log",
    "teardown": "cli_ops",
    "docs": "cli_docs",
    "demo": "cli_shows",
    "bench": "cli_shows",
}


class _Loaded(Mapping[str, Any]):
    """Each command is the function of its name in its module; `log` has some of its own."""

    def __getitem__(self, name: str) -> Any:
        found = getattr(import_module(f"penstock.{_MODULES[name]}"), name)
        if not isinstance(found, typer.Typer):
            alone = typer.Typer(add_completion=False)
            alone.command(name)(found)
            found = alone
        return typer.main.get_command(found)

    def __iter__(self) -> Iterator[str]:
        return iter(_MODULES)

    def __len__(self) -> int:
        return len(_MODULES)


class _Commands(TyperGroup):
    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = _Loaded()  # type: ignore[assignment] # nobody adds to it


app = typer.Typer(
    name="penstock",
    help="Carries PostgreSQL's write-ahead log to Apache Spark.",
    cls=_Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        typer.echo(f"penstock {version('penstock')}")
        raise typer.Exit


@app.callback()
def penstock(
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version.", callback=_version, is_eager=True),
    ] = False,
) -> None:
    """Carries PostgreSQL's write-ahead log to Apache Spark."""


def main() -> None:
    show_what_can_be_shown()
    # Before signals raise: within an import an exception may be swallowed.
    if (name := next((word for word in sys.argv[1:] if word[:1] != "-"), "")) in _MODULES:
        import_module(f"penstock.{_MODULES[name]}")
    raise_on_signals()
    try:
        _run()
    except SystemExit as end:
        # Typer and Rich end with 1, which means warnings here.
        if not isinstance(end.__context__, BrokenPipeError):
            raise
        sys.exit(output_lost(end.__context__))
    except OSError as error:
        if error.filename is not None:  # not our output but some file
            raise
        sys.exit(output_lost(error))


def _run() -> None:
    try:
        app()
    except PenstockError as error:
        report(error)
        sys.exit(2)
    except SystemExit as end:
        # Typer makes 130 of every interruption.
        interruption = getattr(end.__context__, "__cause__", None)
        if not isinstance(interruption, Interrupted):
            raise
        stderr.print(as_given(str(interruption)), markup=False)
        sys.exit(interruption.exit_code)
