"""Facts about a source that is set up and healthy; tests change what they are about."""

from __future__ import annotations

from typing import Any

from penstock.config import Config
from penstock.lsn import Lsn
from penstock.names import TableName
from penstock.ops.facts import SourceFacts
from penstock.postgres.catalog import RoleFacts, ServerFacts
from penstock.postgres.column_types import BaseType
from penstock.postgres.publications import MARK, OPERATIONS, PublicationFacts, PublishedTable
from penstock.postgres.readable import Readable
from penstock.postgres.slots import SlotFacts
from penstock.postgres.tables import Column, Generated, Index, TableFacts


def config(*tables: Any, **source: Any) -> Config:
    return Config.model_validate(
        {"source": {"dsn": "postgresql://h/app", "tables": tables or ["orders"], **source}}
    )


INTEGER = BaseType("int4", "integer")


def column(
    name: str, generated: Generated = "", base: BaseType = INTEGER, **changes: Any
) -> Column:
    facts = {"not_null": True, "generated": generated, **changes}
    return Column(name, base.sql, base=base, **facts)


def table(name: str = "orders", **changes: Any) -> TableFacts:
    key = Index("orders_pkey", ("id",))
    facts = {
        "name": TableName.parse(name),
        "oid": abs(hash(name)),
        "kind": "table",
        "persistence": "permanent",
        "owner": "app_owner",
        "owned": True,
        "columns": (column("id"), column("status")),
        "primary_key": key,
        "identity": "default",
        "identity_index": None,
        "candidates": (key,),
    }
    return TableFacts(**{**facts, **changes})


def keyless(name: str = "orders", **changes: Any) -> TableFacts:
    return table(name, **{"primary_key": None, "candidates": (), **changes})


def server(major: int = 18, **changes: Any) -> ServerFacts:
    facts = {
        "version_number": major * 10_000 + 4,
        "version": f"{major}.4",
        "system_id": 1,
        "database": "app",
        "encoding": "UTF8",
        "in_recovery": False,
        "wal_level": "logical",
        "max_slots": 10,
        "used_slots": 1,
        "max_wal_senders": 10,
        "used_wal_senders": 0,
        "max_slot_wal_keep_mb": 10_000,
        "wal_sender_timeout_ms": 60_000,
        "output_plugin_libraries": None,
        "idle_slot_timeout_s": None,
    }
    return ServerFacts(**{**facts, **changes})


def role(name: str = "capture", **changes: Any) -> RoleFacts:
    facts = {
        "superuser": False,
        "replication": True,
        "can_connect": True,
        "can_create": True,
        "forbidden_messages": (),
    }
    return RoleFacts(name=name, **{**facts, **changes})


def publication(*tables: str | PublishedTable, **changes: Any) -> PublicationFacts:
    facts = {
        "name": "penstock",
        "owner": "setup",
        "owned": True,
        "all_tables": False,
        "schemas": (),
        "tables": tuple(
            t if isinstance(t, PublishedTable) else PublishedTable(TableName.parse(t))
            for t in tables or ("orders",)
        ),
        "operations": frozenset(OPERATIONS),
        "via_root": True,
        "generated_columns": False,
        "comment": MARK,
    }
    return PublicationFacts(**{**facts, **changes})


def slot(**changes: Any) -> SlotFacts:
    facts = {
        "name": "penstock",
        "plugin": "pgoutput",
        "database": "app",
        "two_phase": False,
        "active_pid": None,
        "application": None,
        "client": None,
        "wal_status": "reserved",
        "safe_wal_bytes": None,
        "restart_lsn": Lsn(100),
        "confirmed_lsn": Lsn(200),
        "failover": False,
        "invalidation": None,
    }
    return SlotFacts(**{**facts, **changes})


def readable(table: TableFacts, **changes: Any) -> Readable:
    facts = {
        "in_schema": True,
        "schema_owned": False,
        "columns": frozenset(column.name for column in table.columns),
        "row_security": False,
    }
    return Readable(**{**facts, **changes})


def source(*tables: TableFacts, **changes: Any) -> SourceFacts:
    """Set up and healthy unless told otherwise."""
    held = tables or (table(),)
    facts = {
        "server": server(),
        "role": role("setup"),
        "capture_role": role(),
        "capture_user": "capture",
        "tables": {t.name: t for t in held},
        "publications": {"penstock": publication(*(t.name.sql for t in held))},
        "slot": slot(),
        "readable": {t.name: readable(t) for t in held},
    }
    return SourceFacts(**{**facts, **changes})


def bare(*tables: TableFacts, **changes: Any) -> SourceFacts:
    """Nothing set up yet."""
    return source(*tables, **{"publications": {}, "slot": None, **changes})
