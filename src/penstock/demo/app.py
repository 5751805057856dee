"""The demo: a notification service under load, and its counts kept live by `penstock run`.

Every part is the real one, on this machine and for half a minute: PostgreSQL, the example of
`notify/`, capture and Spark in processes of their own. At the end `verify` compares the counts with
the tables.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psycopg
from rich.console import Console

from penstock import config as configuration
from penstock.config import Config
from penstock.demo.view import view
from penstock.demo.watching import Watcher
from penstock.errors import PenstockError
from penstock.interrupts import Interrupts
from penstock.notify.load import bulk, create, steady
from penstock.notify.writing import write_example
from penstock.ops.setup import setup
from penstock.pipelines.running import spark_when_needed
from penstock.pipelines.verifying import Verified, verify
from penstock.postgres.embedded import EmbeddedPostgres
from penstock.run.supervisor import Supervisor
from penstock.words import counted

# Rows that are there before Penstock comes.
_ROWS = 50_000
_START_S = 180.0
_CATCH_UP_S = 60.0
# What of the parts' logs a newcomer wants to know.
_NEWS = {
    "new_log": "capture follows the write-ahead log",
    "spark started": "Spark has started",
    "seeded": "the rows that were there are counted",
}


def run_demo(console: Console, *, seconds: float, rate: int) -> bool:
    """Run it all; true if there are no differences.

    An interrupt is raised only where it is heeded: what was started by then is known and ended.
    """
    with Interrupts() as interrupts, ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="penstock-demo-")))
        console.print(f"1. Starting PostgreSQL 18, and {_ROWS:,} notifications in it")
        server = EmbeddedPostgres(18)
        stack.callback(server.close)
        with interrupts.heeded():
            server.start()
        connection = stack.enter_context(psycopg.connect(server.dsn(), autocommit=True))
        with interrupts.heeded():
            create(connection)
            bulk(connection, _ROWS)
        console.print("2. penstock setup: replica identities, publication, targets, slot")
        config_file = _config_file(directory / "notify", server.dsn())
        config = configuration.load(config_file)
        with interrupts.heeded():
            setup(config)
        console.print("3. penstock run: capture, and Spark to count (some fifteen seconds)")
        check = stack.enter_context(_running(config, config_file, console))
        _wait(lambda: _is_live(connection), check, interrupts, _START_S)
        console.print(f"4. Load: about {rate} changes a second for {seconds:g} s")
        watcher = Watcher(server.dsn(), config.source.slot)
        with watcher.watching():
            with _loading(server, rate, watcher) as committed:
                _show(console, watcher, connection, seconds, check, interrupts)
            _wait(lambda: watcher.changes >= committed(), check, interrupts, _CATCH_UP_S)
            watcher.look(connection)
        console.print("5. penstock verify: every count against the tables themselves")
        (aggregate,) = config.aggregate
        with spark_when_needed("penstock demo") as spark:
            found = interrupts.aside(lambda: verify(config, aggregate, spark))
        return _tell(console, watcher, found)


def _config_file(directory: Path, dsn: str) -> Path:
    written = {path.name: path for path in write_example(directory, dsn)}
    return written["penstock.toml"]


@contextmanager
def _running(config: Config, config_file: Path, console: Console) -> Iterator[Callable[[], None]]:
    """`penstock run`; yields what raises its error, if it has ended with one."""

    def tell(_part: str, event: Any) -> None:
        if (news := _NEWS.get(event["event"])) is not None:
            console.print(f"   {news}")

    failed: list[BaseException] = []
    supervisor = Supervisor(config_file, config.log.path, aggregates=True, watch=tell)

    def run() -> None:
        try:
            supervisor.run(Interrupts())
        except BaseException as error:  # noqa: BLE001 - raised by `check`
            failed.append(error)

    def check() -> None:
        if failed:
            raise failed[0]

    thread = threading.Thread(target=run, name="run")
    thread.start()
    try:
        yield check
    finally:
        supervisor.stop()
        thread.join()


@contextmanager
def _loading(server: EmbeddedPostgres, rate: int, watcher: Watcher) -> Iterator[Callable[[], int]]:
    """Yields how many changes have committed."""
    stop = threading.Event()
    done = 0

    def count(changes: int) -> None:
        nonlocal done
        done = changes
        watcher.committed(changes)

    thread = threading.Thread(
        target=steady,
        args=(server.dsn(),),
        kwargs={"rate": rate, "stop": stop, "on_changes": count},
        name="load",
    )
    thread.start()
    try:
        yield lambda: done
    finally:
        stop.set()
        thread.join()


def _show(
    console: Console,
    watcher: Watcher,
    connection: psycopg.Connection[Any],
    seconds: float,
    check: Callable[[], None],
    interrupts: Interrupts,
) -> None:
    until = time.monotonic() + seconds
    with view(console) as shown:
        while time.monotonic() < until:
            with interrupts.heeded():
                time.sleep(1)
            check()
            shown.show(watcher.look(connection))


def _wait(
    done: Callable[[], bool], check: Callable[[], None], interrupts: Interrupts, within_s: float
) -> None:
    deadline = time.monotonic() + within_s
    while not done():
        check()
        if time.monotonic() > deadline:
            raise PenstockError(
                f"the counts did not get there within {within_s:g} s",
                remedy="Try a lower --rate; the machine may be too busy",
            )
        with interrupts.heeded():
            time.sleep(0.1)


def _is_live(connection: psycopg.Connection[Any]) -> bool:
    rows = connection.execute("SELECT state FROM penstock.progress").fetchall()
    return bool(rows) and all(state == "live" for (state,) in rows)


def _tell(console: Console, watcher: Watcher, found: Verified) -> bool:
    for each in found.differences:
        key = ", ".join(f"{name} {value}" for name, value in each.key.items())
        console.print(f"   {each.target} {key}: {each.found}, should be {each.expected}")
    console.print(f"   {found.keys:,} counts compared at {found.lsn}")
    p50, p99 = watcher.percentile_ms(50), watcher.percentile_ms(99)
    fresh = f", freshness p50 {p50:.0f} ms, p99 {p99:.0f} ms" if p50 and p99 else ""
    differences = counted(len(found.differences), "difference")
    console.print(f"\n{counted(watcher.changes, 'change')} applied{fresh}, {differences}")
    return not found.differences
