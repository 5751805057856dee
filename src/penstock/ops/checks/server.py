"""The server: version, settings, room for our slot and connection, and what our role may do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from penstock.config import SourceConfig
from penstock.errors import OutputPluginMissing, PenstockError
from penstock.names import quote
from penstock.ops.facts import SourceFacts
from penstock.ops.findings import Finding, Level, from_error
from penstock.postgres.catalog import TESTED_VERSIONS, RoleFacts, ServerFacts, check_wal_level
from penstock.postgres.failures import slot_limit_fix, walsender_limit_fix
from penstock.postgres.output_plugins import allow_sql, allows
from penstock.printed_sql import SqlKind, printed, reloaded

# Less than this is gone within minutes on a busy server.
_SMALL_KEEP_MB = 1024


def check_server(source: SourceConfig, facts: SourceFacts) -> Iterator[Finding]:
    yield _version(facts.server)
    yield _wal_level(facts.server)
    allowed = facts.server.output_plugin_libraries
    if not allows(facts.server, source.plugin):
        yield Finding(
            "output_plugin_libraries",
            "error",
            "server",
            f"output_plugin_libraries ({allowed}) does not allow {source.plugin}",
            "Without it no slot for capture can be made, and none that exists can be read.",
            allow_sql(allowed, source.plugin).after("Run as a superuser"),
        )
    if facts.server.in_recovery:
        yield Finding(
            "standby",
            "error",
            "server",
            "the server is a standby",
            "Publications and slots are made on the primary, and a standby's slot is not tested.",
            "Name the primary in dsn in [source]",
        )
    if facts.server.encoding == "SQL_ASCII":
        yield Finding(
            "encoding",
            "warning",
            f'database "{facts.server.database}"',
            "its encoding is SQL_ASCII, so that its texts may be of any",
            "A change with a text that is not UTF-8 is captured, and skipped by aggregates that "
            "read it. Seeding and `penstock verify` fail at such a row.",
            "`penstock docs types` shows how texts become UTF-8. If all are, nothing is to do",
        )
    yield from _room(source, facts)
    yield _keep_size(facts.server)
    yield _sender_timeout(facts.server)
    if facts.server.idle_slot_timeout_s:
        yield Finding(
            "idle_replication_slot_timeout",
            "warning",
            "server",
            f"a slot that nobody reads for {facts.server.idle_slot_timeout_s} s is invalidated",
            "If Penstock is stopped for longer, changes are lost and targets must be seeded again.",
            reloaded(SqlKind.IDLE_SLOT_TIMEOUT, "idle_replication_slot_timeout = 0").after(
                "Run as a superuser"
            ),
        )


def _version(server: ServerFacts) -> Finding:
    tested = ", ".join(map(str, TESTED_VERSIONS))
    if server.major in TESTED_VERSIONS:
        return Finding("version", "ok", "server", f"PostgreSQL {server.version}")
    return Finding(
        "version",
        "info",
        "server",
        f"PostgreSQL {server.version} is accepted, but Penstock is tested with {tested}",
        "It should work; a difference between versions may not have been noticed.",
    )


def _wal_level(server: ServerFacts) -> Finding:
    try:
        check_wal_level(server.wal_level)
    except PenstockError as error:
        return from_error("wal_level", "server", error, "Without it there is nothing to decode.")
    return Finding("wal_level", "ok", "server", "wal_level is logical")


def _room(source: SourceConfig, facts: SourceFacts) -> Iterator[Finding]:
    server = facts.server
    slots = f"{server.used_slots} of {server.max_slots} replication slots are in use"
    if server.free_slots > 0:
        yield Finding("free_slots", "ok", "server", slots)
    else:
        # Our own slot may be among them; seeding and verifying need one more for a while.
        level: Level = "warning" if facts.slot else "error"
        why = "Set-up needs a slot, and so do seeding and verifying, for a moment."
        yield Finding("free_slots", level, "server", slots, why, slot_limit_fix())
    if source.mode == "poll":
        return  # it needs no walsender
    senders = f"{server.used_wal_senders} of {server.max_wal_senders} walsenders are in use"
    if server.free_wal_senders > 0:
        yield Finding("free_wal_senders", "ok", "server", senders)
    else:
        reading = facts.slot is not None and facts.slot.active_pid is not None
        yield Finding(
            "free_wal_senders",
            "warning" if reading else "error",
            "server",
            senders,
            "Capture is a replication connection and needs one.",
            walsender_limit_fix(),
        )


def _keep_size(server: ServerFacts) -> Finding:
    check, megabytes = "max_slot_wal_keep_size", server.max_slot_wal_keep_mb
    fix = reloaded(SqlKind.WAL_KEEP_SIZE, "max_slot_wal_keep_size = '50GB'")
    if megabytes < 0:
        return Finding(
            check,
            "info",
            "server",
            "max_slot_wal_keep_size is -1: a slot may hold back any amount of WAL",
            "While Penstock is stopped, WAL grows until the disk is full. With a limit the slot is "
            "lost instead, and targets must be seeded again.",
            fix.after("Watch the free disk space, or set a limit as a superuser"),
        )
    if megabytes < _SMALL_KEEP_MB:
        return Finding(
            check,
            "warning",
            "server",
            f"max_slot_wal_keep_size is only {megabytes} MB",
            "A short stop of Penstock loses the slot, and targets must be seeded again.",
            fix.after("Run as a superuser"),
        )
    return Finding(check, "ok", "server", f"max_slot_wal_keep_size is {megabytes} MB")


def _sender_timeout(server: ServerFacts) -> Finding:
    value = f"{server.wal_sender_timeout_ms / 1000:g} s"
    return Finding(
        "wal_sender_timeout",
        "ok",
        "server",
        f"wal_sender_timeout is {value if server.wal_sender_timeout_ms else 'off'}; "
        "capture sets its own for its session (wal_sender_timeout_s in [source])",
    )


def check_role(facts: SourceFacts, *, heartbeats: bool) -> Iterator[Finding]:
    """The role of `dsn`, which capture runs with."""
    role = facts.capture_role or facts.role
    name = quote(role.name)
    if not role.may_replicate:
        yield Finding(
            "privileges",
            "error",
            f"role {role.name}",
            "the role may not replicate",
            "Capture is a replication connection.",
            printed(SqlKind.REPLICATION, f"ALTER ROLE {name} REPLICATION").after(
                "Run as a superuser"
            ),
        )
    if heartbeats and role.forbidden_messages:
        grants = (f"GRANT EXECUTE ON FUNCTION {f} TO {name}" for f in role.forbidden_messages)
        yield Finding(
            "privileges",
            "warning",
            f"role {role.name}",
            "the role may not send heartbeats",
            "Heartbeats (pg_logical_emit_message) prove the whole path and measure its latency.",
            printed(SqlKind.HEARTBEATS, *grants).after(
                "Set interval_min = 0 in [heartbeat], or run as a superuser"
            ),
        )
    if role.may_replicate and not (heartbeats and role.forbidden_messages):
        yield _role_is_fine(role)


def _role_is_fine(role: RoleFacts) -> Finding:
    if role.superuser:
        return Finding(
            "privileges",
            "info",
            f"role {role.name}",
            "capture connects as a superuser",
            "It needs only to connect, to replicate, and to read the tables of aggregates.",
            "Use a role such as the one that `penstock docs roles` shows in dsn",
        )
    return Finding("privileges", "ok", f"role {role.name}", "the role may replicate")


@dataclass(frozen=True, slots=True)
class PluginProbe:
    """Whether the server has an output plugin: `present` is None when it could not be tried."""

    present: bool | None
    reason: str = ""


def check_wal2json(
    source: SourceConfig, server: ServerFacts, probe: PluginProbe
) -> Iterator[Finding]:
    if source.plugin == "wal2json":
        if probe.present is False:
            error = OutputPluginMissing(source.plugin)
            yield from_error("wal2json", "server", error, "No slot can be made without it.")
        return
    why = "Only polling with wal2json needs it; streaming uses pgoutput, which is built in."
    if not allows(server, "wal2json"):
        yield Finding(
            "wal2json",
            "info",
            "server",
            f"output_plugin_libraries ({server.output_plugin_libraries}) does not allow wal2json",
            why,
            allow_sql(server.output_plugin_libraries, "wal2json").after("Run as a superuser"),
        )
    elif probe.present:
        yield Finding("wal2json", "ok", "server", "the output plugin wal2json is there")
    elif probe.present is None:
        what = f"whether wal2json is there could not be tried: {probe.reason}"
        yield Finding("wal2json", "info", "server", what, why)
    else:
        yield Finding(
            "wal2json",
            "info",
            "server",
            "the output plugin wal2json is not there",
            why,
            f"apt-get install postgresql-{server.major}-wal2json",
        )
