"""Doctor: gathers what there is to know about a source, examines it, says what to do.

Reads only. Runs with the role of `dsn`, for that is what capture will run with, and looks at
targets with the role that will write them.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import psycopg

from penstock.config import Config, SourceConfig
from penstock.declarations import AggregateConfig
from penstock.errors import PenstockError, SlotLimitReached
from penstock.ops.capture_role import capture_role_name
from penstock.ops.checks.aggregates import check_aggregates, check_expressions
from penstock.ops.checks.files import check_file
from penstock.ops.checks.log import check_left_consumers
from penstock.ops.checks.names import check_names
from penstock.ops.checks.publication import check_publication
from penstock.ops.checks.server import PluginProbe, check_role, check_server, check_wal2json
from penstock.ops.checks.slot import check_slot_facts
from penstock.ops.checks.tables import check_tables
from penstock.ops.destinations import Destination, read_destination
from penstock.ops.facts import SourceFacts, read_facts
from penstock.ops.findings import Finding, from_error, worst_first
from penstock.ops.our_log import held_for_nobody, our_log_id
from penstock.ops.setup import connect_for_setup
from penstock.ops.tools import ToolFacts, check_tools, read_tools
from penstock.pipelines.held_log import LeftConsumer
from penstock.postgres.connect import connect
from penstock.postgres.pooler import require_own_session
from penstock.postgres.undecodable_names import UndecodableName, read_undecodable_names

# A slot whose plugin is there waits for open transactions; we do not.
_PROBE_TIMEOUT_MS = 1_000
Expressions: TypeAlias = Mapping[str, Sequence[PenstockError]]
# Asks Spark.
LookAtExpressions: TypeAlias = Callable[
    [Config, SourceFacts, Mapping[str, Destination | PenstockError]], Expressions
]


@dataclass(frozen=True, slots=True)
class Gathered:
    """All that `examine` judges. What could not be had is an error instead."""

    source: SourceFacts | PenstockError
    wal2json: PluginProbe
    # What a replication connection, and one with setup_dsn, ran into.
    replication_error: PenstockError | None
    setup_error: PenstockError | None
    tools: ToolFacts
    # By aggregate, each with the role that writes its targets.
    destinations: Mapping[str, Destination | PenstockError] = field(default_factory=dict)
    # Of the change log, if there is one already.
    log_id: uuid.UUID | None = None
    # By aggregate, what Spark says about its expressions; an error: Spark could not be asked.
    expressions: Expressions | PenstockError = field(default_factory=dict)
    # Consumers of the log that belong to no declared aggregate.
    left: Sequence[LeftConsumer] = ()
    # Schemas, tables and columns of the source whose names are not UTF-8.
    undecodable: Sequence[UndecodableName] = ()


def diagnose(
    config: Config,
    path: Path | None = None,
    look_at_expressions: LookAtExpressions = lambda *_: {},
) -> list[Finding]:
    """All findings, worst first. `path` is the configuration file, if there is one."""
    findings = examine(config, gather(config, look_at_expressions))
    if path is not None:
        text = path.read_text(encoding="utf-8-sig")
        findings += check_file(path, text, path.stat().st_mode, config)
    return worst_first(findings)


def examine(config: Config, gathered: Gathered) -> list[Finding]:
    return list(_examine(config, gathered))


def _examine(config: Config, gathered: Gathered) -> Iterator[Finding]:
    yield from check_tools(gathered.tools, needed=bool(config.aggregate))
    yield from check_left_consumers(config.log, gathered.left)
    yield from check_names(gathered.undecodable)
    facts, source = gathered.source, config.source
    if isinstance(facts, PenstockError):
        why = "Nothing else about the server can be checked."
        yield from_error("connection", "dsn in [source]", facts, why)
        return
    yield Finding("connection", "ok", "dsn in [source]", "the server can be reached")
    heartbeats = config.heartbeat.interval_min > 0
    yield from check_server(source, facts)
    yield from check_role(facts, heartbeats=heartbeats)
    yield from _connections(source, gathered, facts)
    yield from check_wal2json(source, facts.server, gathered.wal2json)
    yield from check_tables(config, facts)
    if source.publishes:
        yield from check_publication(config, facts)
    yield from check_slot_facts(source, facts)
    yield from check_aggregates(config, facts, gathered.destinations, gathered.log_id)
    yield from check_expressions(gathered.expressions)


def _connections(source: SourceConfig, gathered: Gathered, facts: SourceFacts) -> Iterator[Finding]:
    error = gathered.replication_error
    # A missing privilege and a lack of walsenders have findings of their own.
    told = not facts.role.may_replicate or isinstance(error, SlotLimitReached)
    if source.mode == "poll":
        what = "an ordinary connection is enough: the slot is polled"
        yield Finding("polling_connection", "ok", "dsn in [source]", what)
    elif error is None:
        what = "a replication connection can be opened"
        yield Finding("replication_connection", "ok", "dsn in [source]", what)
    elif not told:
        why = "Capture is a replication connection."
        yield from_error("replication_connection", "dsn in [source]", error, why)
    if gathered.setup_error is not None:
        yield Finding(
            "setup_connection",
            "warning",
            "setup_dsn in [source]",
            gathered.setup_error.problem,
            "Set-up and tear-down connect with it; capture does not.",
            gathered.setup_error.remedy,
        )


# --- gathering ----------------------------------------------------------------------------------


def gather(config: Config, look_at_expressions: LookAtExpressions = lambda *_: {}) -> Gathered:
    source = config.source
    wal2json = PluginProbe(None, "the server was not reached")
    replication_error: PenstockError | None = None
    setup_error: PenstockError | None = None
    facts: SourceFacts | PenstockError
    undecodable: Sequence[UndecodableName] = ()
    try:
        with connect(source.conninfo) as connection:
            if source.mode == "poll":
                require_own_session(connection, source.conninfo)
            undecodable = read_undecodable_names(connection)
            facts = read_facts(connection, source)
            wal2json = _probe(connection, facts, "wal2json")
        if source.mode == "stream":
            replication_error = _try_replication(source)
    except PenstockError as error:
        facts = error
    if source.setup_dsn is not None:
        setup_error = _try_setup(source)
    tools = read_tools()
    destinations = {each.name: _look_at(each, config) for each in config.aggregate}
    expressions: Expressions | PenstockError = {}
    # Tools that are missing have findings of their own.
    can_ask = all(finding.level == "ok" for finding in check_tools(tools, needed=True))
    if not isinstance(facts, PenstockError) and can_ask:
        try:
            expressions = look_at_expressions(config, facts, destinations)
        except PenstockError as error:
            expressions = error
    return Gathered(
        facts,
        wal2json,
        replication_error,
        setup_error,
        tools,
        destinations,
        our_log_id(config),
        expressions,
        held_for_nobody(config),
        undecodable,
    )


def _look_at(aggregate: AggregateConfig, config: Config) -> Destination | PenstockError:
    try:
        dsn = aggregate.conninfo(config.source.conninfo)
        with connect(dsn) as connection:
            require_own_session(connection, dsn)
            name = f"[[aggregate]] {aggregate.name}"
            return read_destination(connection, name, [(aggregate, connection.info.user)])
    except PenstockError as error:
        return error


def _try_replication(source: SourceConfig) -> PenstockError | None:
    try:
        connect(source.conninfo, replication="database").close()
    except PenstockError as error:
        return error
    return None


def _try_setup(source: SourceConfig) -> PenstockError | None:
    try:
        with connect_for_setup(source) as connection:
            capture_role_name(source, connection)
    except PenstockError as error:
        return error
    return None


def _probe(connection: psycopg.Connection, facts: SourceFacts, plugin: str) -> PluginProbe:
    """Try a TEMPORARY slot: a missing plugin is refused at once, before any waiting."""
    if facts.server.free_slots <= 0:
        return PluginProbe(None, "no replication slot is free")
    if not facts.role.may_replicate:
        return PluginProbe(None, f'role "{facts.role.name}" may not replicate')
    if facts.server.wal_level != "logical":
        return PluginProbe(None, "wal_level is not logical")
    name = f"penstock_probe_{uuid.uuid4().hex[:16]}"
    try:
        # Both, for the wait for open transactions obeys one or the other.
        connection.execute(f"SET statement_timeout = {_PROBE_TIMEOUT_MS}".encode())
        connection.execute(f"SET lock_timeout = {_PROBE_TIMEOUT_MS}".encode())
        connection.execute(
            "SELECT pg_create_logical_replication_slot(%s, %s, temporary => true)", [name, plugin]
        )
        connection.execute("SELECT pg_drop_replication_slot(%s)", [name])
    except (psycopg.errors.QueryCanceled, psycopg.errors.LockNotAvailable):
        return PluginProbe(True)  # it came as far as waiting for open transactions
    except psycopg.errors.UndefinedFile:
        return PluginProbe(False)
    except psycopg.Error as error:
        return PluginProbe(None, error.diag.message_primary or "the connection was lost")
    return PluginProbe(True)
