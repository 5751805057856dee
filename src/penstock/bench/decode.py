"""How fast logged changes become typed columns, on one core, without Spark.

Reading them from the log, with its checksums, is measured apart.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from penstock.bench.backlog import notifications_backlog
from penstock.bench.capture import pump_all
from penstock.bench.progress import Progress
from penstock.bench.report import Figure, Report
from penstock.changelog.format import Compression
from penstock.changelog.reader import LogReader
from penstock.changelog.runs import Run, Share, runs
from penstock.decode.changes import TableChanges
from penstock.decode.memory import keep_freed_memory
from penstock.names import TableName
from penstock.spark.options import SourceOptions
from penstock.spark.schema import wanted_of

INSERTS = 500_000
REPEATS = 5
TABLE = TableName("public", "notifications")
# What the first dashboard groups by.
DIMENSIONS = ("service_id", "template_id", "notification_type", "notification_status")
_CHOICES: dict[str, Mapping[str, str]] = {
    "all nine columns": {},
    "four columns": {"columns": ",".join(DIMENSIONS)},
}
_GOALS = {"all nine columns": 0.7, "four columns": 1.2}
_UNIT = "M changes/s"


def bench_decode(progress: Progress, *, inserts: int = INSERTS, repeats: int = REPEATS) -> Report:
    keep_freed_memory()  # as Spark's workers do
    with (
        notifications_backlog(slots=1, inserts=inserts, progress=progress) as backlog,
        tempfile.TemporaryDirectory(prefix="penstock-bench-") as directory,
    ):
        progress("capturing it into a log")
        pump_all(backlog, backlog.slots[0], Path(directory), Compression.NONE)
        log = LogReader(Path(directory))
        started = time.process_time()
        everything = list(runs(log, Share(log.start(), log.end())))
        reading_s = time.process_time() - started
        measured: dict[str, list[float]] = {name: [] for name in _CHOICES}
        for repeat in range(repeats + 1):
            for name, options in _CHOICES.items():
                seconds = _decode_all(log, everything, options)
                note = f"{repeat} of {repeats}" if repeat else "to warm up"
                progress(f"{name}, {note}: {backlog.changes / seconds / 1e6:.2f} M changes/s")
                if repeat:
                    measured[name].append(seconds)
        figures = [
            Figure(name, _rate(backlog.changes, statistics.median(times)), _UNIT, _GOALS[name])
            for name, times in measured.items()
        ]
        figures.append(Figure("reading the log", _rate(backlog.changes, reading_s), _UNIT))
        single = [
            {"columns": name, "seconds": seconds}
            for name, times in measured.items()
            for seconds in times
        ]
        return Report("decode", figures, single, {"postgres": backlog.server.full_version})


def _rate(changes: int, seconds: float) -> float:
    return round(changes / seconds / 1e6, 3)


def _decode_all(log: LogReader, everything: list[Run], options: Mapping[str, str]) -> float:
    """Seconds of one core for all of it, from messages in memory to typed columns."""
    parsed = SourceOptions.parse({"path": log.where, "table": str(TABLE), **options})
    decoder = TableChanges(wanted_of(log, parsed, TABLE))
    started = time.process_time()
    for run in everything:
        decoder.batch(run)
    return time.process_time() - started
