"""The demo: PostgreSQL under load → capture → change log → Spark → a count per status.

Every part is the real one, on this machine and for a few seconds; at the end the counts that came
through the pipe are compared with what `GROUP BY` says.
"""

from __future__ import annotations

import json
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psycopg
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from rich.console import Console

from penstock.capture.engine import Capture
from penstock.config import Config
from penstock.demo.load import create_table, insert, run_load
from penstock.errors import PenstockError
from penstock.interrupts import Interrupts
from penstock.lsn import Lsn
from penstock.ops.setup import setup
from penstock.postgres.embedded import EmbeddedPostgres
from penstock.spark.session import throwaway_session
from penstock.words import counted

_TABLE = "public.notifications"
# A row appears with an insert or as the new image of an update, and goes as the old one.
_SIGN = {"insert": 1, "update_postimage": 1, "update_preimage": -1, "delete": -1}
_CATCH_UP_S = 60.0
_LEGEND = """\
   A change is one insert, update or delete, counted since the start;
   beside it, how many rows there are now with each status."""


class Counts:
    """The live result: rows per status, and how many changes made it."""

    def __init__(self) -> None:
        self.per_status: Counter[str] = Counter()
        self.changes = 0

    def apply(self, batch: DataFrame, _batch_id: int) -> None:
        """Called by Spark for each micro-batch: group there, add up here."""
        grouped = batch.groupBy("notification_status", "_change_type").count()
        for status, kind, count in grouped.collect():
            self.per_status[status] += _SIGN[kind] * count
            self.changes += count if kind != "update_preimage" else 0

    def shown(self) -> dict[str, int]:
        return {status: n for status, n in sorted(self.per_status.items()) if n}


def run_demo(console: Console, *, seconds: float, rate: int) -> bool:
    """Run it all; true if the counts agree.

    An interrupt is raised only where it is heeded: what was started by then is known and ended.
    """
    with Interrupts() as interrupts, ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="penstock-demo-")))
        console.print("1. Starting PostgreSQL 18 with a table of notifications")
        server = EmbeddedPostgres(18)
        stack.callback(server.close)
        with interrupts.heeded():
            server.start()
        config = _configure(server, directory)
        connection = stack.enter_context(psycopg.connect(server.dsn(), autocommit=True))
        create_table(connection)
        console.print("2. Setting up replica identity, publication and slot")
        with interrupts.heeded():
            setup(config)
        insert(connection, 100)
        console.print("3. Capturing the write-ahead log into a change log")
        stack.enter_context(_capturing(config))
        console.print("4. Starting Spark (this takes about ten seconds)")
        spark = stack.enter_context(
            throwaway_session("penstock demo", directory / "spark", interrupts, small_batches=True)
        )
        counts = Counts()
        query = interrupts.aside(lambda: _count_live(spark, config.log.path, counts, directory))
        _wait_for(query, _flushed(connection), interrupts)
        console.print(f"5. Load: about {rate} changes a second for {seconds:g} s")
        console.print(_LEGEND)
        with _loading(server, rate):
            _watch(console, counts, query, seconds, interrupts)
        _wait_for(query, _flushed(connection), interrupts)
        return _compare(console, counts, connection)


def _configure(server: EmbeddedPostgres, directory: Path) -> Config:
    table = {"name": _TABLE, "replica_identity": "notifications_id_status"}
    return Config.model_validate(
        {"source": {"dsn": server.dsn(), "tables": [table]}, "log": {"path": directory / "log"}}
    )


@contextmanager
def _capturing(config: Config) -> Iterator[None]:
    capture = Capture(config)
    with _thread(capture.run, "capture"):
        try:
            yield
        finally:
            capture.stop()


@contextmanager
def _loading(server: EmbeddedPostgres, rate: int) -> Iterator[None]:
    stop = threading.Event()
    with _thread(lambda: run_load(server.dsn(), rate=rate, stop=stop), "load"):
        try:
            yield
        finally:
            stop.set()


@contextmanager
def _thread(target: Any, name: str) -> Iterator[None]:
    thread = threading.Thread(target=target, name=name)
    thread.start()
    try:
        yield
    finally:
        thread.join()


def _count_live(spark: SparkSession, log: Path, counts: Counts, directory: Path) -> StreamingQuery:
    changes = spark.readStream.format("penstock").option("path", str(log)).option("table", _TABLE)
    return (
        changes.load()
        .writeStream.foreachBatch(counts.apply)
        .option("checkpointLocation", str(directory / "checkpoint"))
        .start()
    )


def _watch(
    console: Console, counts: Counts, query: StreamingQuery, seconds: float, interrupts: Interrupts
) -> None:
    started = time.monotonic()
    while (elapsed := time.monotonic() - started) < seconds:
        _check(query)
        statuses = "  ".join(f"{status} {n:,}" for status, n in counts.shown().items())
        console.print(f"   {elapsed:4.0f} s  {counts.changes:>7,} changes   {statuses}")
        with interrupts.heeded():
            time.sleep(1)


def _wait_for(query: StreamingQuery, lsn: Lsn, interrupts: Interrupts) -> None:
    """Until Spark has applied everything up to `lsn`."""
    deadline = time.monotonic() + _CATCH_UP_S
    while _applied(query) < lsn:
        _check(query)
        if time.monotonic() > deadline:
            raise PenstockError(
                f"Spark did not reach {lsn} within {_CATCH_UP_S:g} s",
                remedy="Try a lower --rate; the machine may be too busy",
            )
        # Not while Spark is asked: py4j logs at length what interrupts it.
        with interrupts.heeded():
            time.sleep(0.1)


def _applied(query: StreamingQuery) -> int:
    progress = query.lastProgress
    if progress is None or progress["sources"][0]["endOffset"] is None:
        return 0
    offset = progress["sources"][0]["endOffset"]
    return int((json.loads(offset) if isinstance(offset, str) else offset)["lsn"])


def _check(query: StreamingQuery) -> None:
    if (error := query.exception()) is not None:
        raise error


def _flushed(connection: psycopg.Connection) -> Lsn:
    row = connection.execute("SELECT pg_current_wal_flush_lsn()::text").fetchone()
    return Lsn.parse(row[0]) if row else Lsn(0)


def _compare(console: Console, counts: Counts, connection: psycopg.Connection) -> bool:
    truth: dict[str, int] = dict(
        connection.execute(
            "SELECT notification_status, count(*) FROM notifications GROUP BY 1 ORDER BY 1"
        ).fetchall()
    )
    piped = counts.shown()
    console.print(f"6. Comparing with GROUP BY\n   {'status':<12}{'penstock':>10}{'GROUP BY':>10}")
    differences = 0
    for status in sorted(truth.keys() | piped.keys()):
        mine, theirs = piped.get(status, 0), truth.get(status, 0)
        differences += mine != theirs
        console.print(f"   {status:<12}{mine:>10,}{theirs:>10,}")
    changes, found = counted(counts.changes, "change"), counted(differences, "difference")
    console.print(f"\n{changes} through Spark, {found}")
    return differences == 0
