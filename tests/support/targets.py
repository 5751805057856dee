"""Targets on a real server, and batches for them without a log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from decimal import Decimal
from typing import Any

import psycopg
import pyarrow as pa

from penstock.declarations import AggregateConfig
from penstock.lsn import Lsn
from penstock.pipelines.applying import Aggregate, Applied, Batch, apply
from penstock.pipelines.bookkeeping import TABLES, Progress, read_progress
from penstock.pipelines.deciding import Covered
from penstock.pipelines.seeding import begin
from penstock.pipelines.staging import put_table
from penstock.pipelines.target_tables import read_targets
from support.database import Database

LOG, OTHER_LOG = "00000000-0000-0000-0000-00000000000a", "00000000-0000-0000-0000-00000000000b"
STATS = (
    "CREATE TABLE stats (service text, status text, count bigint NOT NULL,"
    " UNIQUE NULLS NOT DISTINCT (service, status))"
)
CHECKED = STATS.replace("NOT NULL", "NOT NULL CHECK (count >= 0)")
A, B = ("s", "a"), ("s", "b")
Deltas = Mapping[tuple[str | None, ...], Any]


def declared(**changes: Any) -> AggregateConfig:
    given = {
        "name": "counts",
        "sources": ["notifications"],
        "dimensions": ["service", "status"],
        "targets": ["stats"],
    }
    return AggregateConfig.model_validate(given | changes)


def with_tables(database: Database, *statements: str) -> None:
    database.run("CREATE SCHEMA penstock", *TABLES.values(), *statements)


def batch_of(config: AggregateConfig, deltas: Deltas) -> Batch:
    """From keys to the count, or to all measures."""
    amounts = [value if isinstance(value, tuple) else (value,) for value in deltas.values()]
    columns: dict[str, Any] = {
        name: pa.array([key[place] for key in deltas], pa.string())
        for place, name in enumerate(config.dimensions)
    }
    for place, name in enumerate(config.measures):
        kind = pa.int64() if config.summed_by(name) is None else pa.decimal128(38, 2)
        values = [amount[place] for amount in amounts]
        if kind != pa.int64():
            values = [Decimal(value) for value in values]
        columns[name] = pa.array(values, kind)
    return Batch(pa.table(columns), changes=len(deltas))


class Follower:
    """What a job does with one aggregate, batch by batch, from position 100 on."""

    def __init__(
        self,
        database: Database,
        config: AggregateConfig | None = None,
        *,
        seeded: bool = True,
        connection: psycopg.Connection[Any] | None = None,
        staged: bool = False,
    ) -> None:
        self.database = database
        # Whether batches come as large ones do.
        self.staged = staged
        self.config = config or declared()
        self.connection = connection or database.connect()
        if read_progress(self.connection, self.config.name) is None:
            begin(self.connection, self.config, LOG, Lsn(100))
            self.connection.execute("UPDATE penstock.progress SET state = 'live'")
        self.aggregate = Aggregate(
            self.config.name,
            read_targets(self.connection, self.config),
            seeded,
            epoch=0,
            fingerprint=self.config.fingerprint,
        )

    def __enter__(self) -> Follower:
        return self

    def __exit__(self, *_: object) -> None:
        self.connection.close()

    def add(self, deltas: Deltas) -> Applied:
        """The next batch."""
        start = self.progress().applied_lsn
        return self.apply(int(start), int(start) + 10, deltas)

    def apply(self, start: int, end: int, deltas: Deltas, again: Any = None) -> Applied:
        def read_again(covered: Covered) -> tuple[Batch, Lsn]:
            assert again is not None, "it was not to be read again"
            return self._batch(again(int(covered.start), int(covered.end))), covered.end

        covered = Covered(LOG, Lsn(start), Lsn(end))
        return apply(
            self.connection, self.aggregate, covered, lambda: self._batch(deltas), read_again
        )

    def _batch(self, deltas: Deltas) -> Batch:
        batch = batch_of(self.config, deltas)
        if not self.staged:
            return batch
        names = list(self.config.dimensions), list(self.config.measures)
        staged = put_table(self.connection, self.config.name, batch.sums, *names)
        return replace(batch, sums=batch.sums.slice(0, 0), staged=staged)

    def progress(self) -> Progress:
        progress = read_progress(self.connection, self.config.name)
        assert progress is not None
        return progress

    def shown(self, table: str = "stats", columns: str = "service, status") -> dict[Any, Any]:
        """The table, seen by somebody else: its count, or all of several measures."""
        measures = ", ".join(self.config.measures)
        width = len(columns.split(","))
        rows = self.database.rows(f"SELECT {columns}, {measures} FROM {table}")
        found = {row[:width]: row[width:] for row in rows}
        assert len(found) == len(rows), "a key is there twice"
        return {key: row[0] if len(row) == 1 else row for key, row in found.items()}

    def parked(self) -> list[tuple[Any, ...]]:
        """Key, count and reason of each."""
        return self.database.rows(
            "SELECT key, (deltas->>'count')::numeric, reason FROM penstock.parked"
            " ORDER BY key::text"
        )

    def make_due(self) -> None:
        """As if the time until the next try had passed."""
        self.database.run("UPDATE penstock.parked SET retry_at = now() - interval '1 s'")
