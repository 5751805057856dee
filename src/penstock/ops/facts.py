"""Everything that set-up, tear-down and doctor need to know about the source, read at one go."""

from __future__ import annotations

from dataclasses import dataclass

import psycopg

from penstock.config import SourceConfig
from penstock.names import TableName
from penstock.postgres.catalog import RoleFacts, ServerFacts, check_version, read_roles, read_server
from penstock.postgres.failures import translated
from penstock.postgres.publications import PublicationFacts, read_publications
from penstock.postgres.readable import Readable, read_readable
from penstock.postgres.slots import SlotFacts, read_slot
from penstock.postgres.tables import TableFacts, read_tables


@dataclass(frozen=True, slots=True)
class SourceFacts:
    server: ServerFacts
    # The role that read all this.
    role: RoleFacts
    # The role of `dsn`; None if the server has no role of that name.
    capture_role: RoleFacts | None
    capture_user: str
    # Those of the configured tables that exist.
    tables: dict[TableName, TableFacts]
    # Our publication, if it exists, and every other one that holds one of our tables.
    publications: dict[str, PublicationFacts]
    slot: SlotFacts | None
    # What the role of `dsn` may read of each table; capture reads none.
    readable: dict[TableName, Readable]


def read_facts(
    connection: psycopg.Connection, source: SourceConfig, capture_user: str | None = None
) -> SourceFacts:
    """Eight queries, however many tables; any role that may connect can run them.

    `capture_user` is the role of `dsn` if the connection is another's.
    """
    check_version(connection.info.server_version)
    capture_user = capture_user or connection.info.user
    with translated("read the server's catalog"):
        roles = read_roles(connection, [capture_user])
        tables = read_tables(connection, (table.name for table in source.tables))
        return SourceFacts(
            server=read_server(connection),
            role=roles[connection.info.user],
            capture_role=roles.get(capture_user),
            capture_user=capture_user,
            tables=tables,
            publications=read_publications(connection, source.publication, tables.values()),
            slot=read_slot(connection, source.slot),
            readable=read_readable(connection, capture_user, tables.values()),
        )
