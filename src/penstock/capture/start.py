"""Whether capture may start: server, publication and slot as they are, against the log. Thin.

Everything that would make START_REPLICATION fail, or worse, succeed and lose changes, is found
here and named. Postgres itself accepts a position beyond its WAL and a publication that does not
exist, and says nothing.
"""

from __future__ import annotations

from penstock.changelog.log import LogHeader
from penstock.config import SourceConfig
from penstock.errors import (
    PublicationMissing,
    ServerRewound,
    SlotAheadOfLog,
    WrongServer,
)
from penstock.lsn import Lsn
from penstock.postgres.catalog import check_version, check_wal_level, read_server
from penstock.postgres.connect import connect
from penstock.postgres.connection import SystemIdentity
from penstock.postgres.failures import translated
from penstock.postgres.slots import SlotFacts, check_slot, read_slot


def check_source(source: SourceConfig) -> SlotFacts:
    """Look at the server through an ordinary connection; returns the slot, free and healthy."""
    with connect(source.conninfo) as connection, translated("look at the server"):
        server = read_server(connection)
        check_version(server.version_number)
        check_wal_level(server.wal_level)
        found = connection.execute(
            "SELECT 1 FROM pg_publication WHERE pubname = %s", [source.publication]
        ).fetchone()
        if found is None:
            raise PublicationMissing(source.publication)
        slot = read_slot(connection, source.slot)
    return check_slot(slot, source.slot, server.database)


def check_position(
    header: LogHeader, durable_lsn: Lsn, identity: SystemIdentity, slot: SlotFacts
) -> None:
    """The log and this server's WAL belong together, and nothing in between is lost."""
    if identity.system_id != header.system_id:
        raise WrongServer(
            f"the log was written from server {header.system_id}, "
            f"and this one is {identity.system_id}",
            remedy="Correct the DSN, or name another directory in [log] for a new log",
        )
    if identity.wal_end < durable_lsn:
        raise ServerRewound(
            f"the server's WAL ends at {identity.wal_end}, before our position {durable_lsn}",
            remedy=(
                "The server was restored from an older image, so the log holds changes that it "
                "no longer has: start a new log and seed the targets again"
            ),
            wal_end=identity.wal_end,
            durable_lsn=durable_lsn,
        )
    if slot.confirmed_lsn is not None and slot.confirmed_lsn > durable_lsn:
        raise SlotAheadOfLog(slot.name, slot.confirmed_lsn, durable_lsn)
