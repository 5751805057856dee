"""How fast changes get into the durable log, and what they cost there."""

from __future__ import annotations

import tempfile
import threading
import time
from pathlib import Path

from penstock.bench.backlog import PUBLICATION, Backlog, notifications_backlog
from penstock.bench.progress import Progress
from penstock.bench.recvlogical import Run, compare, slots_needed
from penstock.bench.report import Figure, Report
from penstock.capture.heartbeat import HeartbeatMeter
from penstock.capture.pump import Pump
from penstock.changelog.format import Compression
from penstock.changelog.identity import LogIdentity
from penstock.changelog.reader import LogReader
from penstock.changelog.settings import LogSettings, RetentionSettings
from penstock.changelog.storage import Storage
from penstock.changelog.writer import LogWriter
from penstock.errors import PenstockError
from penstock.lsn import ZERO, Lsn
from penstock.postgres.connection import ReplicationConnection
from penstock.postgres.session import ReplicationSession, SessionSettings

INSERTS = 500_000
PAIRS = 7


def bench_capture(progress: Progress, *, inserts: int = INSERTS, pairs: int = PAIRS) -> Report:
    slots = slots_needed(pairs) + len(Compression)
    with notifications_backlog(slots=slots, inserts=inserts, progress=progress) as backlog:
        figures, runs = compare(backlog, _capture, pairs, progress, unit="changes")
        for compression, slot in zip(Compression, reversed(backlog.slots), strict=False):
            run, size = _capture_into_log(backlog, slot, compression)
            progress(f"compression {compression.name.lower()}: {size / 1e6:,.0f} MB")
            name = compression.name.lower()
            figures += [
                Figure(f"log, {name}", round(size / backlog.changes, 1), "bytes per change"),
                Figure(
                    f"CPU, {name}",
                    round(run.cpu_seconds / backlog.changes * 1e6, 2),
                    "s per million changes",
                ),
            ]
        return Report("capture", figures, runs, {"postgres": backlog.server.full_version})


class UntilLog(LogWriter):
    """A log that stops capture once it is complete up to a position."""

    until: Lsn
    stop: threading.Event

    def flush(self, complete_up_to: Lsn) -> None:
        super().flush(complete_up_to)
        if self.complete_lsn >= self.until:
            self.stop.set()


def _capture(backlog: Backlog, slot: str) -> Run:
    run, _ = _capture_into_log(backlog, slot, Compression.NONE)
    return run


def _capture_into_log(backlog: Backlog, slot: str, compression: Compression) -> tuple[Run, int]:
    """The run, and the size of the log, which must hold every change."""
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as directory:
        run = pump_all(backlog, slot, Path(directory), compression)
        reader = LogReader(Path(directory))
        found = sum(commit.changes for commit in reader.commits(reader.start(), reader.end()))
        if found != backlog.changes:
            raise PenstockError(
                f"the log holds {found} of {backlog.changes} changes", remedy="Report this as a bug"
            )
        size = sum(file.stat().st_size for file in Path(directory).rglob("*.seg"))
    return run, size


def pump_all(
    backlog: Backlog,
    slot: str,
    storage: Storage | Path,
    compression: Compression,
    kind: type[UntilLog] = UntilLog,
) -> Run:
    """Capture the whole backlog into a log, with a writer of that kind."""
    started, cpu_started = time.perf_counter(), time.process_time()
    stop = threading.Event()
    with ReplicationConnection(backlog.server.dsn()) as connection:
        server = connection.identify()
        identity = LogIdentity.new(
            system_id=server.system_id,
            timeline=server.timeline,
            database=server.database,
            slot=slot,
            start_lsn=ZERO,
        )
        log = kind(storage, identity, LogSettings(compression=compression))
        log.until, log.stop = backlog.end_lsn, stop
        connection.start(slot, PUBLICATION, ZERO)
        session = ReplicationSession(ZERO, SessionSettings(), now=time.monotonic())
        try:
            Pump(connection, session, log, RetentionSettings(), HeartbeatMeter("bench"), stop).run()
        finally:
            log.close()
        seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - cpu_started
    return Run("penstock", seconds, cpu_seconds, backlog.changes)
