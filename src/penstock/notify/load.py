"""Load for the example: a notification service at work, in bulk or steadily.

    python load.py --dsn postgresql://localhost/notify create
    python load.py --dsn postgresql://localhost/notify bulk --rows 1000000
    python load.py --dsn postgresql://localhost/notify steady --rate 500 --seconds 30

`create` makes the tables of schema.sql and targets.sql, which lie beside this file; `bulk` adds
many rows of the last seven days; `steady` is daily life. How, is in `penstock.notify.service`.
Several may run at once.

Exit codes: 0 done (`steady` also when it is interrupted), 2 cannot run, 130 interrupted.
"""

from __future__ import annotations

import argparse
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psycopg
from psycopg import errors as pg

from penstock.errors import PenstockError, SourceError, TableMissing
from penstock.notify.service import bulk, create, steady
from penstock.postgres.connect import connect
from penstock.postgres.failures import translate
from penstock.sections import Dsn
from penstock.terminal import report, stdout


def main(words: Sequence[str] | None = None) -> int:
    given = _arguments(words)
    try:
        with _explained(given.command):
            given.run(Dsn(given.dsn, "--dsn"), given)
    except PenstockError as error:
        report(error)
        return 2
    except KeyboardInterrupt:
        stdout.print("interrupted: what is told above is in")
        return 130
    return 0


def _create(dsn: Dsn, _: argparse.Namespace) -> None:
    with connect(dsn) as connection:
        create(connection, Path(__file__).parent)
    stdout.print("The tables of schema.sql and targets.sql are there")


def _bulk(dsn: Dsn, given: argparse.Namespace) -> None:
    started = time.monotonic()

    def progress(rows: int) -> None:
        stdout.print(f"{time.monotonic() - started:6.1f} s  {rows:>12,} of {given.rows:,} rows")

    with connect(dsn) as connection:
        bulk(connection, given.rows, seed=given.seed, on_rows=progress)


def _steady(dsn: Dsn, given: argparse.Namespace) -> None:
    """Until the time is over or somebody stops it; the transaction under way is finished."""
    stop = threading.Event()
    started = time.monotonic()
    shown_s, done = 0.0, 0

    def show() -> None:
        stdout.print(f"{time.monotonic() - started:6.1f} s  {done:>12,} changes")

    def progress(changes: int) -> None:
        nonlocal shown_s, done
        elapsed_s, done = time.monotonic() - started, changes
        if given.seconds is not None and elapsed_s >= given.seconds:
            stop.set()
        elif elapsed_s >= shown_s + 1:
            shown_s = elapsed_s
            show()

    def end(*_: object) -> None:
        stop.set()
        # Whoever asks twice does not want to wait.
        signal.signal(signal.SIGINT, signal.default_int_handler)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, end)
    steady(dsn, rate=given.rate, stop=stop, seed=given.seed, on_changes=progress)
    show()


def _arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Load for the notify example.")
    parser.add_argument("--dsn", required=True, help="the database: a URI or key=value pairs")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    tables = commands.add_parser("create", help="make the tables of schema.sql and targets.sql")
    tables.set_defaults(run=_create)
    many = commands.add_parser("bulk", help="add many rows at once")
    many.add_argument("--rows", type=_within(1, 1e10, int), default=1_000_000)
    many.set_defaults(run=_bulk)
    daily = commands.add_parser("steady", help="create, send, deliver, archive and purge")
    daily.add_argument(
        "--rate", type=_within(1, 1e6), default=500.0, help="changes a second, about"
    )
    daily.add_argument(
        "--seconds", type=_within(0.1, 1e7), help="how long; without it, until Ctrl-C"
    )
    daily.set_defaults(run=_steady)
    for command in (many, daily):
        command.add_argument(
            "--seed", type=_within(-1, 1), help="-1 to 1, for the same draws each time"
        )
    return parser.parse_args(words)


def _within(
    least: float, most: float, kind: Callable[[str], float] = float
) -> Callable[[str], float]:
    def number(text: str) -> float:
        try:
            value = kind(text)
        except ValueError:
            value = float("nan")
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"should be a number from {least:g} to {most:g}")
        return value

    return number


@contextmanager
def _explained(command: str) -> Iterator[None]:
    """What the server refuses, in words."""
    try:
        yield
    except pg.UndefinedTable as error:
        raise TableMissing(
            f"this database has not the tables of the example: {error.diag.message_primary}",
            remedy="Run `load.py --dsn … create`, or psql with schema.sql and targets.sql",
        ) from error
    except (pg.DuplicateTable, pg.DuplicateFunction) as error:
        raise SourceError(
            f"nothing was made: {error.diag.message_primary}",
            remedy="If it is the example's, all is well; else use another database",
        ) from error
    except (psycopg.OperationalError, pg.InsufficientPrivilege) as error:
        raise translate(error, f"do {command}") from error
    except psycopg.Error as error:
        raise SourceError(
            f"the server refused {command}: {error.diag.message_primary or error}",
            remedy="Compare the tables with schema.sql",
        ) from error


if __name__ == "__main__":
    sys.exit(main())
