"""What the server is: a connection in, frozen facts about the server and its roles out.

Everything here can be read by any role that may connect, on PostgreSQL 14 to 18. Tables are read by
`tables`, publications by `publications`, slots by `slots`; who decides what the facts mean is in
`penstock.ops`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import psycopg
from psycopg.rows import class_row, dict_row

from penstock.errors import NotLogical, ServerTooOld
from penstock.printed_sql import SqlKind, printed

OLDEST_VERSION = 14
# The versions that the tests run on; others from OLDEST_VERSION on are accepted with a note.
TESTED_VERSIONS = (15, 16, 17, 18)
FAILOVER_VERSION = 17


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """One server as seen from one database; a setting that this version lacks is None."""

    version_number: int
    version: str
    system_id: int
    database: str
    # Of the database, such as UTF8.
    encoding: str
    in_recovery: bool
    # The one in effect: from PostgreSQL 19 on, a logical slot raises `replica` to `logical`.
    wal_level: str
    max_slots: int
    used_slots: int
    max_wal_senders: int
    used_wal_senders: int
    # -1: no limit.
    max_slot_wal_keep_mb: int
    # 0: never.
    wal_sender_timeout_ms: int
    # The output plugins that a slot may use. None: a minor release that has no such list, or a role
    # that may not read it (`pg_settings` hides the row then, where `current_setting` fails).
    output_plugin_libraries: str | None
    # 18 and newer: a slot that nobody read for this long is given up; 0 means never.
    idle_slot_timeout_s: int | None

    @property
    def major(self) -> int:
        return self.version_number // 10_000

    @property
    def free_slots(self) -> int:
        return self.max_slots - self.used_slots

    @property
    def free_wal_senders(self) -> int:
        return self.max_wal_senders - self.used_wal_senders


@dataclass(frozen=True, slots=True)
class RoleFacts:
    """What one role may do in this database."""

    name: str
    superuser: bool
    # Has the attribute, or is a member of the role that stands for it on Amazon RDS.
    replication: bool
    can_connect: bool
    # CREATE on the database, which a new publication needs.
    can_create: bool
    # The forms of pg_logical_emit_message (heartbeats) that it may not call.
    forbidden_messages: tuple[str, ...]

    @property
    def may_replicate(self) -> bool:
        return self.superuser or self.replication


def read_server(connection: psycopg.Connection) -> ServerFacts:
    with connection.cursor(row_factory=class_row(ServerFacts)) as cursor:
        facts = cursor.execute(_SERVER).fetchone()
    if facts is None:  # a SELECT without FROM always has one row
        raise RuntimeError("the server told nothing about itself")
    return facts


# pg_stat_replication hides its columns from a role without pg_monitor, but not its rows.
_SERVER = """
SELECT current_setting('server_version_num')::int AS version_number,
       current_setting('server_version') AS version,
       (SELECT system_identifier FROM pg_control_system()) AS system_id,
       current_database() AS database,
       current_setting('server_encoding') AS encoding,
       pg_is_in_recovery() AS in_recovery,
       coalesce((SELECT setting FROM pg_settings WHERE name = 'effective_wal_level'),
                current_setting('wal_level')) AS wal_level,
       current_setting('max_replication_slots')::int AS max_slots,
       (SELECT count(*) FROM pg_replication_slots)::int AS used_slots,
       current_setting('max_wal_senders')::int AS max_wal_senders,
       (SELECT count(*) FROM pg_stat_replication)::int AS used_wal_senders,
       (SELECT setting::int FROM pg_settings WHERE name = 'max_slot_wal_keep_size')
           AS max_slot_wal_keep_mb,
       (SELECT setting::int FROM pg_settings WHERE name = 'wal_sender_timeout')
           AS wal_sender_timeout_ms,
       (SELECT setting FROM pg_settings WHERE name = 'output_plugin_libraries')
           AS output_plugin_libraries,
       (SELECT extract(epoch FROM current_setting(name)::interval)::int
          FROM pg_settings WHERE name = 'idle_replication_slot_timeout') AS idle_slot_timeout_s
"""


def read_roles(connection: psycopg.Connection, names: Iterable[str]) -> dict[str, RoleFacts]:
    """The roles of those names, and the connection's own."""
    wanted = sorted({*names, connection.info.user})
    with connection.cursor(row_factory=dict_row) as cursor:
        rows = cursor.execute(_ROLES, [wanted]).fetchall()
    return {
        row["name"]: RoleFacts(**{**row, "forbidden_messages": tuple(row["forbidden_messages"])})
        for row in rows
    }


_ROLES = """
SELECT r.rolname AS name,
       r.rolsuper AS superuser,
       r.rolreplication OR EXISTS (
           SELECT FROM pg_roles AS rds
            WHERE rds.rolname = 'rds_replication' AND pg_has_role(r.oid, rds.oid, 'member')
       ) AS replication,
       has_database_privilege(r.oid, current_database(), 'CONNECT') AS can_connect,
       has_database_privilege(r.oid, current_database(), 'CREATE') AS can_create,
       ARRAY(
           SELECT p.oid::regprocedure::text
             FROM pg_proc AS p
            WHERE p.proname = 'pg_logical_emit_message'
              AND p.pronamespace = 'pg_catalog'::regnamespace
              AND NOT has_function_privilege(r.oid, p.oid, 'EXECUTE')
            ORDER BY 1
       ) AS forbidden_messages
  FROM pg_roles AS r
 WHERE r.rolname = ANY (%s)
"""


def check_version(version_number: int) -> None:
    """Raise `ServerTooOld` below PostgreSQL 14; called at every start."""
    if version_number // 10_000 < OLDEST_VERSION:
        raise ServerTooOld(
            f"the server is PostgreSQL {version_number // 10_000}, "
            f"and Penstock needs {OLDEST_VERSION} or newer",
            remedy="Upgrade the server, or name a newer one in `dsn`",
            version_number=version_number,
        )


def check_wal_level(wal_level: str) -> None:
    """Raise `NotLogical` unless the WAL holds what logical decoding needs."""
    if wal_level != "logical":
        raise NotLogical(
            f"wal_level is {wal_level}, so the WAL lacks what logical decoding needs",
            remedy=printed(SqlKind.WAL_LEVEL, "ALTER SYSTEM SET wal_level = 'logical'").after(
                "On managed services set rds.logical_replication or cloudsql.logical_decoding. "
                "Elsewhere restart the server after a superuser has run"
            ),
            wal_level=wal_level,
        )
