"""A log of very many small transactions beside one of the same changes in larger ones.

The changes come from a server, and the writer of `penstock capture` writes them. It flushes after
each commit, so that each transaction has a frame of its own, as on a quiet day. At such a pace this
would take an hour: it waits neither for the next commit nor for the disk.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from pyspark.sql import SparkSession

from penstock.bench.backlog import notifications_backlog
from penstock.bench.capture import UntilLog, pump_all
from penstock.bench.progress import Progress
from penstock.bench.report import Figure, Report
from penstock.bench.source import group_all
from penstock.changelog.checking import check_log
from penstock.changelog.reader import LogReader
from penstock.changelog.settings import LogSettings
from penstock.changelog.storage import Appender, LocalAppender, LocalStorage
from penstock.interrupts import Interrupts
from penstock.lsn import Lsn
from penstock.postgres.fragments import Commit
from penstock.spark.session import throwaway_session

CHANGES = 500_000
REPEATS = 5
_SMALL, _LARGE = 1, 100
_GOAL_RATIO = 2.0
_WARM_UP = 3


def bench_small(progress: Progress, *, changes: int = CHANGES, repeats: int = REPEATS) -> Report:
    with (
        tempfile.TemporaryDirectory(prefix="penstock-bench-") as directory,
        Interrupts() as interrupts,
    ):
        root = Path(directory)
        logs = {rows: root / str(rows) for rows in (_SMALL, _LARGE)}
        for rows, log in logs.items():
            version = _write_log(log, changes, rows, progress)
        progress("starting Spark")
        runs = []
        with throwaway_session(
            "penstock bench", root / "spark", interrupts, master="local[2]"
        ) as spark:
            for number in range(repeats + _WARM_UP):
                run = {}
                for rows, log in logs.items():
                    run[f"spark_{rows}_s"] = _spark_s(spark, log, changes)
                    run[f"check_{rows}_s"] = _check_s(log)
                progress(", ".join(f"{name} {seconds:.2f}" for name, seconds in run.items()))
                if number >= _WARM_UP:
                    runs.append(run)
        frames = {rows: _frames(log) for rows, log in logs.items()}
    return Report(
        "small",
        [
            *(
                Figure(
                    f"{what}, transactions of {_SMALL} to those of {_LARGE}",
                    round(_ratio(runs, name), 2),
                    "ratio",
                    _GOAL_RATIO,
                    at_least=False,
                )
                for what, name in (
                    ("read, decode, group by four", "spark"),
                    ("penstock log check", "check"),
                )
            ),
            *(
                Figure(f"{what}, transactions of {rows}", round(_median(runs, name), 2), "s")
                for rows in (_SMALL, _LARGE)
                for what, name in (
                    ("read, decode, group by four", f"spark_{rows}_s"),
                    ("penstock log check", f"check_{rows}_s"),
                )
            ),
            *(
                Figure(f"frames, transactions of {rows}", frames[rows], "frames")
                for rows in (_SMALL, _LARGE)
            ),
        ],
        runs,
        {"postgres": version},
    )


class _FlushedEachTime(UntilLog):
    """A log with a frame for each transaction."""

    def commit(self, xid: int, commit: Commit) -> None:
        super().commit(xid, commit)
        self.flush(Lsn(commit.lsn))


class _Unsynced(LocalAppender):
    def sync(self) -> None:
        """Leave it to the kernel: this log need not outlive a power failure."""


class _QuickStorage(LocalStorage):
    def append_to(self, name: str) -> Appender:
        self._make_folder((self.root / name).parent)
        return _Unsynced(self.root / name)


def _write_log(directory: Path, changes: int, rows_each: int, progress: Progress) -> str:
    """Write the log; returns the server's version."""
    with notifications_backlog(
        slots=1, inserts=changes, rows_each=rows_each, update=False, progress=progress
    ) as backlog:
        progress(f"writing it in transactions of {rows_each}, with a frame for each")
        compression = LogSettings().compression
        pump_all(backlog, backlog.slots[0], _QuickStorage(directory), compression, _FlushedEachTime)
        return backlog.server.full_version


def _spark_s(spark: SparkSession, log: Path, changes: int) -> float:
    started = time.perf_counter()
    group_all(spark, log, changes)
    return time.perf_counter() - started


def _check_s(log: Path) -> float:
    """Seconds that the command takes, with its start."""
    command = [sys.executable, "-m", "penstock", "log", "check", "--path", str(log), "--json"]
    started = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - started


def _frames(log: Path) -> int:
    return check_log(LogReader(log)).frames


def _ratio(runs: list[dict[str, float]], name: str) -> float:
    return statistics.median(run[f"{name}_{_SMALL}_s"] / run[f"{name}_{_LARGE}_s"] for run in runs)


def _median(runs: list[dict[str, float]], name: str) -> float:
    return statistics.median(run[name] for run in runs)
