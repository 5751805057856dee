"""The tables: kind, key, replica identity of each and of each partition, generated columns."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import TypeAlias

from penstock.config import Config, SourceTable
from penstock.errors import PenstockError
from penstock.names import TableName
from penstock.ops.facts import SourceFacts
from penstock.ops.findings import Finding, from_error
from penstock.ops.old_values import consequence, drop_sql, old_value_errors, table_needs
from penstock.ops.outcome import after_setup
from penstock.ops.plan import check_no_root, existing_table
from penstock.pipelines.old_values import known_old_values
from penstock.postgres.identity import (
    Wanted,
    too_wide,
    wanted_for_leaf,
    wanted_identity,
    write_breakers,
)
from penstock.postgres.index_width import MAX_ENTRY_BYTES
from penstock.postgres.publications import PublicationFacts, publish_generated
from penstock.postgres.tables import TableFacts, set_logged
from penstock.printed_sql import SqlKind, printed

# By table or partition, what aggregates need of its old values and is not in the WAL now.
_Lacking: TypeAlias = dict[TableName, list[str]]
# Where set-up would change it.
_SETUP = "Run `penstock setup`, or"


def check_tables(config: Config, facts: SourceFacts) -> Iterator[Finding]:
    source = config.source
    lacking = _lacking(config, facts)
    after, published = after_setup(config, facts)
    for configured in source.tables:
        try:
            table = existing_table(configured.name, facts)
            if not source.publishes:
                check_no_root(table)
        except PenstockError as error:
            yield from_error("table", str(configured.name), error, "It cannot be published.")
            continue
        yield from _writes(table, after[table.name], facts, published)
        yield from _identity(table, configured, lacking, table_needs(config.aggregate, table))
        yield from _leaves(table, configured, lacking)
        yield from _wide_indexes(table, facts)
        if table.primary_key is None:
            yield _no_primary_key(table)
        yield from _generated(table, source.publication, facts)
        yield _old_values(table)


def _lacking(config: Config, facts: SourceFacts) -> _Lacking:
    found: _Lacking = defaultdict(list)
    for aggregate in config.aggregate:
        for error in old_value_errors(aggregate, config, facts, facts.tables):
            if aggregate.verifiable or not error.skipped:
                why = f"{error.problem}. {consequence(aggregate, error)}"
                found[error.table].append(why)
    return found


def _writes(
    table: TableFacts, after: TableFacts, facts: SourceFacts, published: PublicationFacts
) -> Iterator[Finding]:
    """What breaks the application, in any publication that holds the table; also what would break
    it if set-up added the table to ours, which set-up refuses.
    """
    refused = "The server refuses the application's UPDATE and DELETE on it."
    judged = [(table, publication, refused) for publication in facts.publications.values()]
    ours = facts.publications.get(published.name)
    # One that set-up finds no identity for has a finding of its own.
    identified = all(one.identity_columns for one in _all(after) if one.publishable)
    if ours is not None and ours.entry(table) is None and identified:
        judged.append((after, published, "Set-up cannot publish it: UPDATE and DELETE would fail."))
    for whole, publication, why in judged:
        for one in whole.leaves or (whole,):
            for what, fix in write_breakers(one, publication, facts.server.major):
                name = f'publication "{publication.name}"'
                yield Finding(
                    "application_writes", "error", str(one.name), f"{name}: {what}", why, fix
                )


def _identity(
    table: TableFacts, configured: SourceTable, lacking: _Lacking, needed_old: set[str]
) -> Iterator[Finding]:
    name = str(table.name)
    try:
        wanted = wanted_identity(table, configured.replica_identity)
    except PenstockError as error:
        yield from_error("replica_identity", name, error, "Set-up cannot go on.")
        return
    if not wanted.holds_for(table):
        needed = [what for part in _all(table) for what in lacking.get(part.name, ())]
        yield Finding(
            "replica_identity",
            "error" if needed else "warning",
            name,
            f'replica identity is {_spell(table)}, and replica_identity = "'
            f'{configured.replica_identity}" asks for another',
            " ".join(needed)
            or "It decides which old values are in the WAL; without one, UPDATE and DELETE fail as "
            "soon as the table is published.",
            printed(SqlKind.IDENTITY, wanted.sql(table)).after(_SETUP),
        )
    elif table.identity == "full":
        fix = "; or ".join(
            str(printed(SqlKind.IDENTITY, Wanted("index", index).sql(table)))
            for index in table.candidates
            if needed_old <= set(index.columns) and index not in too_wide(table)
        )
        yield Finding(
            "replica_identity",
            "info",
            name,
            "replica identity is FULL",
            "Every UPDATE and DELETE writes the whole old row to the WAL. That costs WAL, and "
            "gives the old value of every column.",
            f"If an index covers the columns that you need: {fix}" if fix else "",
        )
    else:
        yield Finding("replica_identity", "ok", name, f"replica identity is {_spell(table)}")


def _leaves(table: TableFacts, configured: SourceTable, lacking: _Lacking) -> Iterator[Finding]:
    """Each leaf's own identity decides; new leaves start with DEFAULT, whatever the root has."""
    if not table.partitioned:
        return
    try:
        root = wanted_identity(table, configured.replica_identity)
        leaves = [leaf for leaf in table.leaves if leaf.publishable]
        wanted = {leaf.oid: wanted_for_leaf(leaf, root, "auto") for leaf in leaves}
    except PenstockError as error:
        yield from_error("partition_identity", str(table.name), error, "Set-up cannot go on.")
        return
    different = [leaf for leaf in leaves if not wanted[leaf.oid].holds_for(leaf)]
    for leaf in different:
        yield Finding(
            "partition_identity",
            "error" if leaf.name in lacking else "warning",
            str(leaf.name),
            f"replica identity of the partition is {_spell(leaf)}, of its root {_spell(table)}",
            " ".join(lacking.get(leaf.name, ()))
            or "The partition's own identity decides what is in the WAL, but the stream describes "
            "it with the root's: old values would be missing.",
            printed(SqlKind.IDENTITY, wanted[leaf.oid].sql(leaf)).after(_SETUP),
        )
    if not different:
        yield Finding(
            "partition_identity",
            "ok",
            str(table.name),
            f"{len(table.leaves)} partitions agree with their root; a new partition starts with "
            "DEFAULT, so run doctor (or setup) again after adding one",
        )
    for leaf in table.leaves:
        if not leaf.publishable:
            yield Finding(
                "partition_kind",
                "warning",
                str(leaf.name),
                f"the partition is {leaf.persistence}, a {leaf.kind}",
                "Its changes are not in the WAL.",
                str(set_logged(leaf.name)) if leaf.persistence == "unlogged" else "",
            )


def _wide_indexes(table: TableFacts, facts: SourceFacts) -> Iterator[Finding]:
    """Earlier versions of doctor advised an index over columns of any length."""
    if indexes := too_wide(table):
        names = ", ".join(index.name for index in indexes)
        sql = drop_sql(table, indexes, facts)
        yield Finding(
            "index_width",
            "warning",
            str(table.name),
            f"values may be too long for index {names}",
            f"A row with more than about {MAX_ENTRY_BYTES:,} bytes in these columns cannot be "
            "written: the application's INSERT fails.",
            str(sql) if sql else "Give its columns a small bound, such as varchar(n)",
        )


def _no_primary_key(table: TableFacts) -> Finding:
    return Finding(
        "primary_key",
        "info",
        str(table.name),
        "the table has no primary key that can be a replica identity",
        "Rows can be told apart only by a unique index or by all their columns.",
        "Give it a primary key, if it has a natural one",
    )


def _generated(table: TableFacts, name: str, facts: SourceFacts) -> Iterator[Finding]:
    publication = facts.publications.get(name)
    if virtual := table.generated("virtual"):
        yield Finding(
            "generated_columns",
            "info",
            str(table.name),
            f"virtual generated columns are never sent: {', '.join(virtual)}",
            "They are computed when read, and are not in the WAL.",
        )
    stored = table.generated("stored")
    if not stored or (publication is not None and publication.generated_columns):
        return
    if facts.server.major >= 18:
        fix = str(publish_generated(name))
    else:
        fix = "Compute them downstream, or upgrade to PostgreSQL 18, which can send them"
    in_identity = set(stored) & set(table.identity_columns)
    yield Finding(
        "generated_columns",
        "warning" if in_identity and table.identity != "full" else "info",
        str(table.name),
        f"stored generated columns are not sent: {', '.join(stored)}",
        "A pipeline that needs them gets no value"
        + (", and they are part of the replica identity." if in_identity else "."),
        fix,
    )


def _old_values(table: TableFacts) -> Finding:
    """M4.2: for each operation, which old values are in the WAL; the weakest leaf counts."""
    parts = tuple(leaf for leaf in table.leaves if leaf.publishable) or (table,)
    in_all = set.intersection(*(known_old_values(table, part) for part in parts))
    known = [column.name for column in table.columns if column.name in in_all]
    unknown = [c.name for c in table.columns if c.name not in known and not c.generated]
    name = str(table.name)
    if not known:
        differ = table.identity_columns and all(part.identity_columns for part in parts)
        why = (
            "partitions have another identity than their root" if differ else "there is no identity"
        )
        return Finding(
            "old_values",
            "info",
            name,
            f"INSERT: all new values. UPDATE, DELETE: no old values, for {why}",
        )
    if not unknown:
        return Finding(
            "old_values",
            "info",
            name,
            "INSERT: all new values. UPDATE: all old and new values. DELETE: all old values",
        )
    keys, rest = ", ".join(known), ", ".join(unknown)
    return Finding(
        "old_values",
        "info",
        name,
        f"INSERT: all new values. UPDATE: all new values, old values of {keys}. "
        f"DELETE: old values of {keys}",
        f"Old values of {rest} are not in the WAL: an aggregate by one of them cannot subtract, "
        "unless the column is immutable (UPDATE only).",
        str(printed(SqlKind.IDENTITY, *(Wanted("full").sql(part) for part in _all(table)))),
    )


def _all(table: TableFacts) -> tuple[TableFacts, ...]:
    return (table, *table.leaves)


def _spell(table: TableFacts) -> str:
    match table.identity:
        case "index":
            return f"index {table.identity_index.name}" if table.identity_index else "a lost index"
        case "default":
            keys = ", ".join(table.identity_columns)
            return f"DEFAULT (primary key {keys})" if keys else "DEFAULT, without a primary key"
        case kind:
            return kind.upper()
