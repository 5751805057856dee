"""The `penstock` command. Reads flags, calls one function per command, prints; decides nothing.

Exit codes: 0 done, 1 done but look at the warnings (or differences), 2 cannot run, 128 + n ended
by signal n (services end with 0 then). An expected error is one sentence and its remedy, never a
traceback.
"""

from __future__ import annotations

import gc
import importlib.metadata
import logging
import sys
from contextlib import suppress
from typing import Annotated

import typer

from penstock import config as configuration
from penstock.__main__ import STARTED
from penstock.bench import BENCHES
from penstock.bench.present import show_report
from penstock.capture.engine import Capture
from penstock.cli_aggregates import aggregate, reset, verify
from penstock.cli_init import init
from penstock.cli_log import app as log_app
from penstock.errors import PenstockError
from penstock.interrupts import Interrupts
from penstock.logs import configure_logs
from penstock.ops import present
from penstock.ops.doctor import diagnose
from penstock.ops.expressions import look_at_expressions
from penstock.ops.findings import as_json as findings_as_json
from penstock.ops.findings import exit_code
from penstock.ops.setup import setup as run_setup
from penstock.ops.steps import Plan
from penstock.ops.teardown import teardown as run_teardown
from penstock.ops.tools import read_tools, require_tools
from penstock.run.supervisor import Supervisor
from penstock.terminal import (
    AsJson,
    ConfigPath,
    DryRun,
    Interrupted,
    errors_as_json,
    handle_signals,
    output_lost,
    print_json,
    raise_on_signals,
    report,
    show_what_can_be_shown,
    stderr,
    stdout,
)

# Of objects that may be circular, before somebody looks.
_GARBAGE = 100_000

app = typer.Typer(
    name="penstock",
    help="Carries PostgreSQL's write-ahead log to Apache Spark.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

app.add_typer(log_app, name="log")
for command in (init, aggregate, reset, verify):
    app.command()(command)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"penstock {importlib.metadata.version('penstock')}")
        raise typer.Exit


@app.callback()
def penstock(
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version.", callback=_version, is_eager=True),
    ] = False,
) -> None:
    """Carries PostgreSQL's write-ahead log to Apache Spark."""


@app.command()
def doctor(config: ConfigPath = None, as_json: AsJson = False) -> None:
    """Check the source and this machine; say what is wrong and the SQL that mends it.

    Exit code 0: fine, 1: warnings, 2: cannot run.
    """
    with errors_as_json(as_json):
        path = config or (
            configuration.DEFAULT_PATH if configuration.DEFAULT_PATH.exists() else None
        )
        findings = diagnose(configuration.load(config), path, look_at_expressions)
    if as_json:
        print_json(findings_as_json(findings))
    else:
        present.show_findings(stdout, findings)
    raise typer.Exit(exit_code(findings))


@app.command()
def setup(config: ConfigPath = None, dry_run: DryRun = False, as_json: AsJson = False) -> None:
    """Make replica identities, publication, permissions and slot, as far as they are missing."""
    progress = present.Progress(stderr if as_json else stdout, "setting up")
    with errors_as_json(as_json):
        plan = run_setup(
            configuration.load(config),
            dry_run=dry_run,
            on_step=progress.step,
            on_wait=progress.waiting,
        )
    _show(plan, dry_run=dry_run, as_json=as_json, nothing="Nothing to do: all is set up.")


@app.command()
def teardown(
    config: ConfigPath = None,
    dry_run: DryRun = False,
    force: Annotated[
        bool, typer.Option("--force", help="End the process that reads from the slot.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Drop the slot, which releases its WAL, and the publication if Penstock made it."""
    progress = present.Progress(stderr if as_json else stdout, "dropping")
    with errors_as_json(as_json):
        plan = run_teardown(
            configuration.load(config), dry_run=dry_run, force=force, on_step=progress.step
        )
    _show(plan, dry_run=dry_run, as_json=as_json, nothing="Nothing to do: all is gone.")


@app.command()
def capture(config: ConfigPath = None) -> None:
    """Follow the slot into the change log until stopped. A service: its log is on stderr.

    SIGTERM, SIGHUP and Ctrl-C end it cleanly: everything received is on disk and confirmed.
    """
    loaded = configuration.load(config)
    configure_logs()
    # Thousands of messages are held at a time and freed with their frame, and nothing of it is
    # circular: to look through them again and again took a fifth of capture's time.
    gc.set_threshold(_GARBAGE)
    running = Capture(loaded)
    handle_signals(lambda *_: running.stop())
    running.run()


@app.command()
def run(config: ConfigPath = None) -> None:
    """Capture, and keep all declared aggregates up to date, until stopped: everything in one.

    Each part is a process that is started again when it dies. A service: its log is on stderr.
    SIGTERM and Ctrl-C end all of it cleanly.
    """
    loaded = configuration.load(config)
    if loaded.aggregate:
        require_tools(read_tools())
    configure_logs()
    supervisor = Supervisor(
        config, loaded.log.path, aggregates=bool(loaded.aggregate), started=STARTED
    )
    with suppress(KeyboardInterrupt), Interrupts() as interrupts:
        supervisor.run(interrupts)


@app.command()
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


@app.command()
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


def _show(plan: Plan, *, dry_run: bool, as_json: bool, nothing: str) -> None:
    if as_json:
        print_json(present.plan_as_json(plan, dry_run=dry_run))
    elif dry_run:
        present.show_dry_run(stdout, plan)
    else:
        present.show_outcome(stdout, plan, nothing)


def main() -> None:
    show_what_can_be_shown()
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
        stderr.print(str(interruption), markup=False)
        sys.exit(interruption.exit_code)
