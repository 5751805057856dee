"""The tables and the publication as set-up will leave them. Pure.

What would be wrong even then, set-up refuses and doctor reports.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from penstock.config import Config, SourceConfig
from penstock.errors import PenstockError
from penstock.names import TableName
from penstock.ops.facts import SourceFacts
from penstock.pipelines.inputs import reads_generated
from penstock.pipelines.unsent import GENERATED_VERSION
from penstock.postgres.identity import (
    Wanted,
    needs_generated_columns,
    wanted_for_leaf,
    wanted_identity,
)
from penstock.postgres.publications import MARK, OPERATIONS, PublicationFacts, PublishedTable
from penstock.postgres.tables import TableFacts


def after_setup(
    config: Config, facts: SourceFacts
) -> tuple[dict[TableName, TableFacts], PublicationFacts]:
    """A table whose identity set-up refuses to choose stays as it is."""
    changes: list[tuple[TableFacts, Wanted]] = []
    for configured in config.source.tables:
        if (table := facts.tables.get(configured.name)) is not None:
            try:
                changes += list(identity_changes(table, configured.replica_identity))
            except PenstockError:  # it has a finding of its own
                continue
    after = tables_after(facts.tables, changes)
    published = {name: table for name, table in after.items() if table.publishable}
    publication = facts.publications.get(config.source.publication)
    generated = sends_generated(config, after, facts.server.major)
    return after, publication_after(config.source, publication, published, generated)


def identity_changes(table: TableFacts, choice: str) -> Iterator[tuple[TableFacts, Wanted]]:
    """Those that are needed: the root's does not reach its leaves."""
    root = wanted_identity(table, choice)
    if not root.holds_for(table):
        yield table, root
    for leaf in table.leaves:
        if leaf.publishable:  # else, such as a foreign table, it has nothing in the WAL
            wanted = wanted_for_leaf(leaf, root, choice)
            if not wanted.holds_for(leaf):
                yield leaf, wanted


def tables_after(
    tables: Mapping[TableName, TableFacts], identities: Iterable[tuple[TableFacts, Wanted]]
) -> dict[TableName, TableFacts]:
    changes = {table.oid: wanted for table, wanted in identities}

    def changed(table: TableFacts) -> TableFacts:
        leaves = tuple(changed(leaf) for leaf in table.leaves)
        wanted = changes.get(table.oid)
        return replace(wanted.applied_to(table) if wanted else table, leaves=leaves)

    return {name: changed(table) for name, table in tables.items()}


def sends_generated(config: Config, after: Mapping[TableName, TableFacts], major: int) -> bool:
    """Whether our publication has to send stored generated columns."""
    return any(
        needs_generated_columns(one, major)
        for table in after.values()
        for one in (table, *table.leaves)
    ) or (
        major >= GENERATED_VERSION
        and any(reads_generated(aggregate, after) for aggregate in config.aggregate)
    )


def unpublished(
    publication: PublicationFacts, tables: Mapping[TableName, TableFacts]
) -> list[TableFacts]:
    """Tables that set-up adds to a publication, whoever made it."""
    return [table for table in tables.values() if publication.entry(table) is None]


def publication_after(
    source: SourceConfig,
    publication: PublicationFacts | None,
    tables: Mapping[TableName, TableFacts],
    generated: bool,
) -> PublicationFacts:
    if publication is not None:
        # A root that is added takes over the names of its partitions: what is added counts too.
        added = [PublishedTable(table.name) for table in unpublished(publication, tables)]
        extended = replace(publication, tables=(*publication.tables, *added))
        if not publication.ours:
            return extended
        return replace(
            extended,
            generated_columns=publication.generated_columns or generated,
            via_root=publication.via_root or any(table.partitioned for table in tables.values()),
        )
    return PublicationFacts(
        name=source.publication,
        owner="",
        owned=True,
        all_tables=False,
        schemas=(),
        tables=tuple(PublishedTable(name) for name in tables),
        operations=frozenset(OPERATIONS),
        via_root=True,
        generated_columns=generated,
        comment=MARK,
    )
