"""`penstock capture` and `run`: services, which work until they are stopped and log to stderr."""

from __future__ import annotations

from contextlib import suppress

from penstock import config as configuration
from penstock.beginning import BEGUN
from penstock.capture.service import run_capture
from penstock.interrupts import Interrupts
from penstock.logs import configure_logs
from penstock.ops.tools import read_tools, require_tools
from penstock.run.supervisor import Supervisor
from penstock.terminal import ConfigPath, as_given


def capture(config: ConfigPath = None) -> None:
    """Follow the slot into the change log until stopped. A service: its log is on stderr.

    SIGTERM, SIGHUP and Ctrl-C end it cleanly: everything received is on disk and confirmed.
    """
    loaded = configuration.load(config)
    configure_logs(advise=as_given)
    run_capture(loaded)


def run(config: ConfigPath = None) -> None:
    """Capture, and keep all declared aggregates up to date, until stopped: everything in one.

    Each part is a process that is started again when it dies. A service: its log is on stderr.
    SIGTERM and Ctrl-C end all of it cleanly.
    """
    loaded = configuration.load(config)
    if loaded.aggregate:
        require_tools(read_tools())
    configure_logs(advise=as_given)
    supervisor = Supervisor(
        config, loaded.log.path, aggregates=bool(loaded.aggregate), started=BEGUN
    )
    with suppress(KeyboardInterrupt), Interrupts() as interrupts:
        supervisor.run(interrupts)
