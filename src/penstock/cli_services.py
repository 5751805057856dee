"""`penstock capture` and `run`: services, which work until they are stopped and log to stderr."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock import config as configuration
from penstock.beginning import BEGUN
from penstock.capture.service import run_capture
from penstock.interrupts import Interrupts
from penstock.logs import configure_logs
from penstock.ops.tools import read_tools, require_tools
from penstock.run.supervisor import Supervisor
from penstock.terminal import ConfigPath, Interrupted, as_given, service_exit_code


def capture(config: ConfigPath = None) -> None:
    """Follow the slot into the change log until stopped. A service: its log is on stderr.

    SIGTERM and Ctrl-C end it cleanly, exit code 0: everything received is on disk and confirmed.
    So does SIGHUP, with exit code 129: there is no reload. What needs a person ends it with 2.
    """
    loaded = configuration.load(config)
    configure_logs(advise=as_given)
    raise typer.Exit(run_capture(loaded))


def run(
    config: ConfigPath = None,
    keep_going: Annotated[
        bool,
        typer.Option(
            "--keep-going",
            help="Stay up and retry also after errors of capture that need a person.",
        ),
    ] = False,
) -> None:
    """Capture, and keep all declared aggregates up to date, until stopped: everything in one.

    Each part is a process that is started again when it dies. A service: its log is on stderr.
    SIGTERM and Ctrl-C end all of it cleanly, exit code 0; so does SIGHUP, with 129. When capture
    ends with an error that needs a person, aggregates apply what is in the log, and all of it ends
    with exit code 2.
    """
    loaded = configuration.load(config)
    if loaded.aggregate:
        require_tools(read_tools())
    configure_logs(advise=as_given)
    supervisor = Supervisor(
        config,
        loaded.log.path,
        aggregates=bool(loaded.aggregate),
        keep_going=keep_going,
        started=BEGUN,
    )
    try:
        with Interrupts() as interrupts:
            supervisor.run(interrupts)
    except Interrupted as end:
        raise typer.Exit(service_exit_code(end.number)) from None
