"""The tables that an aggregate reads, at one position of the server that the log comes from."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Event
from typing import Any

import psycopg

from penstock.changelog.belonging import (
    check_not_rewound,
    check_server,
    check_timeline,
    check_transaction_ids,
)
from penstock.changelog.reader import LogReader
from penstock.changelog.refusal import check_not_refused, kept_refusals
from penstock.changelog.transaction_ids import read_highest
from penstock.config import Config
from penstock.declarations import AggregateConfig
from penstock.errors import LogNotWritten, TimelineUnknown
from penstock.lsn import Lsn
from penstock.pipelines.binding import Bound, bind, types_of
from penstock.pipelines.source_marks import Marks, marked_columns, marks_of
from penstock.postgres.cancelling import cancelled_by
from penstock.postgres.connection import ReplicationConnection
from penstock.postgres.failures import translated
from penstock.postgres.polling.snapshot import InFlight
from penstock.postgres.snapshots import keep_as_they_were, snapshot
from penstock.postgres.system_identity import SystemIdentity
from penstock.postgres.table_marks import read_marks
from penstock.postgres.tables import read_tables
from penstock.postgres.waiting import OnWait


@dataclass(frozen=True, slots=True)
class SourceSnapshot:
    connection: psycopg.Connection[Any]
    lsn: Lsn
    bound: Bound
    marks: Marks
    # The commits up to `lsn` that the connection may not see; None: it sees all.
    in_flight: InFlight | None = None


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
    check_not_refused(log.storage)
    # Before: what is in the log by now is in the snapshot of its server.
    end, highest_xid = log.end().lsn, read_highest(log.storage)
    tables = [source.table for source in aggregate.sources]
    with (
        snapshot(
            config.source.conninfo,
            on_wait=on_wait,
            stop=stop,
            polled=config.source.mode == "poll",
        ) as taken,
        translated(f"read the tables of aggregate {aggregate.name}"),
        cancelled_by(stop, taken.connection),
    ):
        check_server(log.identity, taken.server, config.source.slot)
        with _written(log), kept_refusals(log.storage):
            if taken.server.timeline != log.identity.timeline:
                _check_timeline(config, taken.server, end, log)
            check_not_rewound(end, taken.lsn, log.where)
            check_transaction_ids(highest_xid, taken.server, log.where)
        # Those whose rows are read: the role may have no right on the others.
        read = [source.table for source in aggregate.sources if source.rows_count]
        keep_as_they_were(taken.connection, read)
        found = read_tables(taken.connection, tables)
        marks = read_marks(taken.connection, found.values(), marked_columns(aggregate))
        bound = bind(aggregate, types_of(found), taken.lsn)
        yield SourceSnapshot(
            taken.connection, taken.lsn, bound, marks_of(aggregate, marks), taken.in_flight
        )


def _check_timeline(config: Config, server: SystemIdentity, end: Lsn, log: LogReader) -> None:
    """After a failover that capture has not followed yet."""
    if config.source.mode == "poll":
        raise TimelineUnknown(server.timeline)
    with ReplicationConnection(config.source.conninfo) as connection:
        history = connection.timeline_history(server.timeline)
    check_timeline(log.identity.timeline, server.timeline, history, end, log.where)


@contextmanager
def _written(log: LogReader) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise LogNotWritten(log.where, error.strerror or str(error)) from error
