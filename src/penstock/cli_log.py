"""`penstock log`: look at a change log, check it, keep it small."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from penstock import config as configuration
from penstock.changelog.checking import check_log
from penstock.changelog.consumers import consumers, forget
from penstock.changelog.maintenance import prune as prune_log
from penstock.changelog.reader import LogReader, Position
from penstock.changelog.settings import log_settings, retention_settings
from penstock.changelog.storage import LocalStorage
from penstock.changelog.writer import LogWriter
from penstock.errors import (
    ConfigInvalidValue,
    ConsumerUnknown,
    LogForeignPosition,
    LogRetired,
)
from penstock.lsn import Lsn
from penstock.ops import dump as dumping
from penstock.ops import log_view
from penstock.terminal import (
    AsJson,
    ConfigPath,
    errors_as_json,
    json_text,
    print_json,
    print_pieces,
    stderr,
    stdout,
)
from penstock.words import counted

log = typer.Typer(
    name="log",
    help="Look at a change log, check it, keep it small.",
    no_args_is_help=True,
    add_completion=False,
)

LogPath = Annotated[
    Path | None,
    typer.Option("--path", help="The log's folder, instead of the configured one."),
]

# How long a follower waits before it looks whether it was interrupted.
_FOLLOW_S = 1.0


@log.command()
def info(config: ConfigPath = None, path: LogPath = None, as_json: AsJson = False) -> None:
    """Which source it comes from, how far it goes, how large it is, who reads it."""
    with errors_as_json(as_json):
        facts = log_view.describe(LogReader(_folder(config, path)))
    if as_json:
        print_json(facts)
    else:
        for line in log_view.in_words(facts):
            stdout.print(line, markup=False)


@log.command()
def dump(
    config: ConfigPath = None,
    path: LogPath = None,
    first: Annotated[
        str | None, typer.Option("--from", help="Only what commits after this LSN.")
    ] = None,
    last: Annotated[
        str | None, typer.Option("--to", help="Only what commits up to this LSN.")
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as it grows.")] = False,
    as_json: AsJson = False,
) -> None:
    """Print transactions, their fragments and changes; with --json one object a line."""
    with errors_as_json(as_json, indent=None):
        reader = LogReader(_folder(config, path))
        after = _begin(reader, first)
        if last is not None and _lsn(last, "--to") < after.lsn:
            raise ConfigInvalidValue(
                f"--to {last} is before {after.lsn}, where the dump would begin",
                remedy=_extent(reader),
            )
        while True:
            up_to = _end(reader, last)
            for transaction, changes in dumping.transactions(reader, after, up_to):
                _print_transaction(transaction, changes, as_json)
            after = up_to
            if not follow or (last is not None and up_to.lsn >= _lsn(last, "--to")):
                return
            while not reader.wait(after.lsn, _FOLLOW_S):
                pass


@log.command()
def check(config: ConfigPath = None, path: LogPath = None, as_json: AsJson = False) -> None:
    """Read all of it: checksums, order, references. Damage is an error with its position."""
    with errors_as_json(as_json):
        reader = LogReader(_folder(config, path))
        checked = check_log(reader, lambda number: stderr.print(f"  segment {number}", style="dim"))
    if as_json:
        print_json(log_view.checked_as_json(checked))
    else:
        stdout.print(
            f"{counted(checked.segments, 'segment')}, {counted(checked.frames, 'frame')}, "
            f"{counted(checked.transactions, 'transaction')}, "
            f"{counted(checked.changes, 'change')}: no damage"
        )


@log.command()
def prune(config: ConfigPath = None, as_json: AsJson = False) -> None:
    """Remove what retention allows. A running capture does this by itself."""
    with errors_as_json(as_json):
        loaded = configuration.load(config)
        LogReader(loaded.log.path)  # names what is wrong before anything is locked
        with LogWriter(loaded.log.path, settings=log_settings(loaded.log)) as writer:
            pruned = prune_log(writer, retention_settings(loaded.log))
    if as_json:
        print_json(log_view.pruned_as_json(pruned))
    else:
        removed = counted(len(pruned.segments), "segment")
        stdout.print(f"{removed} removed, {counted(pruned.freed_bytes, 'byte')} freed")


@log.command("consumers")
def list_consumers(
    config: ConfigPath = None,
    path: LogPath = None,
    gone: Annotated[
        str | None, typer.Option("--forget", help="This one will not come back.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Who reads the log, and how far each has come; forget one that will not come back."""
    with errors_as_json(as_json):
        folder = _folder(config, path)
        reader = LogReader(folder)
        storage = LocalStorage(folder)
        if gone is not None and not forget(storage, gone):
            raise ConsumerUnknown(gone, [consumer.name for consumer in consumers(storage)])
        rows = log_view.consumer_rows(consumers(storage), reader.end().lsn)
    if as_json:
        print_json({"consumers": rows})
    elif not rows:
        stdout.print("No consumer is registered: age alone decides what is kept.")
    for row in () if as_json else rows:
        state = "released, must seed again" if row["invalidated"] else f"{row['behind_bytes']:,}"
        stdout.print(f"{row['name']:<30} applied {row['applied_lsn']:<18} bytes behind: {state}")


def _folder(config: Path | None, path: Path | None) -> Path:
    return path if path is not None else configuration.load(config).log.path


def _lsn(text: str, option: str) -> Lsn:
    try:
        return Lsn.parse(text)
    except ValueError as error:
        raise ConfigInvalidValue(
            f"{option}: {error}", remedy="Write it as Postgres does, such as 16/B374D848"
        ) from None


def _extent(reader: LogReader) -> str:
    return f"The log goes from {reader.start().lsn} to {reader.end().lsn}"


def _begin(reader: LogReader, first: str | None) -> Position:
    if first is None:
        return reader.start()
    try:
        return reader.locate(_lsn(first, "--from"))
    except (LogRetired, LogForeignPosition):
        raise ConfigInvalidValue(
            f"--from {first} is not in the log", remedy=_extent(reader)
        ) from None


def _end(reader: LogReader, last: str | None) -> Position:
    end = reader.end()
    if last is None or (wanted := _lsn(last, "--to")) >= end.lsn:
        return end
    return reader.locate(wanted)


def _print_transaction(
    transaction: dict[str, Any], changes: Iterable[dict[str, Any]], as_json: bool
) -> None:
    if as_json:
        print_pieces(log_view.transaction_json(transaction, changes, json_text))
    else:
        for line in log_view.transaction_lines(transaction, changes):
            stdout.print(line, markup=False)
