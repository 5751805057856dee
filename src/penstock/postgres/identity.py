"""Which replica identity a table should have, and what follows from the one it has. Pure.

The server refuses the application's own UPDATE and DELETE on a published table when its identity
does not fit: there is none (55000), a column list or a row filter goes beyond it, or it holds a
generated column that is not sent (42P10). So these rules serve set-up, which must not bring that
about, and doctor, which finds it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from penstock.errors import UnsafeIdentity
from penstock.names import quote
from penstock.postgres.index_width import fits_an_index
from penstock.postgres.publications import PublicationFacts, publish_again, publish_generated
from penstock.postgres.tables import Identity, Index, TableFacts
from penstock.printed_sql import SqlKind, printed

# Ends the name of an index that `penstock doctor` advises.
OUR_INDEX = "_penstock_key"
# From here on an unpublished generated column in the identity makes UPDATE and DELETE fail.
_STRICT_GENERATED_VERSION = 18


@dataclass(frozen=True, slots=True)
class Wanted:
    """The identity that a table should get; `index` only with kind "index"."""

    kind: Identity
    index: Index | None = None
    # For the person: why this one.
    why: str = ""

    def sql(self, table: TableFacts) -> str:
        words = {"default": "DEFAULT", "nothing": "NOTHING", "full": "FULL"}
        how = words.get(self.kind) or f"USING INDEX {quote(self.index.name if self.index else '')}"
        return f"ALTER TABLE {table.name.sql} REPLICA IDENTITY {how}"

    def holds_for(self, table: TableFacts) -> bool:
        return table.identity == self.kind and (
            self.kind != "index" or table.identity_index == self.index
        )

    def applied_to(self, table: TableFacts) -> TableFacts:
        """The table as it will be."""
        return replace(table, identity=self.kind, identity_index=self.index)


def too_wide(table: TableFacts) -> list[Index]:
    """Indexes that Penstock has advised and that some values do not fit into, as INSERT shows."""
    columns = {column.name: column for column in table.columns}
    return [
        index
        for index in table.candidates
        if OUR_INDEX in index.name and not fits_an_index(columns[name] for name in index.columns)
    ]


def wanted_identity(table: TableFacts, choice: str) -> Wanted:
    """What `replica_identity = choice` means for this table (or for a root, seen by itself)."""
    match choice:
        case "auto":
            return _automatic(table)
        case "full":
            return Wanted("full", why="asked for")
        case "default":
            if table.primary_key is None:
                raise UnsafeIdentity(
                    f'table {table.name} has no primary key, so replica_identity = "default" '
                    "would make the application's UPDATE and DELETE fail",
                    remedy=(
                        'Add a primary key, or set replica_identity = "auto" (or "full", or the '
                        "name of a unique index without nullable columns) in [source]"
                    ),
                    table=table.name,
                )
            return Wanted("default", why="asked for")
    for index in table.candidates:
        if index.name == choice:
            return Wanted("index", index, why="asked for")
    usable = ", ".join(index.name for index in table.candidates) or "none"
    raise UnsafeIdentity(
        f'table {table.name} has no index "{choice}" that can be its replica identity '
        "(unique, not partial, not deferrable, no expressions, no nullable columns)",
        remedy=f"Indexes that can: {usable}. Correct replica_identity of the table in [source]",
        table=table.name,
    )


def _automatic(table: TableFacts) -> Wanted:
    if table.identity_columns and not (
        table.identity == "full" and table.generated("virtual")  # refused by the server from 18 on
    ):
        return Wanted(table.identity, table.identity_index, why="works as it is")
    if table.primary_key:
        return Wanted("default", why="the primary key")
    generated = {*table.generated("stored"), *table.generated("virtual")}
    plain = [index for index in table.candidates if not generated & set(index.columns)]
    for index in plain or table.candidates:
        return Wanted("index", index, why="no primary key, but a unique index without nulls")
    return Wanted("full", why="neither a primary key nor a unique index without nullable columns")


def wanted_for_leaf(leaf: TableFacts, root: Wanted, choice: str) -> Wanted:
    """The stream describes a leaf's changes with the root's identity, so the two must agree.

    A leaf with FULL is the exception that `auto` leaves alone: it writes more than is promised.
    """
    if choice == "auto" and leaf.identity == "full":
        return Wanted("full", why="works as it is")
    why = "as its root"
    if root.kind != "index" or root.index is None:
        return Wanted(root.kind, why=why)
    for index in leaf.candidates:
        if set(index.columns) == set(root.index.columns):
            return Wanted("index", index, why)
    raise UnsafeIdentity(
        f"partition {leaf.name} has no unique index on ({', '.join(root.index.columns)}) "
        f"like the one of its root, {root.index.name}",
        remedy="Create it on the partition, or choose another replica_identity in [source]",
        table=leaf.name,
    )


def write_breakers(
    table: TableFacts, publication: PublicationFacts, major: int
) -> Iterator[tuple[str, str]]:
    """Why the application's UPDATE and DELETE on this table fail under this publication.

    Pairs of (what is wrong, what to do).
    """
    held = publication.entry(table)
    if held is None or not table.publishable or not publication.operations & {"update", "delete"}:
        return
    identity = set(table.identity_columns)
    if not identity:
        full = printed(SqlKind.IDENTITY, Wanted("full").sql(table))
        yield "it has no replica identity", full.after("Run")
    whole = publish_again(SqlKind.PUBLISH_WHOLE_TABLE, publication, held.name).after("Run")
    if held.columns is not None and (table.identity == "full" or identity - set(held.columns)):
        missing = ", ".join(sorted(identity - set(held.columns))) or "FULL allows no column list"
        yield f"the column list does not cover the replica identity ({missing})", whole
    if beyond := set(held.filter_columns) - identity:
        yield (
            f"the row filter uses columns outside the replica identity ({', '.join(beyond)})",
            whole,
        )
    if major >= _STRICT_GENERATED_VERSION and held.columns is None:
        yield from _generated_breakers(table, publication)


def _generated_breakers(
    table: TableFacts, publication: PublicationFacts
) -> Iterator[tuple[str, str]]:
    identity = set(table.identity_columns)
    wanted = _automatic(table)
    if table.identity == "full" and (virtual := table.generated("virtual")):
        yield (
            f"the replica identity holds virtual generated columns ({', '.join(virtual)})",
            (
                printed(SqlKind.IDENTITY, wanted.sql(table)).after("Run")
                if wanted.kind != "full"
                else "Add a primary key, or make these columns STORED"
            ),
        )
    stored = [name for name in table.generated("stored") if name in identity]
    if stored and not publication.generated_columns:
        yield (
            f"its identity holds generated columns that are not published ({', '.join(stored)})",
            publish_generated(publication.name).after("Run"),
        )


def needs_generated_columns(table: TableFacts, major: int) -> bool:
    """The publication must send stored generated columns, or UPDATE and DELETE fail."""
    return major >= _STRICT_GENERATED_VERSION and bool(
        set(table.identity_columns) & set(table.generated("stored"))
    )
