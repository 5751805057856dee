"""Replication slots: what one is, whether capture may use it, making and dropping it.

A slot is made last and dropped first: from the moment it exists the server keeps WAL for it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg.rows import dict_row

from penstock.errors import (
    OutputPluginMissing,
    ServerTooOld,
    SetupBlocked,
    SlotInUse,
    SlotInvalidated,
    SlotMissing,
    SlotOtherDatabase,
    SlotTwoPhase,
    SlotWrongPlugin,
)
from penstock.lsn import Lsn
from penstock.postgres.catalog import FAILOVER_VERSION
from penstock.postgres.failures import translate, translated
from penstock.postgres.output_plugins import PLUGIN, not_allowed
from penstock.postgres.poll_lock import Poller, read_poller
from penstock.postgres.waiting import GaveUp, OnWait, let_finish, run_watched

# Creation waits for every open write transaction. Most are over in seconds; one that is open for a
# minute was forgotten, or is a batch job, and a person should decide.
CREATE_DEADLINE_S = 60.0
# How long a walsender may take to notice that it was terminated.
_TERMINATE_TIMEOUT_MS = 5_000
# A capture process that was cut off comes back at once: terminating and dropping may race with it.
_DROP_ATTEMPTS = 5


@dataclass(frozen=True, slots=True)
class SlotFacts:
    """One slot; what this server version does not tell is None."""

    name: str
    # None for a physical slot.
    plugin: str | None
    database: str | None
    two_phase: bool
    active_pid: int | None
    application: str | None
    client: str | None
    # reserved, extended, unreserved or lost
    wal_status: str | None
    safe_wal_bytes: int | None
    restart_lsn: Lsn | None
    confirmed_lsn: Lsn | None
    failover: bool
    # Why the server gave it up; from 17 on in its own words.
    invalidation: str | None

    @property
    def holder(self) -> str | None:
        """Who reads from it, as far as the role that asked may see."""
        known = ", ".join(
            part
            for part in (self.application, f"from {self.client}" if self.client else None)
            if part
        )
        return known or None


def read_slot(connection: psycopg.Connection, name: str) -> SlotFacts | None:
    with connection.cursor(row_factory=dict_row) as cursor:
        row = cursor.execute(_SLOT, [name]).fetchone()
    return None if row is None else _facts(row["slot"], row["application"], row["client"])


def read_other_slots(connection: psycopg.Connection, name: str) -> list[SlotFacts]:
    """All of this database that stay, but the one of that name."""
    with connection.cursor(row_factory=dict_row) as cursor:
        rows = cursor.execute(_OTHER_SLOTS, [name]).fetchall()
    return [_facts(row["slot"], row["application"], row["client"]) for row in rows]


# to_jsonb, for its columns grew with every version.
_SLOTS = """
SELECT to_jsonb(s) AS slot, a.application_name AS application, host(a.client_addr) AS client
  FROM pg_replication_slots AS s
  LEFT JOIN pg_stat_activity AS a ON a.pid = s.active_pid
"""
_SLOT = f"{_SLOTS} WHERE s.slot_name = %s"
_OTHER_SLOTS = f"""
{_SLOTS} WHERE s.database = current_database() AND NOT s.temporary AND s.slot_name <> %s
 ORDER BY s.slot_name
"""


def _facts(slot: dict[str, Any], application: str | None, client: str | None) -> SlotFacts:
    return SlotFacts(
        name=slot["slot_name"],
        plugin=slot["plugin"],
        database=slot["database"],
        two_phase=bool(slot["two_phase"]),
        active_pid=slot["active_pid"],
        application=application or None,
        client=client,
        wal_status=slot["wal_status"],
        safe_wal_bytes=slot["safe_wal_size"],
        restart_lsn=_lsn(slot["restart_lsn"]),
        confirmed_lsn=_lsn(slot["confirmed_flush_lsn"]),
        failover=bool(slot.get("failover")),
        invalidation=_invalidation(slot),
    )


def _lsn(text: str | None) -> Lsn | None:
    return None if text is None else Lsn.parse(text)


def _invalidation(slot: dict[str, Any]) -> str | None:
    if reason := slot.get("invalidation_reason"):
        return str(reason)
    if slot["wal_status"] == "lost":
        return "wal_status is lost"
    return "conflicting with recovery" if slot.get("conflicting") else None


def check_kind(
    facts: SlotFacts | None, name: str, database: str, plugin: str = PLUGIN
) -> SlotFacts:
    """The slot is there, decodes with the plugin, and is of this database; else a named error."""
    if facts is None:
        raise SlotMissing(name)
    if facts.plugin != plugin:
        raise SlotWrongPlugin(name, facts.plugin, wanted=plugin)
    if facts.database != database:
        raise SlotOtherDatabase(name, facts.database or "", database)
    return facts


def check_health(facts: SlotFacts) -> None:
    """What would stop capture although the slot is of the right kind; use does not count."""
    if facts.two_phase:
        raise SlotTwoPhase(facts.name)
    if facts.invalidation:
        raise SlotInvalidated(facts.name, facts.invalidation)


def check_slot(
    facts: SlotFacts | None, name: str, database: str, plugin: str = PLUGIN
) -> SlotFacts:
    """Everything that capture needs before it starts, free to be used included."""
    found = check_kind(facts, name, database, plugin)
    check_health(found)
    if found.active_pid is not None:
        raise SlotInUse(name, found.active_pid, holder=found.holder)
    return found


def check_failover(major: int) -> None:
    if major < FAILOVER_VERSION:
        raise ServerTooOld(
            f"failover = true needs PostgreSQL {FAILOVER_VERSION}, and the server is {major}",
            remedy="Set failover = false in [source], or upgrade the server",
        )


def create_sql(name: str, *, failover: bool, plugin: str = PLUGIN) -> str:
    # Slot names hold letters, digits and _ only, so plain quotes are enough.
    arguments = f"'{name}', '{plugin}'"
    if failover:
        arguments += ", temporary => false, twophase => false, failover => true"
    return f"SELECT lsn FROM pg_create_logical_replication_slot({arguments})"  # noqa: S608


def drop_sql(name: str) -> str:
    return f"SELECT pg_drop_replication_slot('{name}')"


def create_slot(
    connection: psycopg.Connection,
    name: str,
    *,
    observer: psycopg.Connection,
    on_wait: OnWait,
    failover: bool = False,
    plugin: str = PLUGIN,
    deadline_s: float = CREATE_DEADLINE_S,
    on_made: Callable[[], None] = lambda: None,
) -> Lsn:
    """Make the slot and return its starting point; at the deadline no slot is left behind.

    `on_made` is called as soon as there is one, even if we are interrupted at that moment.

    `statement_timeout` does not reach this wait on every version, so the deadline is ours and ends
    in a cancellation, which makes the server drop what it had begun.
    """
    try:
        row = run_watched(
            connection,
            [create_sql(name, failover=failover, plugin=plugin)],
            observer=observer,
            deadline_s=deadline_s,
            on_wait=on_wait,
            on_done=on_made,
        )
    except GaveUp as gave_up:
        who = "; ".join(map(str, gave_up.blockers)) or "transactions that have ended meanwhile"
        raise SetupBlocked(
            f'replication slot "{name}" was not created within {deadline_s:g} s: '
            f"it waits for open write transactions: {who}",
            remedy=let_finish(
                [blocker.pid for blocker in gave_up.blockers], "run `penstock setup` again"
            ),
            slot=name,
            pids=tuple(blocker.pid for blocker in gave_up.blockers),
        ) from None
    except psycopg.errors.UndefinedFile:
        raise OutputPluginMissing(plugin) from None
    except psycopg.Error as error:
        refused = not_allowed(error.sqlstate, error.diag.message_primary or "", plugin)
        raise refused or translate(error, f'create replication slot "{name}"') from error
    return Lsn.parse(row[0])


def drop_slot(connection: psycopg.Connection, name: str, *, force: bool = False) -> None:
    """Drop the slot, so that the server may recycle its WAL; one that is gone already is fine.

    A slot in use is `SlotInUse`; with `force` its reader is terminated first.
    """
    for attempt in range(1, _DROP_ATTEMPTS + 1):
        with translated(f'look at replication slot "{name}"'):
            facts = read_slot(connection, name)
            # Between two runs nobody holds a slot that is polled.
            poller = read_poller(connection, name)
        if facts is None:
            return
        reader = facts.active_pid or (poller.pid if poller else None)
        if reader is not None and not force:
            raise _in_use(facts, poller)
        try:
            if reader is not None:
                connection.execute(
                    "SELECT pg_terminate_backend(%s, %s)", [reader, _TERMINATE_TIMEOUT_MS]
                )
            connection.execute(drop_sql(name).encode())
        except psycopg.errors.ObjectInUse:
            if attempt == _DROP_ATTEMPTS or not force:
                raise _in_use(facts, poller) from None
            time.sleep(0.1 * attempt)
        except psycopg.errors.UndefinedObject:
            return
        except psycopg.Error as error:
            raise translate(error, f'drop replication slot "{name}"') from error
        else:
            return


def _in_use(facts: SlotFacts, poller: Poller | None) -> SlotInUse:
    pid, holder = facts.active_pid, facts.holder
    if pid is None and poller is not None:
        pid, holder = poller.pid, poller.holder
    return SlotInUse(
        facts.name,
        pid,
        holder=holder,
        remedy="Stop Penstock first, or run `penstock teardown --force`, which ends that process",
    )
