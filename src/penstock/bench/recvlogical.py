"""A client of ours beside `pg_recvlogical -f /dev/null` on the same backlog.

Both read the same changes with the same plugin options, each run from a slot of its own. Pairs
alternate who goes first, and only ratios within a pair count, so that what else the machine does
weighs on both. The clock of `pg_recvlogical` runs from its start to its end; ours from before the
connection to the last message. Python's own start, a third of a second, is left out: capture is a
service.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TypeAlias

from penstock.bench.backlog import PUBLICATION, Backlog
from penstock.bench.progress import Progress
from penstock.bench.report import Figure
from penstock.errors import PenstockError

GOAL_RATIO = 0.95


@dataclass(frozen=True, slots=True)
class Run:
    """One client's reading of the whole backlog."""

    client: str
    seconds: float
    cpu_seconds: float
    # What it handled, in the unit of the comparison; the peer does not count.
    handled: int = 0


# Reads the backlog from a slot.
Client: TypeAlias = Callable[[Backlog, str], Run]


def slots_needed(pairs: int) -> int:
    """One pair more, to warm up: caches, and the server's first decoding of the catalog."""
    return 2 * (pairs + 1)


def compare(
    backlog: Backlog, ours: Client, pairs: int, progress: Progress, *, unit: str
) -> tuple[list[Figure], list[dict[str, object]]]:
    """The figures that every such comparison has, and the single runs; CPU is per `unit`."""
    runs: list[tuple[Run, Run]] = []
    for pair in range(pairs + 1):
        peer, mine = _pair(backlog, ours, pair)
        note = " (warm-up)" if pair == 0 else ""
        progress(
            f"pair {pair} of {pairs}: pg_recvlogical {peer.seconds:.2f} s, "
            f"penstock {mine.seconds:.2f} s{note}"
        )
        if pair:
            runs.append((peer, mine))
    middle, changes = statistics.median, backlog.changes
    ratio = middle(peer.seconds / mine.seconds for peer, mine in runs)
    per_million = 1e6 / runs[0][1].handled
    figures = [
        Figure("rate ratio to pg_recvlogical", round(ratio, 3), "ratio", GOAL_RATIO),
        Figure("penstock", round(middle(changes / mine.seconds for _, mine in runs)), "changes/s"),
        Figure(
            "pg_recvlogical", round(middle(changes / peer.seconds for peer, _ in runs)), "changes/s"
        ),
        Figure(
            "penstock CPU",
            round(middle(mine.cpu_seconds for _, mine in runs) * per_million, 2),
            f"s per million {unit}",
        ),
        Figure(
            "pg_recvlogical CPU",
            round(middle(peer.cpu_seconds for peer, _ in runs) * per_million, 2),
            f"s per million {unit}",
        ),
    ]
    details: list[dict[str, object]] = [
        {"pair": pair, "peer": asdict(peer), "ours": asdict(mine)}
        for pair, (peer, mine) in enumerate(runs, start=1)
    ]
    return figures, details


def _pair(backlog: Backlog, ours: Client, pair: int) -> tuple[Run, Run]:
    first, second = backlog.slots[2 * pair : 2 * pair + 2]
    if pair % 2:
        mine = ours(backlog, first)
        return pg_recvlogical(backlog, second), mine
    peer = pg_recvlogical(backlog, first)
    return peer, ours(backlog, second)


def pg_recvlogical(backlog: Backlog, slot: str) -> Run:
    options = {
        "proto_version": "4" if backlog.server.version >= 16 else "3",
        "publication_names": PUBLICATION,
        "streaming": "on",
        "messages": "true",
    }
    command = [
        *backlog.server.program("pg_recvlogical"),
        *("--dbname", backlog.server.dsn(), "--slot", slot, "--start", "--no-loop"),
        *("--file", "/dev/null", "--endpos", str(backlog.end_lsn)),
        *(word for name, value in options.items() for word in ("--option", f"{name}={value}")),
    ]
    started = time.perf_counter()
    process = subprocess.Popen(command)
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - started
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise PenstockError(
            f"pg_recvlogical ended with exit code {process.returncode}",
            remedy="Its own message is above",
        )
    return Run("pg_recvlogical", seconds, usage.ru_utime + usage.ru_stime)
