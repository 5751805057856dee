"""A log in words: its transactions, their fragments and changes. Pure: a reader in, values out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from penstock.changelog.reader import CommitRef, LogReader, Position
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
    moment,
)
from penstock.postgres.transaction import Change, changes_of


def transactions(
    reader: LogReader, after: Position, up_to: Position
) -> Iterator[tuple[dict[str, Any], Iterable[dict[str, Any]]]]:
    """Each transaction in commit order, and its changes, ready for JSON.

    Take the changes before the next transaction. However many there are, one frame of the log is in
    memory; and all of them can be read, or else the transaction is not handed out but the error is
    raised.
    """
    for commit in reader.commits(after, up_to):
        yield _commit(commit), _readable_changes(reader, commit)


def _readable_changes(reader: LogReader, commit: CommitRef) -> Iterable[dict[str, Any]]:
    if len(commit.fragments) == 1:  # not more than a frame
        return list(_changes(reader.payloads(commit)))
    for _ in _changes(reader.payloads(commit)):
        pass
    return _changes(reader.payloads(commit))


def _commit(commit: CommitRef) -> dict[str, Any]:
    committed_at = moment(commit.time_us)
    return {
        "commit_lsn": str(commit.lsn),
        "xid": commit.xid,
        "committed_at": committed_at.isoformat() if committed_at else None,
        "change_count": commit.changes,
        "fragments": [
            {"segment": ref.segment, "position": ref.byte_pos, "first_seq": ref.first_seq}
            for ref in commit.fragments
        ],
        "aborted_xids": list(commit.aborted),
    }


def _changes(payloads: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    for seq, (change, relations) in enumerate(changes_of(payloads)):
        yield {"seq": seq, **_change(change, relations)}


def _change(change: Change, relations: Mapping[int, Relation]) -> dict[str, Any]:
    match change:
        case Insert(relation_oid=oid, new=new):
            return {"kind": "insert", **_table(relations[oid]), "new": _row(relations[oid], new)}
        case Update(relation_oid=oid, old_key=key, old_row=old, new=new):
            relation = relations[oid]
            return {
                "kind": "update",
                **_table(relation),
                "old": _old(relation, key, old),
                "new": _row(relation, new),
            }
        case Delete(relation_oid=oid, old_key=key, old_row=old):
            relation = relations[oid]
            return {"kind": "delete", **_table(relation), "old": _old(relation, key, old)}
        case Truncate(relation_oids=oids):
            return {"kind": "truncate", "tables": [_name(relations[oid]) for oid in oids]}


def _name(relation: Relation) -> str:
    return str(TableName(relation.namespace, relation.name))


def _table(relation: Relation) -> dict[str, str]:
    return {"table": _name(relation)}


def _old(relation: Relation, key: Row | None, row: Row | None) -> dict[str, Any] | None:
    if row is not None:
        return _row(relation, row)
    if key is None:
        return None
    # Columns outside the identity are sent as NULL, whatever they held.
    pairs = zip(relation.columns, key, strict=True)
    return {column.name: _value(value) for column, value in pairs if column.in_identity}


def _row(relation: Relation, row: Row) -> dict[str, Any]:
    """By column; a TOASTed value that was not sent is left out, for it is not NULL."""
    pairs = zip(relation.columns, row, strict=True)
    return {column.name: _value(value) for column, value in pairs if value is not UNCHANGED}


def _value(value: Value) -> str | None:
    if value is None or value is UNCHANGED:
        return None
    return value.data.hex() if isinstance(value, Binary) else value.decode(errors="replace")
