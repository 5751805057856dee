"""The Spark source: a backlog beside `pg_recvlogical`, planning a batch, and doing nothing."""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from pathlib import Path

import pyarrow.compute as pc
from pyspark.sql import SparkSession

from penstock.bench.backlog import Backlog, notifications_backlog
from penstock.bench.capture import pump_all
from penstock.bench.decode import DIMENSIONS, INSERTS, TABLE
from penstock.bench.longlog import write_long_log
from penstock.bench.progress import Progress
from penstock.bench.recvlogical import pg_recvlogical
from penstock.bench.report import Figure, Report
from penstock.changelog.format import Compression
from penstock.changelog.planning import Limit, limited, shares
from penstock.changelog.reader import LogReader
from penstock.errors import PenstockError
from penstock.interrupts import Interrupts
from penstock.spark.session import session_members, throwaway_session

REPEATS = 5
_WARM_UP = 3
_GOAL_RATIO = 4.0
# The same, within what a clock tells of something that takes a millisecond.
_GOAL_PLANNING = 1.5
_GOAL_IDLE_PERCENT = 5.0
_SEGMENTS = (10, 10_000)
_PLANS = 200
# What is planned: the newest of them.
_PLANNED_SEGMENTS = 5


def bench_source(
    progress: Progress,
    *,
    inserts: int = INSERTS,
    repeats: int = REPEATS,
    segments: tuple[int, int] = _SEGMENTS,
    idle_s: float = 20.0,
) -> Report:
    with (
        tempfile.TemporaryDirectory(prefix="penstock-bench-") as directory,
        Interrupts() as interrupts,
        notifications_backlog(slots=repeats + 2, inserts=inserts, progress=progress) as backlog,
    ):
        root = Path(directory)
        progress("capturing it into a log")
        pump_all(backlog, backlog.slots[0], root / "log", Compression.NONE)
        planning = _planning(root, segments, progress)
        progress("starting Spark")
        with throwaway_session(
            "penstock bench", root / "spark", interrupts, master="local[2]"
        ) as spark:
            runs = [_pair(spark, root / "log", backlog, n, progress) for n in range(repeats + 1)]
            progress(f"a stream with nothing to do, for {idle_s:g} s")
            idle = _idle_percent(spark, root / "log", root / "checkpoint", idle_s)
        versions = {"postgres": backlog.server.full_version}
    measured = runs[1:]
    ratio = statistics.median(run["pg_recvlogical_s"] / run["spark_s"] for run in measured)
    rate = statistics.median(backlog.changes / run["spark_s"] for run in measured)
    return Report(
        "source",
        [
            Figure("rate ratio to pg_recvlogical", round(ratio, 2), "ratio", _GOAL_RATIO),
            Figure("read, decode, group by four", round(rate), "changes/s"),
            Figure(
                f"planning, {segments[1]:,} segments to {segments[0]}",
                round(planning[segments[1]] / planning[segments[0]], 2),
                "ratio",
                _GOAL_PLANNING,
                at_least=False,
            ),
            Figure("planning a batch", round(planning[segments[1]] * 1000, 2), "ms"),
            Figure("idle stream", round(idle, 2), "% of a core", _GOAL_IDLE_PERCENT, False),
        ],
        measured,
        versions,
    )


def _pair(
    spark: SparkSession, log: Path, backlog: Backlog, number: int, progress: Progress
) -> dict[str, float]:
    """The same backlog by both, one after the other; the first pair warms up."""
    for _ in range(_WARM_UP if number == 0 else 1):
        started = time.perf_counter()
        group_all(spark, log, backlog.changes)
        seconds = time.perf_counter() - started
    peer = pg_recvlogical(backlog, backlog.slots[number + 1]).seconds
    note = f"pair {number}" if number else "to warm up"
    progress(f"{note}: pg_recvlogical {peer:.2f} s, Spark {seconds:.2f} s")
    return {"pg_recvlogical_s": peer, "spark_s": seconds}


def group_all(spark: SparkSession, log: Path, expected: int) -> None:
    """Read all of a log and count its changes by four columns."""
    changes = (
        spark.read.format("penstock")
        .options(path=str(log), table=str(TABLE), columns=",".join(DIMENSIONS))
        .load()
    )
    counted = changes.groupBy(*DIMENSIONS, "_change_type").count().toArrow()
    is_new = pc.not_equal(counted["_change_type"], "update_preimage")
    new = pc.sum(counted["count"].filter(is_new)).as_py()
    if new != expected:
        raise PenstockError(
            f"Spark counted {new} of {expected} changes", remedy="Report this as a bug"
        )


def _planning(root: Path, segments: tuple[int, int], progress: Progress) -> dict[int, float]:
    """Seconds for planning the newest batch, by the length of the log."""
    found = {}
    for count in segments:
        progress(f"a log of {count:,} segments")
        directory = root / f"{count} segments"
        write_long_log(directory, count)
        reader = LogReader(directory)
        newest = reader.segment(reader.end().segment - _PLANNED_SEGMENTS).header()
        after = reader.locate(newest.base_lsn)
        times = []
        for _ in range(_PLANS):
            started = time.perf_counter()
            fresh = LogReader(directory)
            end = limited(fresh, after, fresh.end(), Limit(max_rows=1_000_000))
            shares(fresh, after, end)
            times.append(time.perf_counter() - started)
        found[count] = statistics.median(times)
    return found


def _idle_percent(spark: SparkSession, log: Path, checkpoint: Path, seconds: float) -> float:
    """Of one core: the JVM, its Python workers, and ourselves."""
    query = (
        spark.readStream.format("penstock")
        .options(path=str(log), table=str(TABLE), startingPosition="latest")
        .load()
        .writeStream.foreachBatch(lambda _frame, _id: None)
        .option("checkpointLocation", str(checkpoint))
        .start()
    )
    try:
        time.sleep(min(10.0, seconds))  # until all has settled
        before, started = _cpu_seconds(spark), time.monotonic()
        time.sleep(seconds)
        return 100 * (_cpu_seconds(spark) - before) / (time.monotonic() - started)
    finally:
        query.stop()


def _cpu_seconds(spark: SparkSession) -> float:
    jvm = spark._jvm  # noqa: SLF001 - no public way to ask for the JVM's process
    assert jvm is not None  # noqa: S101 - it runs
    pid = jvm.java.lang.ProcessHandle.current().pid()
    ticks = sum(_ticks(member) for member in session_members(os.getsid(pid)))
    return ticks / os.sysconf("SC_CLK_TCK") + time.process_time()


def _ticks(pid: int) -> int:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return int(fields[11]) + int(fields[12])
