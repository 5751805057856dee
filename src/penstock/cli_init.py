"""`penstock init`: flags in, a configuration file written, the next commands printed."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from penstock import config as configuration
from penstock.config import DEFAULT_PATH, DSN_VARIABLE
from penstock.errors import ConfigInvalidValue
from penstock.init.dsn import OpenDsn, without_secrets
from penstock.init.file import refuse_existing, write_new
from penstock.init.suggestion import Suggestion, suggest
from penstock.init.survey import survey
from penstock.init.text import render
from penstock.names import TableName
from penstock.notify.writing import write_example
from penstock.terminal import AsJson, ConfigPath, errors_as_json, naming, print_json, stdout
from penstock.words import counted, visible

# With what each is for.
_NEXT = (
    ("doctor", "what is still missing, and what to do about it"),
    ("setup", "make it: replica identities, publication, targets, slot"),
    ("run", "capture the changes and keep the counts, until Ctrl-C"),
)


class Example(StrEnum):
    NOTIFY = "notify"


def init(
    dsn: Annotated[
        str | None,
        typer.Option(
            "--dsn",
            help="The database: postgresql://user@host:5432/name, or key=value pairs.",
            show_default=f"from {DSN_VARIABLE}",
        ),
    ] = None,
    table: Annotated[
        list[str] | None,
        typer.Option(
            "--table", "-t", help="A table to capture, as often as needed.", show_default="all"
        ),
    ] = None,
    config: ConfigPath = None,
    poll: Annotated[
        bool,
        typer.Option("--poll", help="For a server that allows no replication connection."),
    ] = False,
    example: Annotated[
        Example | None,
        typer.Option("--example", help="Write the files of an example into this folder instead."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Look at a database and write a configuration file for it, with comments.

    Changes nothing in the database, never overwrites a file, and writes no password to it.
    """
    if example is not None:
        with errors_as_json(as_json):
            _refuse_beside_example({"--table": table, "--config": config, "--poll": poll})
            _write_example(dsn, as_json=as_json)
        return
    path = config or DEFAULT_PATH
    with errors_as_json(as_json):
        refuse_existing(path)
        given = configuration.source_dsn(dsn)
        opened = without_secrets(given, None if dsn is not None else DSN_VARIABLE)
        asked = [_table_name(name) for name in table or ()]
        found = survey(given, asked)
        folder = _log_folder(path)
        suggestion = suggest(found, opened, asked=bool(asked), log=folder, polled=poll)
        write_new(path, render(suggestion))
    commands = [f"penstock {name}{naming(config)}" for name, _ in _NEXT]
    if as_json:
        print_json(_as_dict(suggestion, path, commands))
    else:
        _show(suggestion, path, commands)
        _warn_of_variable(dsn)


def _refuse_beside_example(given: Mapping[str, object]) -> None:
    for flag, value in given.items():
        if value:
            raise ConfigInvalidValue(
                f"flag {flag} does not go with --example",
                remedy=f"Leave {flag} out: the example has its own tables and penstock.toml",
            )


def _write_example(dsn: str | None, *, as_json: bool) -> None:
    opened = None
    if dsn is not None or DSN_VARIABLE in os.environ:
        given = configuration.source_dsn(dsn)
        opened = without_secrets(given, None if dsn is not None else DSN_VARIABLE)
    written = write_example(Path(), opened)
    # Its tables come first.
    dsn_shown = opened.text if opened else "postgresql://localhost/notify"
    create = f"python load.py --dsn {shlex.quote(dsn_shown)} create"
    commands = [create, *(f"penstock {name}" for name, _ in _NEXT)]
    if as_json:
        print_json({"files": list(map(str, written)), "next": commands, "exit_code": 0})
        return
    stdout.print(f"Written: {', '.join(map(str, written))}.", markup=False)
    for line in _about_secrets(opened) if opened else ():
        stdout.print(line, markup=False)
    stdout.print("README.md tells what it shows, step by step. In short:", markup=False)
    for command in commands:
        stdout.print(f"  {command}", markup=False)
    _warn_of_variable(dsn)


def _warn_of_variable(dsn: str | None) -> None:
    if dsn is not None and DSN_VARIABLE in os.environ:
        note = f"But {DSN_VARIABLE} is set, and they will go by it, not by dsn in the file."
        stdout.print(note, markup=False)


def _table_name(text: str) -> TableName:
    try:
        text.encode()
        return TableName.parse(text)
    except UnicodeEncodeError:
        problem = "it holds bytes that are not UTF-8"
    except ValueError as error:
        problem = str(error)
    remedy = "Write it as in SQL, e.g. --table app.orders"
    raise ConfigInvalidValue(f"flag --table: {problem}", remedy=remedy)


def _log_folder(path: Path) -> str:
    """Called like the file: several files in one folder have several logs."""
    return f"{visible(path.stem)}-log"


def _as_dict(suggestion: Suggestion, path: Path, commands: list[str]) -> dict[str, object]:
    return {
        "file": str(path),
        "tables": [str(each.table) for each in suggestion.tables],
        "left_out": [
            {"table": str(each.table), "reason": each.reason, "remedy": each.whole_remedy}
            for each in suggestion.unfit
        ],
        "aggregates": [suggestion.aggregate.name] if suggestion.aggregate else [],
        "secrets_left_out": list(suggestion.dsn.secrets),
        "next": commands,
        "exit_code": 0,
    }


def _show(suggestion: Suggestion, path: Path, commands: list[str]) -> None:
    held = [counted(len(suggestion.tables), "table")]
    if suggestion.aggregate is not None:
        held.append(f"the aggregate {suggestion.aggregate.name}")
    stdout.print(f"{path} is written, with {' and '.join(held)}.", markup=False)
    if suggestion.unfit:
        what = counted(len(suggestion.unfit), "table")
        stdout.print(f"Left out: {what}, for reasons that the file tells.", markup=False)
    for line in _about_secrets(suggestion.dsn):
        stdout.print(line, markup=False)
    stdout.print("Look it over, then:", markup=False)
    width = max(map(len, commands))
    for command, (_, purpose) in zip(commands, _NEXT, strict=True):
        stdout.print(f"  {command:<{width}}   # {purpose}", markup=False)


def _about_secrets(dsn: OpenDsn) -> list[str]:
    """So that the next commands can connect, too."""
    if not dsn.secrets:
        return []
    are, it = ("is", "it") if len(dsn.secrets) == 1 else ("are", "them")
    left_out = f"The {' and '.join(dsn.secrets)} {are} left out of the file"
    if dsn.variable is not None:
        return [f"{left_out}: the next commands find {it} in {dsn.variable}, as this one did."]
    if dsn.secrets == ("password",):
        where, example = "it in PGPASSWORD or ~/.pgpass", "PGPASSWORD"
    else:
        where, example = f"the connection string in {DSN_VARIABLE}", DSN_VARIABLE
    return [f"{left_out}. Let the next commands find {where}, e.g.:", f"  export {example}=…"]
