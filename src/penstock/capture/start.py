"""Whether capture may start: server, publication and slot as they are, against the log. Thin.

Everything that would make START_REPLICATION fail, or worse, succeed and lose changes, is found
here and named. Postgres itself accepts a position beyond its WAL and a publication that does not
exist, and says nothing.
"""

from __future__ import annotations

import psycopg

from penstock.changelog.belonging import (
    check_not_rewound,
    check_server,
    check_timeline,
    check_transaction_ids,
)
from penstock.changelog.refusal import kept_refusals
from penstock.changelog.writer import LogWriter
from penstock.config import SourceConfig
from penstock.errors import PublicationMissing, SlotAheadOfLog, TableMissing
from penstock.postgres.catalog import check_version, check_wal_level, read_server
from penstock.postgres.connect import connect
from penstock.postgres.failures import translated
from penstock.postgres.output_plugins import check_plugin
from penstock.postgres.publications import has_publication
from penstock.postgres.slots import SlotFacts, check_slot, read_slot
from penstock.postgres.source_connection import SourceConnection
from penstock.postgres.system_identity import SystemIdentity, require_primary


def check_source(source: SourceConfig) -> SlotFacts:
    """Look at the server through an ordinary connection; returns the slot, free and healthy."""
    with connect(source.conninfo) as connection, translated("look at the server"):
        server = read_server(connection)
        check_version(server.version_number)
        check_wal_level(server.wal_level)
        check_plugin(server, source.plugin)
        require_primary(str(server.in_recovery).lower())
        if source.plugin == "wal2json":
            # It knows no publications, and says nothing of a table that does not exist.
            _require_tables(connection, source)
        elif not has_publication(connection, source.publication):
            raise PublicationMissing(source.publication)
        slot = read_slot(connection, source.slot)
    return check_slot(slot, source.slot, server.database, source.plugin)


def _require_tables(connection: psycopg.Connection, source: SourceConfig) -> None:
    for table in source.tables:
        row = connection.execute("SELECT to_regclass(%s)", [table.name.sql]).fetchone()
        if row is None or row[0] is None:
            raise TableMissing(
                f"table {table.name} does not exist",
                remedy="Correct `tables` in [source], or create the table",
                table=table.name,
            )


def check_log(
    log: LogWriter, connection: SourceConnection, server: SystemIdentity, slot: SlotFacts
) -> None:
    """The log and this server's WAL belong together, and nothing in between is lost.

    If they do not, the log keeps that: it is not continued when the server's WAL has grown.
    """
    check_server(log.identity, server, slot.name)
    with log.failures(), kept_refusals(log.storage):
        _check_history(log, connection, server, slot)
    log.begin_ids(server.ids)


def _check_history(
    log: LogWriter, connection: SourceConnection, server: SystemIdentity, slot: SlotFacts
) -> None:
    if server.timeline != log.identity.timeline:
        history = connection.timeline_history(server.timeline)
        check_timeline(log.identity.timeline, server.timeline, history, log.complete_lsn, log.where)
        log.follow_timeline(server.timeline)
    check_not_rewound(log.complete_lsn, server.wal_end, log.where)
    check_transaction_ids(log.highest_xid, server, log.where)
    if slot.confirmed_lsn is not None and slot.confirmed_lsn > log.complete_lsn:
        raise SlotAheadOfLog(slot.name, slot.confirmed_lsn, log.where, log.complete_lsn)
