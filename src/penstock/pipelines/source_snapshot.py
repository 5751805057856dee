"""The tables that an aggregate reads, at one position of the server that the log comes from."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Event
from typing import Any

import psycopg

from penstock.changelog.belonging import check_not_rewound, check_server
from penstock.changelog.reader import LogReader
from penstock.config import Config
from penstock.declarations import AggregateConfig
from penstock.lsn import Lsn
from penstock.pipelines.binding import Bound, bind, types_of
from penstock.postgres.cancelling import cancelled_by
from penstock.postgres.failures import translated
from penstock.postgres.snapshots import keep_as_they_were, snapshot
from penstock.postgres.tables import read_tables
from penstock.postgres.waiting import OnWait


@dataclass(frozen=True, slots=True)
class SourceSnapshot:
    connection: psycopg.Connection[Any]
    lsn: Lsn
    bound: Bound


@contextmanager
def source_snapshot(
    config: Config,
    aggregate: AggregateConfig,
    log: LogReader,
    *,
    on_wait: OnWait = lambda _: None,
    stop: Event | None = None,
) -> Iterator[SourceSnapshot]:
    """Together with the log it says what is true at any position that the log holds.

    Rows of another server, or of one that was restored, would be mixed with the log's changes:
    `WrongServer`, `ServerRewound`. `stop` ends it with `Cancelled`.
    """
    stop = stop or Event()
    # Before: what is in the log by now is in the snapshot of its server.
    end = log.end().lsn
    tables = [source.table for source in aggregate.sources]
    with (
        snapshot(config.source.conninfo, on_wait=on_wait, stop=stop) as taken,
        translated(f"read the tables of aggregate {aggregate.name}"),
        cancelled_by(stop, taken.connection),
    ):
        check_server(log.identity, taken.server, config.source.slot)
        check_not_rewound(end, taken.lsn, log.where)
        # Those whose rows are read: the role may have no right on the others.
        read = [source.table for source in aggregate.sources if source.rows_count]
        keep_as_they_were(taken.connection, read)
        types = types_of(read_tables(taken.connection, tables))
        yield SourceSnapshot(taken.connection, taken.lsn, bind(aggregate, types, taken.lsn))
