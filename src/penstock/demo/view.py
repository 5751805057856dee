"""What the demo shows while the load runs: a live table in a terminal, else a line each second."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from penstock.demo.watching import Seen


class View(Protocol):
    def show(self, seen: Seen) -> None: ...


@contextmanager
def view(console: Console) -> Iterator[View]:
    if not console.is_terminal:
        yield _Lines(console)
        return
    with Live(console=console, auto_refresh=False) as live:
        yield _Page(live)


class _Lines:
    def __init__(self, console: Console) -> None:
        self._console = console

    def show(self, seen: Seen) -> None:
        statuses = "  ".join(f"{status} {count:,}" for status, count in seen.statuses[:4])
        self._console.print(
            f"   {seen.elapsed_s:4.0f} s  {seen.changes:>8,} changes  {_facts(seen)}   {statuses}",
            markup=False,
        )


class _Page:
    def __init__(self, live: Live) -> None:
        self._live = live

    def show(self, seen: Seen) -> None:
        head = Text(f"   {seen.elapsed_s:4.0f} s  {seen.changes:,} changes  {_facts(seen)}", "bold")
        self._live.update(Group(head, _top(seen)), refresh=True)


def _facts(seen: Seen) -> str:
    return (
        f"{seen.changes_s:,.0f}/s  fresh p50 {_ms(seen.fresh_p50_ms)} p99 "
        f"{_ms(seen.fresh_p99_ms)}  slot {seen.slot_lag_bytes / 2**20:.1f} MiB behind"
    )


def _top(seen: Seen) -> Table:
    table = Table("service", "template", "type", "status", title="The largest counts", box=None)
    table.add_column("count", justify="right")
    for *names, count in seen.top:
        table.add_row(*names, f"{count:,}")
    return table


def _ms(value: float | None) -> str:
    return "–" if value is None else f"{value:.0f} ms"
