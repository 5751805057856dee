"""The slot: is it there, ours, healthy, and who reads from it."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.config import SourceConfig
from penstock.errors import PenstockError, SlotBeforePublication, new_log
from penstock.ops.facts import SourceFacts
from penstock.ops.findings import Finding, from_error
from penstock.postgres.catalog import ServerFacts
from penstock.postgres.slots import SlotFacts, check_failover, check_health, check_kind
from penstock.printed_sql import SqlKind, reloaded, terminated

# Below this share of max_slot_wal_keep_size the slot is near its end.
_SAFE_SHARE = 0.2
_MIB = 1024 * 1024


def check_slot_facts(source: SourceConfig, facts: SourceFacts) -> Iterator[Finding]:
    subject = f"slot {source.slot}"
    if source.failover:
        try:
            check_failover(facts.server.major)
        except PenstockError as error:
            yield from_error("slot_failover", subject, error)
    try:
        slot = check_kind(facts.slot, source.slot, facts.server.database, source.plugin)
        check_health(slot)
        if source.publishes and source.publication not in facts.publications:
            raise SlotBeforePublication(source.slot, source.publication)
    except PenstockError as error:
        yield from_error("slot", subject, error, "Capture cannot read from it.")
        return
    yield Finding(
        "slot", "ok", subject, f"it decodes with {source.plugin}, two-phase decoding is off"
    )
    yield _use(slot, subject)
    yield _wal(slot, facts.server, subject)
    if source.failover and not slot.failover and facts.server.major >= 17:
        yield Finding(
            "slot_failover",
            "warning",
            subject,
            "failover = true, but the slot was made without it",
            "It is not carried over to a standby.",
            f"Make it anew, and a new log with it: {new_log()}",
        )


def _use(slot: SlotFacts, subject: str) -> Finding:
    if slot.active_pid is None:
        return Finding("slot_active", "ok", subject, "nobody reads from it now")
    who = f"process {slot.active_pid}" + (f" ({slot.holder})" if slot.holder else "")
    if (slot.application or "").startswith("penstock"):
        return Finding("slot_active", "info", subject, f"Penstock reads from it: {who}")
    return Finding(
        "slot_active",
        "warning",
        subject,
        f"another program reads from it: {who}",
        "A slot has one reader at a time: capture would be refused.",
        f"Stop it, or {terminated([slot.active_pid])}",
    )


def _wal(slot: SlotFacts, server: ServerFacts, subject: str) -> Finding:
    safe = slot.safe_wal_bytes
    room = "" if safe is None else f", {safe / _MIB:.0f} MB of WAL from being lost"
    what = f"wal_status is {slot.wal_status}{room}"
    limit = server.max_slot_wal_keep_mb * _MIB
    if slot.wal_status == "unreserved" or (safe is not None and safe < limit * _SAFE_SHARE):
        return Finding(
            "slot_wal",
            "warning",
            subject,
            what,
            "The server will soon remove WAL that Penstock has not read; then targets must be "
            "seeded again.",
            reloaded(
                SqlKind.WAL_KEEP_SIZE,
                f"max_slot_wal_keep_size = '{max(server.max_slot_wal_keep_mb * 2, 1024)}MB'",
            ).after("Start capture now, or run as a superuser"),
        )
    return Finding("slot_wal", "ok", subject, what)
