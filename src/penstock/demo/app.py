"""The demo: a notification service under load, and its counts kept live by `penstock run`.

Every part is the real one, on this machine and for half a minute: PostgreSQL, the example of
`notify/`, capture and Spark in processes of their own. At the end `verify` compares the counts with
the tables.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
from rich.console import Console

from penstock import config as configuration
from penstock.beside import Check, beside
from penstock.config import Config
from penstock.demo.view import view
from penstock.demo.watching import Watcher
from penstock.errors import PenstockError
from penstock.init.dsn import without_secrets
from penstock.interrupts import Interrupts
from penstock.notify.service import bulk, create, steady
from penstock.notify.writing import write_example
from penstock.ops.setup import setup
from penstock.pipelines.running import spark_when_needed
from penstock.pipelines.verifying import Verified, verify
from penstock.postgres.connect import connect
from penstock.postgres.embedded import EmbeddedPostgres
from penstock.postgres.failures import translated
from penstock.run.part import AGGREGATES, CAPTURE
from penstock.run.supervisor import Supervisor
from penstock.scratch import scratch_folder
from penstock.sections import Dsn
from penstock.words import counted

# Rows that are there before Penstock comes.
_ROWS = 50_000
_START_S = 180.0
_CATCH_UP_S = 60.0
# What of the parts' logs a newcomer wants to know.
_NEWS = {
    (CAPTURE, "following"): "capture follows the write-ahead log",
    (AGGREGATES, "spark started"): "Spark has started",
    (AGGREGATES, "seeded"): "the rows that were there are counted",
}


def run_demo(console: Console, *, seconds: float, rate: int) -> bool:
    """Run it all; true if there are no differences.

    An interrupt is raised only where it is heeded: what was started by then is known and ended.
    """
    with Interrupts() as interrupts, ExitStack() as stack:
        directory = stack.enter_context(scratch_folder())
        console.print(f"1. Starting PostgreSQL 18, and {_ROWS:,} notifications in it")
        server = EmbeddedPostgres(18)
        stack.callback(server.close)
        with interrupts.heeded():
            server.start()
        connection = stack.enter_context(connect(server.dsn()))
        stack.enter_context(translated("work with the demo's server"))
        with interrupts.heeded():
            create(connection)
            bulk(connection, _ROWS)
        console.print("2. penstock setup: replica identities, publication, targets, slot")
        config_file = _config_file(directory / "notify", server.dsn())
        # What the user's environment says is about other databases.
        config = configuration.load(config_file, environ={})
        with interrupts.heeded():
            setup(config)
        console.print("3. penstock run: capture, and Spark to count (some fifteen seconds)")
        check = stack.enter_context(_running(config, config_file, console))
        _wait(lambda: _is_live(connection), check, interrupts, _START_S)
        console.print(f"4. Load: about {rate} changes a second for {seconds:g} s")
        watcher = Watcher(server.dsn(), config.source.slot, before=_changes(connection))
        load, stop = _Load(watcher), threading.Event()
        work = partial(steady, server.dsn(), rate=rate, stop=stop, on_changes=load.count)
        with watcher.watching() as check_watcher:
            with beside(work, stop.set, "load") as check_load:
                checks = (check, check_load, check_watcher)
                _show(console, watcher, connection, seconds, checks, interrupts)
            _wait(lambda: watcher.changes >= load.changes, check, interrupts, _CATCH_UP_S)
        console.print("5. penstock verify: every count against the tables themselves")
        (aggregate,) = config.aggregate
        # Spark raises an interrupt only where it has nothing to lose, and so where we do not mind.
        with interrupts.heeded(), spark_when_needed("penstock demo") as spark:
            found = verify(config, aggregate, spark)
        return _tell(console, watcher, found)


def _config_file(directory: Path, dsn: str) -> Path:
    opened = without_secrets(Dsn(dsn, "the demo's server"))
    written = {path.name: path for path in write_example(directory, opened)}
    return written["penstock.toml"]


@contextmanager
def _running(config: Config, config_file: Path, console: Console) -> Iterator[Check]:
    """`penstock run`; yields what raises its error, if it has ended with one."""

    def tell(part: str, event: Any) -> None:
        if (news := _NEWS.get((part, event["event"]))) is not None:
            console.print(f"   {news}")

    environ = {name: each for name, each in os.environ.items() if not name.startswith("PENSTOCK_")}
    supervisor = Supervisor(
        config_file, config.log.path, aggregates=True, watch=tell, environ=environ
    )
    with beside(lambda: supervisor.run(Interrupts()), supervisor.stop, "run") as check:
        yield check


class _Load:
    """The notification service at work, and how many of its changes have committed."""

    def __init__(self, watcher: Watcher) -> None:
        self._watcher = watcher
        self.changes = 0

    def count(self, changes: int) -> None:
        if changes > self.changes:
            self.changes = changes
            self._watcher.committed(changes)


def _show(
    console: Console,
    watcher: Watcher,
    connection: psycopg.Connection[Any],
    seconds: float,
    checks: Sequence[Check],
    interrupts: Interrupts,
) -> None:
    until = time.monotonic() + seconds
    with view(console) as shown:
        while time.monotonic() < until:
            with interrupts.heeded():
                time.sleep(1)
            for check in checks:
                check()
            shown.show(watcher.look(connection))


def _wait(done: Callable[[], bool], check: Check, interrupts: Interrupts, within_s: float) -> None:
    deadline = time.monotonic() + within_s
    while not done():
        check()
        if time.monotonic() > deadline:
            raise PenstockError(
                f"the counts did not get there within {within_s:g} s",
                remedy="See the warnings above. The machine may be too busy: try a lower --rate",
            )
        with interrupts.heeded():
            time.sleep(0.1)


def _changes(connection: psycopg.Connection[Any]) -> int:
    row = connection.execute("SELECT changes FROM penstock.progress").fetchone()
    return int(row[0]) if row else 0


def _is_live(connection: psycopg.Connection[Any]) -> bool:
    rows = connection.execute("SELECT state FROM penstock.progress").fetchall()
    return bool(rows) and all(state == "live" for (state,) in rows)


def _tell(console: Console, watcher: Watcher, found: Verified) -> bool:
    for each in found.differences:
        console.print(f"   {each}", markup=False)
    console.print(f"   {found.keys:,} counts compared at {found.lsn}")
    p50, p99 = watcher.percentile_ms(50), watcher.percentile_ms(99)
    fresh = f", freshness p50 {p50:.0f} ms, p99 {p99:.0f} ms" if p50 and p99 else ""
    differences = counted(len(found.differences), "difference")
    console.print(f"\n{counted(watcher.changes, 'change')} applied{fresh}, {differences}")
    return not found.differences
