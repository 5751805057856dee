"""Whether capture may start: server, publication and slot as they are, against the log. Thin.

Everything that would make START_REPLICATION fail, or worse, succeed and lose changes, is found
here and named. Postgres itself accepts a position beyond its WAL and a publication that does not
exist, and says nothing.
"""

from __future__ import annotations

import re

from penstock.changelog.identity import LogIdentity
from penstock.changelog.writer import LogWriter
from penstock.config import SourceConfig
from penstock.errors import (
    PublicationMissing,
    ServerRewound,
    SlotAheadOfLog,
    SourceUnavailable,
    WrongServer,
    WrongSlot,
    WrongTimeline,
)
from penstock.lsn import Lsn
from penstock.postgres.catalog import check_version, check_wal_level, read_server
from penstock.postgres.connect import connect
from penstock.postgres.connection import ReplicationConnection, SystemIdentity
from penstock.postgres.failures import translated
from penstock.postgres.slots import SlotFacts, check_slot, read_slot


def check_source(source: SourceConfig) -> SlotFacts:
    """Look at the server through an ordinary connection; returns the slot, free and healthy."""
    with connect(source.conninfo) as connection, translated("look at the server"):
        server = read_server(connection)
        check_version(server.version_number)
        check_wal_level(server.wal_level)
        if server.in_recovery:
            # Promoted under us it would change its timeline, and we would not know where.
            raise SourceUnavailable(
                "the server is in recovery: it is a standby, or about to be promoted",
                remedy="Penstock waits for the promotion; to read from the primary, name it in dsn",
            )
        found = connection.execute(
            "SELECT 1 FROM pg_publication WHERE pubname = %s", [source.publication]
        ).fetchone()
        if found is None:
            raise PublicationMissing(source.publication)
        slot = read_slot(connection, source.slot)
    return check_slot(slot, source.slot, server.database)


def check_log(
    log: LogWriter, connection: ReplicationConnection, server: SystemIdentity, slot: SlotFacts
) -> None:
    """The log and this server's WAL belong together, and nothing in between is lost."""
    check_server(log.identity, server, slot.name)
    if server.timeline != log.identity.timeline:
        history = connection.timeline_history(server.timeline)
        check_timeline(log.identity.timeline, server.timeline, history, log.complete_lsn)
        log.follow_timeline(server.timeline)
    check_position(log.complete_lsn, server, slot)


def check_server(log: LogIdentity, server: SystemIdentity, slot: str) -> None:
    if server.system_id != log.system_id or server.database != log.database:
        raise WrongServer(
            f'the log was written from database "{log.database}" of server {log.system_id}, '
            f'and this is "{server.database}" of {server.system_id}',
            remedy="Correct the DSN, or name another directory in [log] for a new log",
        )
    if log.slot != slot:
        # Another slot stands elsewhere and may have other tables: changes would be lost in between.
        raise WrongSlot(log.slot, slot)


def check_timeline(ours: int, theirs: int, history: str, durable_lsn: Lsn) -> None:
    """After a failover the new server must have left our timeline at or after our position."""
    switches = {
        int(match[1]): Lsn.parse(match[2])
        for match in re.finditer(r"^\s*(\d+)\s+([0-9A-F]+/[0-9A-F]+)", history, re.MULTILINE)
    }
    switch = switches.get(ours)
    if switch is None or switch < durable_lsn:
        where = f"left timeline {ours} at {switch}" if switch else f"never was on timeline {ours}"
        raise WrongTimeline(
            f"the server is on timeline {theirs} and {where}, before our position {durable_lsn}",
            remedy=(
                "The log holds changes that this server does not have: start a new log and seed "
                "the targets again"
            ),
            timeline=theirs,
        )


def check_position(durable_lsn: Lsn, server: SystemIdentity, slot: SlotFacts) -> None:
    if server.wal_end < durable_lsn:
        raise ServerRewound(
            f"the server's WAL ends at {server.wal_end}, before our position {durable_lsn}",
            remedy=(
                "The server was restored from an older image, so the log holds changes that it "
                "no longer has: start a new log and seed the targets again"
            ),
            wal_end=server.wal_end,
            durable_lsn=durable_lsn,
        )
    if slot.confirmed_lsn is not None and slot.confirmed_lsn > durable_lsn:
        raise SlotAheadOfLog(slot.name, slot.confirmed_lsn, durable_lsn)
