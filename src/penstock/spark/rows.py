"""From logged transactions to rows for Spark, one at a time: the plain way. Pure.

Out come tuples: the table's columns as text, then `_change_type`, `_commit_version`, `_seq`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from penstock.names import TableName
from penstock.postgres.messages import (
    UNCHANGED,
    Binary,
    Delete,
    Insert,
    Relation,
    Row,
    Truncate,
    Update,
    Value,
)
from penstock.postgres.pgoutput import Decoder
from penstock.postgres.transaction import Transaction

METADATA = ("_change_type", "_commit_version", "_seq")


def columns_of(transactions: Iterable[Transaction], table: TableName) -> tuple[str, ...] | None:
    """The table's columns as the first transaction that holds it describes them."""
    decoder = Decoder(1, "off")
    for transaction in transactions:
        for payload in transaction.payloads:
            if payload[:1] == b"R":
                relation = decoder.decode(payload)
                if isinstance(relation, Relation) and _names(relation, table):
                    return tuple(column.name for column in relation.columns)
    return None


def rows_of(
    transaction: Transaction, table: TableName, columns: tuple[str, ...]
) -> Iterator[tuple[object, ...]]:
    """The table's changes in this transaction, in order.

    `_seq` counts all of the transaction's changes, whichever table they are in, so that it does not
    depend on what is read.
    """
    for seq, (change, relations) in enumerate(transaction.changes()):
        if isinstance(change, Truncate):
            continue
        relation = relations[change.relation_oid]
        if _names(relation, table):
            for kind, row in _images(change, relation):
                named = dict(zip((c.name for c in relation.columns), row, strict=True))
                values = (_text(named.get(column)) for column in columns)
                yield (*values, kind, int(transaction.commit_lsn), seq)


def _images(change: Insert | Update | Delete, relation: Relation) -> Iterator[tuple[str, Row]]:
    match change:
        case Insert(new=new):
            yield "insert", new
        case Delete(old_key=key, old_row=row):
            yield "delete", row or key or ()
        case Update(new=new, old_key=key, old_row=row):
            old = row or key
            if old is None:
                # No old image: the identity did not change, and that is all we know of it.
                pairs = zip(relation.columns, new, strict=True)
                old = tuple(value if column.in_identity else None for column, value in pairs)
            yield "update_preimage", old
            yield "update_postimage", new


def _names(relation: Relation, table: TableName) -> bool:
    return (relation.namespace, relation.name) == (table.schema, table.name)


def _text(value: Value) -> str | None:
    if value is None or value is UNCHANGED:
        return None
    return value.data.hex() if isinstance(value, Binary) else value.decode()
