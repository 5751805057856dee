"""What wal2json's documents have shown of each table, and how their changes are written. Pure.

pgoutput describes a table before its changes. wal2json names the columns in each change, leaves out
a TOASTed value that an update did not touch, and says neither oid nor replica identity. So:

**Columns.** An insert names them all. An update that lacks one leaves it *unchanged* if values of
its type can be TOASTed, else the column was dropped. A column that no document has named yet is not
in the description, and readers find it absent, not NULL.

**Identity.** The old columns are those of the primary key (`d`), all (`f`), or others (`i`). Where
format 1 leaves open whether a column is missing because it was NULL or because it is outside of the
identity, an old *key* is written: readers take what it lacks as unknown. Before the first update or
delete shows it, a table counts as identified by its primary key.

**Oid.** It is made from the name, and is 2**31 or more: a server counts its oids from 16384 on, so
none of ours is mistaken for one of a server's. Two names that meet in one number get different
ones, which stay because the log's descriptions are handed back at the next start.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.errors import DocumentInvalid
from penstock.lsn import Lsn
from penstock.names import TableName
from penstock.postgres.messages import Column, Relation, ReplicaIdentity
from penstock.postgres.pgoutput import Decoder
from penstock.postgres.polling import records
from penstock.postgres.polling.type_text import type_modifier, type_name
from penstock.postgres.polling.wal2json_documents import Change, Heading, Shown
from penstock.postgres.polling.wal2json_layout import NUMBER_OIDS, Layout, OldTuple, Slot
from penstock.postgres.polling.wal2json_options import FormatVersion

FIRST_OID = 2**31
# pgoutput names types from here on: those below are the same on every server.
_FIRST_NAMED_OID = 10_000
# Values of fixed length, which are never TOASTed: numbers, moments, uuid and the like.
_NEVER_TOASTED = frozenset(
    [
        *(16, 18, 19, 20, 21, 23, 24, 26, 27, 28, 29, 600, 601, 603, 628, 700, 701, 718, 774, 790),
        *(829, 1082, 1083, 1114, 1184, 1186, 1266, 2202, 2203, 2204, 2205, 2206, 2950, 3220, 3734),
        *(3769, 4089, 4096, 5069),
    ]
)


@dataclass(frozen=True, slots=True)
class _Column:
    type_oid: int
    modifier: int
    # The payload of its Type message, for types that users made.
    named: bytes | None
    nullable: bool | None

    def has_type_of(self, other: _Column) -> bool:
        mine = (self.type_oid, self.modifier, self.named)
        return mine == (other.type_oid, other.modifier, other.named)


@dataclass(slots=True)
class Table:
    name: TableName
    oid: int
    columns: dict[str, _Column]
    identity: ReplicaIdentity | None = None
    key: frozenset[str] = frozenset()
    # A document has named all its columns.
    complete: bool = False
    # The Types and the Relation that are in force on this connection.
    described: tuple[bytes, ...] = ()
    # All that decides about layouts, and another object whenever that is different.
    version: tuple[Any, ...] = ()


class Tables:
    """What one connection has shown so far."""

    def __init__(
        self, format_version: FormatVersion, known: Iterable[Sequence[bytes]] = ()
    ) -> None:
        """`known`: Relations with their Types, as the log has them, the newest last."""
        # Format 1 leaves NULLs out of old rows.
        self._nulls_left_out = format_version == 1
        self._tables: dict[TableName, Table] = {}
        self._names: dict[int, TableName] = {}
        for messages in known:
            self._remember(messages)

    def table(self, name: TableName) -> Table:
        found = self._tables.get(name)
        if found is None:
            found = self._tables[name] = Table(name, self._oid(name), {})
            self._names[found.oid] = name
        return found

    def take(self, lsn: Lsn, change: Change) -> tuple[Table, Layout]:
        """Learn from a change; returns its table, which may be described anew, and its layout."""
        heading = change.heading
        table = self.table(heading.table)
        if heading.kind == "D" and not heading.has_old:
            raise DocumentInvalid("has a delete without its old row", lsn=lsn)
        self._learn_columns(table, heading)
        old = zip(heading.old, change.values[len(heading.new) :], strict=True)
        # A number could be NaN.
        null_shown = any(v is None and each.type_oid not in NUMBER_OIDS for each, v in old)
        old_tuple = self._learn_identity(table, heading, null_shown=null_shown)
        return table, _layout(table, heading, old_tuple, no_old_null=self._nulls_left_out)

    def describe(self, table: Table) -> list[bytes]:
        """Return the records that describe the table, or none if they are in force already."""
        types = dict.fromkeys(
            column.named for column in table.columns.values() if column.named is not None
        )
        described = (*types, records.relation(_relation(table)))
        nullable = tuple(column.nullable for column in table.columns.values())
        version = (described, nullable, table.complete)
        if version != table.version:
            table.version = version
        if described == table.described:
            return []
        table.described = described
        return [records.description(payload) for payload in described]

    def _learn_columns(self, table: Table, heading: Heading) -> None:
        before = table.columns
        shown = {each.name: _column(each) for each in heading.new}
        if heading.kind == "I":
            table.columns = shown
            table.complete = True
        elif heading.kind == "U":
            kept = {
                name: column
                for name, column in before.items()
                if name not in shown and column.type_oid not in _NEVER_TOASTED
            }
            table.columns = _merged(shown, kept, list(before))
        # An old row adds those that no new row has shown, and knows of a type that was altered.
        old = {each.name: _column(each) for each in heading.old}
        for name in old.keys() & table.columns.keys():
            if not old[name].has_type_of(table.columns[name]):
                table.columns = {**table.columns, name: old[name]}
        unseen = {name: column for name, column in old.items() if name not in table.columns}
        if unseen:
            table.columns = _merged(table.columns, unseen, list(old))

    def _learn_identity(self, table: Table, heading: Heading, *, null_shown: bool) -> OldTuple:
        """Return how the old row is written. `null_shown`: it holds a NULL for certain."""
        if heading.kind == "I":
            if table.identity == "f":
                table.key = frozenset(table.columns)
            elif table.identity != "i" or not table.key <= table.columns.keys():
                pk = table.key if heading.pk is None else frozenset(heading.pk)
                table.key = pk & table.columns.keys()
                table.identity = "d" if table.key else "n"
            return "none"
        if not heading.has_old:
            table.identity, table.key = "n", frozenset()
            return "none"
        shown = frozenset(each.name for each in heading.old)
        is_pk = heading.pk is not None and shown == {*heading.pk}
        # The new row, or an earlier document, has named all columns.
        all_known = heading.kind == "U" or table.complete
        if self._nulls_left_out:
            is_full, old_tuple = _old_tuple_1(table, shown, is_pk=is_pk, all_known=all_known)
            present = shown | {each.name for each in heading.new}
            shows_all = is_full and heading.kind == "U" and old_tuple == "row"
        else:
            is_full = _is_full_2(table, shown, all_known=all_known, null_shown=null_shown)
            is_full = is_full and not is_pk
            old_tuple = "row" if is_full else "key if changed"
            present, shows_all = shown, is_full
        if shows_all:
            # The old row is whole: another column is not in the table any more.
            table.columns = {n: column for n, column in table.columns.items() if n in present}
            table.complete = True
        table.identity = "f" if is_full else "d" if is_pk else "i"
        table.key = frozenset(table.columns) if is_full else shown
        return old_tuple

    def _remember(self, messages: Sequence[bytes]) -> None:
        decoder = Decoder(1, "off")
        types = {int.from_bytes(payload[1:5], "big"): payload for payload in messages[1:]}
        relation = decoder.decode(messages[0])
        if not isinstance(relation, Relation):
            raise TypeError("the first message of a description is a Relation")
        name = TableName(relation.namespace, relation.name)
        if relation.oid >= FIRST_OID:
            self._names[relation.oid] = name
        table = self._tables.get(name)
        if table is None or relation.oid >= FIRST_OID:
            oid = relation.oid if relation.oid >= FIRST_OID else self._oid(name)
            table = self._tables[name] = Table(name, oid, {})
            self._names[oid] = name
        table.columns = {
            column.name: _Column(
                column.type_oid, column.type_modifier, types.get(column.type_oid), None
            )
            for column in relation.columns
        }
        table.identity = relation.replica_identity
        table.key = frozenset(column.name for column in relation.columns if column.in_identity)
        table.complete = True

    def _oid(self, name: TableName) -> int:
        """Return the number of a name that no other name has."""
        text = f"{name.schema}\0{name.name}".encode(errors="surrogateescape")
        oid = FIRST_OID | int.from_bytes(hashlib.sha256(text).digest()[:4], "big")
        while self._names.get(oid, name) != name:
            oid = FIRST_OID | (oid + 1) % 2**32
        return oid


def _is_full_2(table: Table, shown: frozenset[str], *, all_known: bool, null_shown: bool) -> bool:
    """Return whether the identity is FULL, in format 2.

    A primary key or an identity index has no NULL, and no column that allows it.
    """
    if null_shown or any(table.columns[name].nullable for name in shown):
        return True
    return all_known and shown == table.columns.keys()


def _old_tuple_1(
    table: Table, shown: frozenset[str], *, is_pk: bool, all_known: bool
) -> tuple[bool, OldTuple]:
    """Return whether the identity is FULL, and how the old row is written, in format 1.

    It leaves NULLs out of old rows.
    """
    nullable = {name: column.nullable for name, column in table.columns.items()}
    left_out = table.columns.keys() - shown
    lacks_not_null = any(nullable[name] is False for name in left_out)
    if not lacks_not_null:
        if not shown or any(nullable[name] for name in shown):
            # As in format 2; and an identity that is not FULL has columns.
            return True, "row"
        if not left_out and all_known and not is_pk:
            return True, "row"
        if table.identity == "f":
            # What was left out was NULL, or the identity has become smaller: unknown, then.
            return True, "key"
    return False, "key if changed"


def _column(shown: Shown) -> _Column:
    oid, text = shown.type_oid, shown.type_text
    if oid < _FIRST_NAMED_OID:
        modifier = -1 if text is None else type_modifier(text)
        return _Column(oid, modifier, None, shown.nullable)
    # A domain's own modifier is not its column's. Those of others' types have no known layout.
    named = None if text is None else records.type_name(oid, *type_name(text))
    return _Column(oid, -1, named, shown.nullable)


def _merged(
    shown: Mapping[str, _Column], others: Mapping[str, _Column], order: Sequence[str]
) -> dict[str, _Column]:
    """Put each of `others` behind the column that stands before it in `order`."""
    names = list(shown)
    for name in others:
        before = [each for each in order[: order.index(name)] if each in names]
        names.insert(names.index(before[-1]) + 1 if before else 0, name)
    return {name: shown[name] if name in shown else others[name] for name in names}


def _relation(table: Table) -> Relation:
    columns = tuple(
        Column(name in table.key, name, column.type_oid, column.modifier)
        for name, column in table.columns.items()
    )
    identity = table.identity or "n"
    return Relation(table.oid, table.name.schema, table.name.name, identity, columns)


def _layout(table: Table, heading: Heading, old_tuple: OldTuple, *, no_old_null: bool) -> Layout:
    """Return how such changes are written. `no_old_null`: a null there is another value."""
    new = {each.name: place for place, each in enumerate(heading.new)}
    old = {each.name: place + len(new) for place, each in enumerate(heading.old)}
    is_key = old_tuple in ("key", "key if changed")
    not_null = {name for name, column in table.columns.items() if column.nullable is False}
    not_null |= {*(heading.pk or ())}
    if no_old_null:
        not_null |= old.keys()
    slots = [
        Slot(each.name, each.type_oid, each.nullable is False, may_be_null=True)
        for each in heading.new
    ]
    slots += [
        # A NULL in a key may say more of the identity than this layout does.
        Slot(each.name, each.type_oid, each.name in not_null, may_be_null=not is_key)
        for each in heading.old
    ]
    return Layout(
        kind=heading.kind,
        table=table.name,
        oid=table.oid,
        slots=tuple(slots),
        new=tuple(new.get(name) for name in table.columns),
        old=tuple(old.get(name) for name in table.columns),
        old_tuple=old_tuple,
        pairs=tuple((new.get(name), old[name]) for name in old),
    )
