"""The publication: is it there, does it hold our tables, and does it leave anything out."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.config import Config
from penstock.errors import PublicationMissing, SlotBeforePublication, SourceError
from penstock.names import quote
from penstock.ops.facts import SourceFacts
from penstock.ops.findings import Finding, from_error
from penstock.ops.outcome import after_setup
from penstock.ops.published_targets import narrowed_sql
from penstock.postgres.publications import (
    OPERATIONS,
    PublicationFacts,
    PublishedTable,
    publish_again,
    publish_operations,
    publish_via_root,
)
from penstock.postgres.tables import TableFacts
from penstock.printed_sql import SqlKind, printed


def check_publication(config: Config, facts: SourceFacts) -> Iterator[Finding]:
    source = config.source
    publication = facts.publications.get(source.publication)
    subject = f"publication {source.publication}"
    if publication is None:
        missing: SourceError = PublicationMissing(source.publication)
        if facts.slot is not None:
            # Set-up refuses this, so it is no remedy.
            missing = SlotBeforePublication(source.slot, source.publication)
        yield from_error("publication", subject, missing, "Capture would have nothing to decode.")
        return
    tables = [facts.tables[t.name] for t in source.tables if t.name in facts.tables]
    yield from _coverage(publication, tables, subject)
    yield from _operations(publication, subject)
    _, after = after_setup(config, facts)
    for table in tables:
        now: list[Finding] = []
        if (held := publication.entry(table)) is not None:
            yield from _filters(publication, held)
            now = list(_partitions(publication, table))
        # What set-up would add may take over the table's name.
        later = [finding for finding in _partitions(after, table) if finding.level == "error"]
        yield from dict.fromkeys((*now, *later))
    yield from _extra(publication, facts, subject)


def _coverage(
    publication: PublicationFacts, tables: list[TableFacts], subject: str
) -> Iterator[Finding]:
    missing = [table.name for table in tables if publication.entry(table) is None]
    for name in missing:
        yield Finding(
            "publication_tables",
            "error",
            str(name),
            f'publication "{publication.name}" does not hold the table',
            "Its changes do not reach Penstock.",
            str(
                printed(
                    SqlKind.PUBLISH_TABLE,
                    f"ALTER PUBLICATION {quote(publication.name)} ADD TABLE {name.sql}",
                )
            ),
        )
    if not missing:
        yield Finding("publication_tables", "ok", subject, "it holds every configured table")


def _operations(publication: PublicationFacts, subject: str) -> Iterator[Finding]:
    if missing := [o for o in OPERATIONS if o not in publication.operations]:
        yield Finding(
            "publication_operations",
            "warning",
            subject,
            f"it does not publish {', '.join(missing)}",
            "These changes do not reach Penstock, and aggregates go wrong without notice.",
            str(publish_operations(publication)),
        )


def _filters(publication: PublicationFacts, held: PublishedTable) -> Iterator[Finding]:
    whole = publish_again(SqlKind.PUBLISH_WHOLE_TABLE, publication, held.name)
    fix = whole.after("If that is not intended")
    if held.row_filter:
        yield Finding(
            "row_filter",
            "warning",
            str(held.name),
            f"the publication sends only rows that match {held.row_filter}",
            "Other rows' changes are dropped, and an UPDATE across the filter arrives as INSERT or "
            "DELETE.",
            fix,
        )
    if held.columns is not None:
        yield Finding(
            "column_list",
            "warning",
            str(held.name),
            f"the publication sends only the columns {', '.join(held.columns)}",
            "The others never reach a pipeline.",
            fix,
        )


def _partitions(publication: PublicationFacts, table: TableFacts) -> Iterator[Finding]:
    name = publication.sent_under(table)
    if name is None:
        yield Finding(
            "partition_root",
            "error",
            str(table.name),
            "changes are published under the names of the partitions, not of the table",
            "Penstock looks for them under the table's name, and would see none.",
            str(publish_via_root(publication)),
        )
    elif table.partitioned:
        yield Finding(
            "partition_root",
            "info",
            str(table.name),
            f"{len(table.leaves)} partitions are published under the name of their root",
            "TRUNCATE of a single partition sends nothing; DETACH and DROP of one neither.",
        )
    if name not in (None, table.name):
        yield Finding(
            "partition_root",
            "error",
            str(table.name),
            f"it is a partition, and its changes are published under the name of {name}",
            "Penstock looks for them under the partition's name, and would see none.",
            f'Name {name} in tables in [source] instead of "{table.name}"',
        )


def _extra(publication: PublicationFacts, facts: SourceFacts, subject: str) -> Iterator[Finding]:
    if publication.all_tables:
        yield Finding(
            "publication_extra",
            "info",
            subject,
            "it is FOR ALL TABLES",
            "Every change in the database is sent, and any table without a replica identity "
            "refuses UPDATE and DELETE.",
            str(narrowed_sql(publication, facts)),
        )
        return
    others = [str(held.name) for held in publication.tables if held.name not in facts.tables]
    others += [f"schema {quote(schema)}" for schema in publication.schemas]
    if others:
        yield Finding(
            "publication_extra",
            "info",
            subject,
            f"it also holds {', '.join(others)}",
            "Their changes are sent and kept in the log too.",
        )
