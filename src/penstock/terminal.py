"""What all commands share: where they print, common options, errors in words or as JSON."""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import signal
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import structlog
import typer
from rich.console import Console

from penstock.errors import PenstockError
from penstock.words import visible

stdout = Console(highlight=False, soft_wrap=True)
stderr = Console(stderr=True, highlight=False, soft_wrap=True)

# What the command that runs was given with --config.
_GIVEN: ContextVar[Path | None] = ContextVar("given", default=None)
# Commands that read a configuration, where a sentence names them.
_COMMANDS = re.compile(
    r"\bpenstock (?:doctor|setup|teardown|run|capture|aggregate|reset|verify|log \w+)\b"
)


def _remember(path: Path | None) -> Path | None:
    _GIVEN.set(path)
    return path


ConfigPath = Annotated[
    Path | None,
    typer.Option(
        "--config",
        "-c",
        help="The configuration file.",
        show_default="penstock.toml",
        callback=_remember,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object, for scripts.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the SQL, and run nothing.")]

# What is written at once of a long line: each time, the output is flushed.
_PART_CHARS = 2**16


def naming(config: Path | None) -> str:
    """What a command needs to find the same configuration; the default needs no name."""
    # Slow to import: only where it is used.
    from penstock.config import DEFAULT_PATH

    return "" if config in (None, DEFAULT_PATH) else f" --config {shlex.quote(str(config))}"


def as_given(advice: str) -> str:
    """The commands in it with the --config that this one was given."""
    return _COMMANDS.sub(lambda found: found[0] + naming(_GIVEN.get()), advice)


def print_json(value: dict[str, Any], *, indent: int | None = 2) -> None:
    typer.echo(json_text(value, indent=indent))


def json_text(value: dict[str, Any], *, indent: int | None = None) -> str:
    text = json.dumps(value, indent=indent, ensure_ascii=False)
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except UnicodeEncodeError:
        text = json.dumps(value, indent=indent)  # escapes: nothing is lost
    return text


def print_pieces(pieces: Iterable[str]) -> None:
    """One line, however long, a part at a time."""
    part, size = [], 0
    for piece in pieces:
        part.append(piece)
        size += len(piece)
        if size >= _PART_CHARS:
            typer.echo("".join(part), nl=False)
            part, size = [], 0
    typer.echo("".join(part))


@contextmanager
def errors_as_json(as_json: bool, *, indent: int | None = 2) -> Iterator[None]:
    """A script that asked for JSON gets its errors so too; a person reads them on stderr."""
    try:
        yield
    except PenstockError as error:
        if as_json:
            print_json({"error": error_as_dict(error), "exit_code": 2}, indent=indent)
        raise


def error_as_dict(error: PenstockError) -> dict[str, str]:
    kind = type(error).__name__
    return {"kind": kind, "problem": error.problem, "remedy": as_given(error.remedy)}


class Interrupted(KeyboardInterrupt):
    """Ctrl-C, SIGTERM or SIGHUP; its notes say what became of what was under way."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number

    @property
    def exit_code(self) -> int:
        """As a shell would report it."""
        return 128 + self.number

    def __str__(self) -> str:
        return "; ".join(("interrupted", *getattr(self, "__notes__", ())))


# Windows has no SIGHUP.
STOP_SIGNALS = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)


def raise_on_signals() -> None:
    """From now on they raise `Interrupted`, so that what was begun is taken back.

    One that is ignored (nohup, a shell's background job) stays so. While we clean up, only another
    Ctrl-C counts: a closing terminal or service manager may well send two signals.
    """
    begun = False

    def interrupt(number: int, _: FrameType | None) -> None:
        nonlocal begun
        if not begun or number == signal.SIGINT:
            begun = True
            raise Interrupted(number)

    handle_signals(interrupt)


def handle_signals(handler: Any) -> None:
    for number in STOP_SIGNALS:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, handler)


def service_exit_code(number: int | None) -> int:
    """Return the exit code of a service that signal `number` ended cleanly, or that just ended.

    Stopping a service is success, except by SIGHUP: whoever sends that to a service expects it to
    reload its configuration and go on. It is down, and must not look well to what watches it.
    """
    if number is None or number != getattr(signal, "SIGHUP", None):
        return 0
    structlog.get_logger().warning(
        "ended by SIGHUP", remedy="There is no reload: start it again to read its configuration"
    )
    return 128 + number


def show_what_can_be_shown() -> None:
    """A mark that the terminal's encoding lacks becomes a question mark."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def output_lost(error: OSError) -> int:
    """Nobody reads our output any more, or there is no room for it; returns the exit code."""
    with suppress(OSError, ValueError):
        # What is still buffered would fail once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if isinstance(error, BrokenPipeError):
        return 128 + signal.SIGPIPE
    with suppress(OSError, SystemExit):
        stderr.print(f"error: the output cannot be written: {error.strerror}", markup=False)
    return 2


def report(error: PenstockError) -> None:
    _tell(error, "error", "bold red")


def warn(error: PenstockError) -> None:
    """Of what is no reason to end here, and will be one elsewhere."""
    _tell(error, "warning", "bold yellow")


def _tell(error: PenstockError, word: str, style: str) -> None:
    # Names may hold a terminal's commands; line breaks are also those of what Spark has said.
    problem, remedy = visible(error.problem, keep="\n\t"), visible(error.remedy, keep="\n\t")
    stderr.print(f"{word}: {problem}", style=style, markup=False)
    stderr.print(f"  fix: {as_given(remedy)}".replace("\n", "\n  "), markup=False)
