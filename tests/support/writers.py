"""A log that grows by batches without Spark, and writers of one aggregate that follow it."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from penstock.changelog.consumers import consumers
from penstock.changelog.reader import LogReader
from penstock.changelog.writer import LogWriter
from penstock.declarations import AggregateConfig
from penstock.lsn import Lsn
from penstock.pipelines.applying import Applied
from penstock.pipelines.deciding import Covered
from penstock.pipelines.writing import Writer
from penstock.postgres.tables import read_tables
from penstock.sections import Dsn
from support.database import Database
from support.logs import begin_log
from support.targets import A, batch_of, declared
from support.waiting import eventually

STATS = (
    "CREATE TABLE stats (service text, status text, count int NOT NULL DEFAULT 0,"
    " UNIQUE NULLS NOT DISTINCT (service, status))"
)
UNSEEDED = declared(seed=False)


class Job:
    """A log that grows with each batch, and writers that follow it."""

    def __init__(self, database: Database, path: Path) -> None:
        self.database = database
        self.path = path
        begin_log(database, path, database.wal_position())
        self.log = LogReader(path)
        self.start = int(self.log.end().lsn)
        self.stopping = threading.Event()

    def writer(self, config: AggregateConfig = UNSEEDED, user: str = "postgres") -> Writer:
        dsn = Dsn(self.database.dsn(user), "dsn in [source]")
        with self.database.connect() as connection:
            tables = read_tables(connection, [source.table for source in config.sources])
        return Writer(config, dsn, tables, self.log, self.stopping)

    def apply(
        self, writer: Writer, number: int, deltas: Any, at_once: int = 2**20
    ) -> Applied | None:
        """The batch of that number, each ten bytes of WAL; so many are read again at once."""
        start = self.start + 10 * number
        covered = Covered(str(self.log.identity.log_id), Lsn(start), Lsn(start + 10))
        if self.log.end().lsn < covered.end:
            with LogWriter(self.path) as log:
                log.flush(covered.end)
        batch = batch_of(writer.config, deltas)
        return writer.apply(
            covered,
            lambda: batch,
            lambda missed: (batch, min(missed.end, Lsn(missed.start + at_once))),
        )

    def applied(self, writer: Writer, number: int, deltas: Any) -> Applied:
        """As `apply`, as often as it takes."""
        applied = eventually(lambda: self.apply(writer, number, deltas), "it is applied")
        assert applied is not None
        return applied

    def shown(self) -> dict[Any, int]:
        return {row[:2]: row[2] for row in self.database.rows("SELECT * FROM stats")}

    def told(self) -> int:
        """What the log knows to be applied."""
        (consumer,) = consumers(self.log.storage)
        assert consumer.name == "aggregate-counts"
        return consumer.applied_lsn - self.start

    def leave_behind(self, writer: Writer) -> None:
        """One batch is applied, the next one is not."""
        self.apply(writer, 0, {A: 1})
        self.kill(writer)
        assert self.apply(writer, 1, {A: 1}) is None
        writer._try_at = 0.0

    def kill(self, writer: Writer) -> None:
        assert writer._connection is not None
        self.database.run(
            f"SELECT pg_terminate_backend({writer._connection.info.backend_pid}, 5000)"
        )
