"""How fast logged changes become typed columns, on one core, without Spark."""

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
from penstock.changelog.runs import Share, runs
from penstock.decode.changes import TableChanges
from penstock.names import TableName
from penstock.spark.options import SourceOptions
from penstock.spark.schema import wanted_of

INSERTS = 500_000
REPEATS = 5
TABLE = TableName("public", "notifications")
# What the first dashboard groups by.
DIMENSIONS = ("service_id", "template_id", "notification_type", "notification_status")
_GOAL_ALL, _GOAL_FOUR = 0.7, 1.2


def bench_decode(progress: Progress, *, inserts: int = INSERTS, repeats: int = REPEATS) -> Report:
    with (
        notifications_backlog(slots=1, inserts=inserts, progress=progress) as backlog,
        tempfile.TemporaryDirectory(prefix="penstock-bench-") as directory,
    ):
        progress("capturing it into a log")
        pump_all(backlog, backlog.slots[0], Path(directory), Compression.NONE)
        measured: dict[str, list[float]] = {"all nine columns": [], "four columns": []}
        choices: Mapping[str, Mapping[str, str]] = {
            "all nine columns": {},
            "four columns": {"columns": ",".join(DIMENSIONS)},
        }
        for repeat in range(repeats + 1):
            for name, options in choices.items():
                seconds = _decode_all(Path(directory), options)
                note = f"{repeat} of {repeats}" if repeat else "to warm up"
                progress(f"{name}, {note}: {backlog.changes / seconds / 1e6:.2f} M changes/s")
                if repeat:
                    measured[name].append(seconds)
        rates = {
            name: round(backlog.changes / statistics.median(times) / 1e6, 3)
            for name, times in measured.items()
        }
        figures = [
            Figure("all nine columns", rates["all nine columns"], "M changes/s", _GOAL_ALL),
            Figure("four columns", rates["four columns"], "M changes/s", _GOAL_FOUR),
        ]
        runs_measured = [
            {"columns": name, "seconds": seconds}
            for name, times in measured.items()
            for seconds in times
        ]
        versions = {"postgres": backlog.server.full_version}
    return Report("decode", figures, runs_measured, versions)


def _decode_all(log: Path, options: Mapping[str, str]) -> float:
    """Seconds of one core for reading and decoding all of it."""
    started = time.process_time()
    reader = LogReader(log)
    parsed = SourceOptions.parse({"path": str(log), "table": str(TABLE), **options})
    decoder = TableChanges(wanted_of(reader, parsed, TABLE))
    for run in runs(reader, Share(reader.start(), reader.end())):
        decoder.batch(run)
    return time.process_time() - started
