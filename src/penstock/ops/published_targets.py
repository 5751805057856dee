"""What Penstock writes must not come back to it: no table that it writes in the source's database
may be in our publication. Pure; set-up refuses what doctor reports.

Else each batch, which moves `penstock.progress`, would be a commit in the log and so make the next
batch, without end; and the server refuses to update a published target without a replica identity.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from penstock.errors import TargetClash
from penstock.names import TableName, quote
from penstock.ops.destinations import Destination
from penstock.ops.facts import SourceFacts
from penstock.pipelines.bookkeeping import SCHEMA
from penstock.postgres.publications import PublicationFacts, listed
from penstock.printed_sql import PrintedSql, SqlKind, printed

# `staged` is unlogged, and so in no publication.
_LOGGED = (TableName(SCHEMA, "progress"), TableName(SCHEMA, "parked"))


def published_targets(
    destination: Destination, facts: SourceFacts, publication: PublicationFacts
) -> Iterator[TargetClash]:
    """One error for each way in which tables got into the publication."""
    if not destination.is_source(facts):
        return
    found: defaultdict[str, dict[TableName, None]] = defaultdict(dict)
    for name in (*_LOGGED, *(target.table for target, _ in destination.targets)):
        for remedy in _remedies(name, destination, facts, publication):
            found[remedy][name] = None
    for remedy, names in found.items():
        yield TargetClash(
            f'publication "{publication.name}" sends {", ".join(map(str, names))}, which Penstock '
            "itself writes",
            remedy=f"{remedy}\nOr let target_dsn name another database for the targets",
            table=next(iter(names)),
        )


def _remedies(
    name: TableName, destination: Destination, facts: SourceFacts, publication: PublicationFacts
) -> Iterator[str]:
    """Each takes a reason away for which the table is published. The source's tables stay."""
    there = destination.facts.tables.get(name)
    # One that is missing may be published by its schema as soon as it is made.
    parts = (there.table, *there.table.leaves) if there else ()
    if parts and not any(part.publishable for part in parts):
        return
    names = {name, *(part for one in parts for part in (one.name, *one.ancestors))}
    if publication.all_tables:
        yield narrowed_sql(publication, facts).after("Run")
        return
    quoted = quote(publication.name)
    for held in publication.tables:
        if held.name in names:
            drop = f"ALTER PUBLICATION {quoted} DROP TABLE {held.name.sql}"
            yield printed(SqlKind.UNPUBLISH_TABLE, drop).after("Run")
    for schema in publication.schemas:
        if schema in {each.schema for each in names}:
            ours = [table for table in facts.tables.values() if table.name.schema == schema]
            named = {held.name for held in publication.tables}
            added = ", ".join(listed(table) for table in ours if table.name not in named)
            drop = f"ALTER PUBLICATION {quoted} DROP TABLES IN SCHEMA {quote(schema)}"
            add = [f"ALTER PUBLICATION {quoted} ADD TABLE {added}"] if added else []
            sql = printed(SqlKind.UNPUBLISH_SCHEMA, "BEGIN", drop, *add, "COMMIT")
            yield sql.after("Run")


def narrowed_sql(publication: PublicationFacts, facts: SourceFacts) -> PrintedSql:
    """Makes one FOR ALL TABLES anew with ours only; in one transaction, so that no change is
    decoded without it.
    """
    name = quote(publication.name)
    tables = ", ".join(listed(table) for table in facts.tables.values() if table.publishable)
    held = f" FOR TABLE {tables}" if tables else ""
    options = "publish_via_partition_root = true"
    options += ", publish_generated_columns = stored" if publication.generated_columns else ""
    return printed(
        SqlKind.NARROW_PUBLICATION,
        "BEGIN",
        f"DROP PUBLICATION {name}",
        f"CREATE PUBLICATION {name}{held} WITH ({options})",
        "COMMIT",
    )
