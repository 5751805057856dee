"""What set-up would do: configuration and facts in, steps with their SQL out. Pure.

The order keeps the application safe: replica identities before the publication (a published table
without one refuses UPDATE and DELETE), then the targets, the slot last (the server keeps WAL from
then on, and changes older than the publication could not be decoded with it).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from penstock.config import Config, SourceConfig
from penstock.errors import (
    NotPublishable,
    PrivilegeMissing,
    ServerIsStandby,
    SlotBeforePublication,
    SlotLimitReached,
    TableMissing,
    UnsafeIdentity,
    new_log,
)
from penstock.names import TableName, quote
from penstock.ops.aggregate_plan import plan_aggregates
from penstock.ops.destinations import Destination
from penstock.ops.facts import SourceFacts
from penstock.ops.outcome import (
    identity_changes,
    publication_after,
    sends_generated,
    tables_after,
    unpublished,
)
from penstock.ops.source_grants import hidden_rows, missing_reads
from penstock.ops.steps import Plan, Step
from penstock.postgres.catalog import check_wal_level
from penstock.postgres.failures import slot_limit_fix
from penstock.postgres.identity import Wanted, write_breakers
from penstock.postgres.output_plugins import check_plugin
from penstock.postgres.publications import (
    MARK,
    OPERATIONS,
    PublicationFacts,
    PublishedTable,
    listed,
    publish_operations,
    publish_via_root,
)
from penstock.postgres.slots import check_failover, check_health, check_kind, create_sql, drop_sql
from penstock.postgres.tables import TableFacts, set_logged
from penstock.printed_sql import SqlKind, printed
from penstock.words import counted


def plan_setup(
    config: Config, facts: SourceFacts, destinations: Sequence[Destination] = ()
) -> Plan:
    """Raises the named error of whatever stands in the way, before anything is changed."""
    source = config.source
    _check_server(source, facts)
    tables = {table.name: existing_table(table.name, facts) for table in source.tables}
    publication = facts.publications.get(source.publication) if source.publishes else None
    if facts.slot is not None:
        check_health(check_kind(facts.slot, source.slot, facts.server.database, source.plugin))
        if source.publishes and publication is None:
            raise SlotBeforePublication(source.slot, source.publication)
    if not source.publishes:
        for table in tables.values():
            check_no_root(table)

    identities = [
        change
        for table in source.tables
        for change in identity_changes(tables[table.name], table.replica_identity)
    ]
    after = tables_after(tables, identities)
    generated = sends_generated(config, after, facts.server.major)
    published = publication_after(source, publication, tables, generated)
    _check_writes(after, published, facts)
    aggregates = plan_aggregates(config, facts, after, published, destinations)
    grants = list(_capture_role_steps(facts, heartbeats=config.heartbeat.interval_min > 0))
    for hidden in hidden_rows(config.aggregate, facts):
        raise hidden
    reads = list(missing_reads(config.aggregate, facts))
    lacking = [
        *(statement for step in grants for statement in step.statements),
        *(statement for mine, statement in reads if not mine),
    ]
    altered = [table for table, _ in identities]
    _check_privileges(source, facts, altered, publication, lacking)
    publishing = _publication_steps(source, publication, tables, generated)
    steps = [
        *_adjust_publication(publication, tables, generated),
        *(_identity_step(table, wanted) for table, wanted in identities),
        *(publishing if source.publishes else ()),
        *grants,
        *_reading_steps(facts.capture_user, [statement for _, statement in reads]),
        *aggregates.steps,
        *_slot_steps(source, facts),
    ]
    notes = (
        *(_identity_note(table, wanted) for table, wanted in identities if wanted.kind == "full"),
        *_publication_notes(publication, tables),
        *(_name_notes(published, tables) if source.publishes else ()),
        *_slot_notes(source, facts),
        *aggregates.notes,
    )
    return Plan(tuple(steps), notes)


def _check_server(source: SourceConfig, facts: SourceFacts) -> None:
    check_wal_level(facts.server.wal_level)
    check_plugin(facts.server, source.plugin)
    if source.failover:
        check_failover(facts.server.major)
    if facts.server.in_recovery:
        raise ServerIsStandby(
            "the server is a standby, where nothing can be created",
            remedy="Name the primary in `dsn` (or `setup_dsn`) in [source]",
        )
    if facts.slot is None and facts.server.free_slots <= 0:
        raise SlotLimitReached(
            f"all {facts.server.max_slots} replication slots of the server are in use",
            remedy=slot_limit_fix(),
        )


def existing_table(name: TableName, facts: SourceFacts) -> TableFacts:
    table = facts.tables.get(name)
    if table is None:
        raise TableMissing(
            f'table {name} does not exist in database "{facts.server.database}"',
            remedy="Correct `tables` in [source]; a name without a schema means public",
            table=name,
        )
    if not table.publishable:
        kind = table.spelled_kind
        raise NotPublishable(
            f"{name} cannot be published ({kind}): its changes are not in the logical WAL",
            remedy="Remove it from `tables` in [source]"
            + (f", or run {set_logged(name)}" if kind == "unlogged table" else ""),
            table=name,
        )
    return table


def check_no_root(table: TableFacts) -> None:
    """Refuse a partitioned table where wal2json decodes: it names the partitions only."""
    if table.partitioned:
        raise NotPublishable(
            f"{table.name} is partitioned, and wal2json gives its changes under the names of its "
            "partitions",
            remedy='Name the partitions in `tables`, or set plugin = "pgoutput" in [source]',
            table=table.name,
        )


def _check_writes(
    after: dict[TableName, TableFacts], published: PublicationFacts, facts: SourceFacts
) -> None:
    """Refuse what would make the application's own UPDATE and DELETE fail.

    `after` and `published`, our publication, are as set-up will leave them.
    """
    for table in after.values():
        for one in (table, *table.leaves):
            virtual = one.generated("virtual")
            if one.identity == "full" and virtual:
                raise UnsafeIdentity(
                    f"table {one.name} cannot have replica identity FULL: it has virtual "
                    f"generated columns ({', '.join(virtual)}), and the application's UPDATE and "
                    "DELETE would fail",
                    remedy=(
                        "Add a primary key or a unique index without nullable columns, or make "
                        "the generated columns STORED"
                    ),
                    table=one.name,
                )
    for publication in {**facts.publications, published.name: published}.values():
        for table in after.values():
            for one in (table, *table.leaves):
                for what, fix in write_breakers(one, publication, facts.server.major):
                    raise UnsafeIdentity(
                        f'publication "{publication.name}" and table {one.name} do not fit: '
                        f"{what}, so the application's UPDATE and DELETE would fail",
                        remedy=fix,
                        table=one.name,
                    )


def _identity_step(table: TableFacts, wanted: Wanted) -> Step:
    what = wanted.index.name if wanted.index else wanted.kind.upper()
    return Step(f"replica identity of {table.name}: {what} ({wanted.why})", (wanted.sql(table),))


def _identity_note(table: TableFacts, wanted: Wanted) -> str:
    return (
        f"{table.name} gets replica identity FULL ({wanted.why}): every UPDATE and DELETE writes "
        "the whole old row to the WAL"
    )


def _adjust_publication(
    publication: PublicationFacts | None, tables: dict[TableName, TableFacts], generated: bool
) -> Iterator[Step]:
    """Options of a publication of our own; before the identities, which may depend on them."""
    if publication is None or not publication.ours:
        return
    options = []
    if generated and not publication.generated_columns:
        options.append("publish_generated_columns = stored")
    if not publication.via_root and any(table.partitioned for table in tables.values()):
        options.append("publish_via_partition_root = true")
    if options:
        yield Step(
            f'options of publication "{publication.name}"',
            (f"ALTER PUBLICATION {quote(publication.name)} SET ({', '.join(options)})",),
        )


def _publication_steps(
    source: SourceConfig,
    publication: PublicationFacts | None,
    tables: dict[TableName, TableFacts],
    generated: bool,
) -> Iterator[Step]:
    name = quote(source.publication)
    if publication is None:
        options = "publish_via_partition_root = true"
        options += ", publish_generated_columns = stored" if generated else ""
        held = ", ".join(listed(table) for table in tables.values())
        yield Step(
            f'publication "{source.publication}" of {counted(len(tables), "table")}',
            (
                f"CREATE PUBLICATION {name} FOR TABLE {held} WITH ({options})",
                f"COMMENT ON PUBLICATION {name} IS '{MARK}'",
            ),
        )
        return
    if missing := unpublished(publication, tables):
        added = ", ".join(listed(table) for table in missing)
        yield Step(
            f'{counted(len(missing), "table")} more in publication "{source.publication}"',
            (f"ALTER PUBLICATION {name} ADD TABLE {added}",),
        )


def _capture_role_steps(facts: SourceFacts, *, heartbeats: bool) -> Iterator[Step]:
    role = facts.capture_role
    if role is None:
        raise PrivilegeMissing(
            f'the server has no role "{facts.capture_user}", the user of `dsn`',
            remedy="Create it as `penstock docs roles` shows, or correct `dsn` in [source]",
            role=facts.capture_user,
        )
    name = quote(role.name)
    if not role.may_replicate:
        yield Step(f"role {role.name} may replicate", (f"ALTER ROLE {name} REPLICATION",))
    if not role.can_connect:
        database = quote(facts.server.database)
        yield Step(
            f"role {role.name} may connect", (f"GRANT CONNECT ON DATABASE {database} TO {name}",)
        )
    if heartbeats and role.forbidden_messages:
        yield Step(
            f"role {role.name} may send heartbeats",
            tuple(f"GRANT EXECUTE ON FUNCTION {f} TO {name}" for f in role.forbidden_messages),
        )


def _reading_steps(role: str, statements: list[str]) -> Iterator[Step]:
    if statements:
        yield Step(f"role {role} may seed and verify aggregates", tuple(statements))


def _slot_steps(source: SourceConfig, facts: SourceFacts) -> Iterator[Step]:
    if facts.slot is None:
        yield Step(
            f'replication slot "{source.slot}"',
            (create_sql(source.slot, failover=source.failover, plugin=source.plugin),),
            kind="create slot",
            undo=drop_sql(source.slot),
        )


def _check_privileges(
    source: SourceConfig,
    facts: SourceFacts,
    altered: list[TableFacts],
    publication: PublicationFacts | None,
    lacking: list[str],
) -> None:
    """All that the set-up role lacks, in one error with the SQL for all of it.

    `lacking`: what capture's role lacks, and this one may not give it.
    """
    role = facts.role
    if role.superuser:
        return
    me = quote(role.name)
    fixes: dict[str, None] = {}
    must_own = list(altered)
    if publication is None and source.publishes:
        must_own += facts.tables.values()
        if not role.can_create:
            fixes[f"GRANT CREATE ON DATABASE {quote(facts.server.database)} TO {me}"] = None
    elif publication is not None:
        added = unpublished(publication, facts.tables)
        must_own += added
        if added and not publication.owned:
            what = f"PUBLICATION {quote(publication.name)}"
            fixes[owning_sql(what, publication.owner, publication.owner_superuser, me)] = None
    for table in must_own:
        if not table.owned:
            what = f"TABLE {table.name.sql}"
            fixes[owning_sql(what, table.owner, table.owner_superuser, me)] = None
    if facts.slot is None and not role.may_replicate:
        fixes[f"ALTER ROLE {me} REPLICATION"] = None
    fixes.update(dict.fromkeys(lacking))
    if fixes:
        raise PrivilegeMissing(
            f'role "{role.name}" may not do all that set-up needs',
            remedy=printed(SqlKind.SETUP_PRIVILEGES, *fixes).after("Run as a superuser")
            + "\n`penstock docs roles` explains them",
            role=role.name,
        )


def owning_sql(what: str, owner: str, superuser: bool, me: str) -> str:
    """Makes the role `me` an owner of `what`."""
    # Membership in a superuser's role would make a superuser of us.
    return f"ALTER {what} OWNER TO {me}" if superuser else f"GRANT {quote(owner)} TO {me}"


def _publication_notes(
    publication: PublicationFacts | None, tables: dict[TableName, TableFacts]
) -> Iterator[str]:
    """What the user's own publication does differently; never changed in silence."""
    if publication is None:
        return
    if not publication.ours:
        yield f'publication "{publication.name}" was not made by Penstock and is kept as it is'
    for held in publication.tables:
        if held.row_filter or held.columns is not None:
            yield f"{held.name} is published with {_filters(held)}, which is kept"
    extra = [str(held.name) for held in publication.tables if held.name not in tables]
    if extra:
        yield f'publication "{publication.name}" also holds {", ".join(extra)}, which is kept'
    if missing := [op for op in OPERATIONS if op not in publication.operations]:
        yield publish_operations(publication).after(
            f'publication "{publication.name}" does not publish {", ".join(missing)}'
        )


def _name_notes(published: PublicationFacts, tables: dict[TableName, TableFacts]) -> Iterator[str]:
    """Tables that are not found in the log by their own name; an aggregate of one is refused. Also
    partitions that others may have published.
    """
    leaves = {leaf.name: leaf for table in tables.values() for leaf in table.leaves}
    held = {each.name: leaves[each.name] for each in published.tables if each.name in leaves}
    under = {name: published.sent_under(table) for name, table in {**tables, **held}.items()}
    if roots := [str(name) for name, sent in under.items() if sent is None]:
        yield publish_via_root(published).after(
            f"changes of {', '.join(roots)} come under the names of the partitions"
        )
    for name, sent in under.items():
        if sent not in (None, name):
            yield f"changes of {name} come under the name of {sent}, of which it is a partition"


def _filters(held: PublishedTable) -> str:
    parts = [f"the row filter {held.row_filter}" if held.row_filter else ""]
    parts.append(f"the columns {', '.join(held.columns)} only" if held.columns is not None else "")
    return " and ".join(part for part in parts if part)


def _slot_notes(source: SourceConfig, facts: SourceFacts) -> Iterator[str]:
    if facts.slot is not None and source.failover and not facts.slot.failover:
        yield (
            f'replication slot "{source.slot}" exists without failover and is kept. To make it '
            f"anew, and a new log with it: {new_log()}"
        )
