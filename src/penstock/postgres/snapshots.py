"""A snapshot of the database at an exact position of its WAL.

A temporary slot gives both at once: the snapshot it exports holds every commit that ends at or
below its consistent point, and no other. The slot holds back WAL, so it goes as soon as the session
that reads has taken the snapshot over.

That needs a replication connection. Without one (`polling.snapshot`) the snapshot lacks some of the
commits below its position, and the log says which.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from threading import Event
from typing import Any

import psycopg

from penstock.errors import SetupBlocked, TableRewritten
from penstock.lsn import Lsn
from penstock.names import TableName
from penstock.postgres.cancelling import Cancelled, cancelled_by
from penstock.postgres.connect import connect, connect_unlimited
from penstock.postgres.connection import VALUE_SETTINGS
from penstock.postgres.failures import translated
from penstock.postgres.polling.snapshot import InFlight, take_snapshot
from penstock.postgres.polling.statements import IDENTIFY, timeline_of
from penstock.postgres.slots import CREATE_DEADLINE_S
from penstock.postgres.system_identity import (
    IN_RECOVERY,
    TRANSACTION_IDS,
    SystemIdentity,
    TransactionIds,
    require_primary,
)
from penstock.postgres.waiting import GaveUp, OnWait, let_finish, watched


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A session that sees the database as it was at `lsn`, until it is closed."""

    connection: psycopg.Connection[Any]
    lsn: Lsn
    server: SystemIdentity
    # The commits up to `lsn` that the session may not see; None: it sees all.
    in_flight: InFlight | None = None


@contextmanager
def snapshot(
    dsn: str,
    *,
    on_wait: OnWait = lambda _: None,
    deadline_s: float = CREATE_DEADLINE_S,
    stop: Event | None = None,
    polled: bool = False,
) -> Iterator[Snapshot]:
    """Wait for every open write transaction, of which `on_wait` is given a list, and take it.

    The deadline ends it, or `stop`, with `Cancelled`. `polled`: without a replication connection.
    """
    stop = stop or Event()
    # Values are printed as in the stream, and a policy that hides rows is an error: the stream has
    # them all.
    settings = {**VALUE_SETTINGS, "row_security": "off"}
    options = " ".join(f"-c {name}={value}" for name, value in settings.items())
    # There is nothing to commit, and a server that is gone by then has told all.
    with closing(connect_unlimited(dsn, options=options)) as reading:
        if polled:
            yield _polled(reading, on_wait, deadline_s, stop)
            return
        with (
            connect(dsn) as observer,
            connect_unlimited(dsn, replication="database") as exporting,
        ):
            with cancelled_by(stop, exporting):
                server = _identified(exporting)
                lsn, name = _exported(exporting, observer, on_wait, deadline_s)
            with translated("take over the snapshot"):
                reading.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
                reading.execute(f"SET TRANSACTION SNAPSHOT '{name}'".encode())
        yield Snapshot(reading, lsn, server)


def _polled(
    reading: psycopg.Connection[Any], on_wait: OnWait, deadline_s: float, stop: Event
) -> Snapshot:
    with translated("take a snapshot"):
        require_primary(*_row(reading, IN_RECOVERY))
        system_id, wal_file, _, database = _row(reading, IDENTIFY)
        ids = TransactionIds.parse(*_row(reading, TRANSACTION_IDS))
        try:
            in_flight = take_snapshot(
                reading, on_wait=on_wait, deadline_s=deadline_s, is_stopped=stop.is_set
            )
        except GaveUp as gave_up:
            raise _blocked(gave_up, deadline_s) from None
    if stop.is_set():
        raise Cancelled
    server = SystemIdentity(str(system_id), timeline_of(wal_file), in_flight.end, database, ids)
    return Snapshot(reading, in_flight.end, server, in_flight)


_REWRITTEN = """
SELECT c.oid::regclass::text
  FROM pg_class AS c
 WHERE (c.oid = %(table)s::regclass
        OR c.oid IN (SELECT relid FROM pg_partition_tree(%(table)s::regclass)))
   -- As the snapshot has it, and as it is now.
   AND c.relfilenode <> coalesce(pg_relation_filenode(c.oid), 0)
"""


def keep_as_they_were(reading: psycopg.Connection[Any], tables: Iterable[TableName]) -> None:
    """Until the snapshot is closed nobody rewrites or truncates these tables.

    What does has no regard for snapshots: the table would be read as empty. `TableRewritten`: one
    was, after the snapshot was taken.
    """
    for table in tables:
        # This locks the table and its partitions, and is granted with a right on any column, which
        # LOCK TABLE is not.
        reading.execute(f"SELECT FROM {table.sql} LIMIT 0".encode())
        for (name,) in reading.execute(_REWRITTEN, {"table": table.sql}):
            raise TableRewritten(
                f"{name} was rewritten or truncated while a snapshot of it was taken",
                remedy="Run this again",
            )


def _identified(exporting: psycopg.Connection[Any]) -> SystemIdentity:
    with translated("ask which server this is"):
        require_primary(*_row(exporting, IN_RECOVERY))
        system_id, timeline, wal_end, database = _row(exporting, "IDENTIFY_SYSTEM")
        ids = TransactionIds.parse(*_row(exporting, TRANSACTION_IDS))
    return SystemIdentity(system_id, timeline, Lsn.parse(wal_end), database, ids)


def _row(connection: psycopg.Connection[Any], command: str) -> tuple[Any, ...]:
    row = connection.execute(command.encode()).fetchone()
    assert row is not None  # noqa: S101 - each of these commands answers with a row
    return tuple(row)


def _exported(
    exporting: psycopg.Connection[Any],
    observer: psycopg.Connection[Any],
    on_wait: OnWait,
    deadline_s: float,
) -> tuple[Lsn, str]:
    # A name of its own: one whose creation was cut off may still be there for a while.
    slot = f"penstock_{secrets.token_hex(8)}"
    command = f"CREATE_REPLICATION_SLOT {slot} TEMPORARY LOGICAL pgoutput (SNAPSHOT 'export')"
    try:
        with translated("export a snapshot"):
            row = watched(
                exporting,
                lambda: exporting.execute(command.encode()).fetchone(),
                observer=observer,
                deadline_s=deadline_s,
                on_wait=on_wait,
            )
    except GaveUp as gave_up:
        raise _blocked(gave_up, deadline_s) from None
    assert row is not None  # noqa: S101 - the command answers with a row
    _, consistent_point, name, _ = row
    return Lsn.parse(consistent_point), name


def _blocked(gave_up: GaveUp, deadline_s: float) -> SetupBlocked:
    who = "; ".join(map(str, gave_up.blockers)) or "transactions that have ended meanwhile"
    return SetupBlocked(
        f"no snapshot within {deadline_s:g} s: it waits for open write transactions: {who}",
        remedy=let_finish([blocker.pid for blocker in gave_up.blockers], "try again"),
        pids=tuple(blocker.pid for blocker in gave_up.blockers),
    )
