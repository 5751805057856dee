"""Records of the change log, made from values: XLogData messages around pgoutput's. Pure.

`postgres.pgoutput` reads these layouts and draws them; `postgres.envelope` draws the envelope. Only
what polling needs is here: transactions that arrive whole, in the form of protocol 1.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence

from penstock.lsn import ZERO, Lsn
from penstock.postgres.messages import Column, Relation

UNCHANGED = b"u"
NULL = b"n"

# 'w', start, end, and the server's clock, which nobody reads.
_ENVELOPE = struct.Struct(">cQQq")
_BEGIN = struct.Struct(">cQqI")
_COMMIT = struct.Struct(">cBQQq")
_MESSAGE = struct.Struct(">cBQ")
_PG_CATALOG = "pg_catalog"
# Kind and length of a text value: most values are short.
_TEXT_HEADS = tuple(b"t" + length.to_bytes(4, "big") for length in range(512))
_HEADS = len(_TEXT_HEADS)


def xlog(lsn: Lsn, payload: bytes) -> bytes:
    """Wrap a pgoutput message of the WAL record at `lsn`."""
    return _ENVELOPE.pack(b"w", lsn, lsn, 0) + payload


def begin(lsn: Lsn, *, final_lsn: Lsn, committed_us: int, xid: int) -> bytes:
    return xlog(lsn, _BEGIN.pack(b"B", final_lsn, committed_us, xid))


def commit(lsn: Lsn, *, commit_lsn: Lsn, end_lsn: Lsn, committed_us: int) -> bytes:
    return xlog(lsn, _COMMIT.pack(b"C", 0, commit_lsn, end_lsn, committed_us))


def relation(described: Relation) -> bytes:
    """Return the payload of a Relation message."""
    columns = b"".join(map(_column, described.columns))
    return (
        b"R"
        + described.oid.to_bytes(4, "big")
        + _qualified(described.namespace, described.name)
        + described.replica_identity.encode()
        + len(described.columns).to_bytes(2, "big")
        + columns
    )


def _column(column: Column) -> bytes:
    kind = struct.pack(">Ii", column.type_oid, column.type_modifier)
    return bytes([column.in_identity]) + _name(column.name) + kind


def type_name(oid: int, namespace: str, name: str) -> bytes:
    """Return the payload of a Type message."""
    return b"Y" + oid.to_bytes(4, "big") + _qualified(namespace, name)


def description(payload: bytes) -> bytes:
    """Wrap a Relation or Type; the server too sends them without a position."""
    return xlog(ZERO, payload)


def truncate(lsn: Lsn, oids: Sequence[int]) -> bytes:
    head = b"T" + len(oids).to_bytes(4, "big") + b"\0"
    return xlog(lsn, head + b"".join(oid.to_bytes(4, "big") for oid in oids))


def logical_message(lsn: Lsn, *, transactional: bool, prefix: str, content: bytes) -> bytes:
    head = _MESSAGE.pack(b"M", transactional, lsn) + _name(prefix)
    return xlog(lsn, head + len(content).to_bytes(4, "big") + content)


def values(texts: Iterable[bytes | None]) -> list[bytes]:
    """Return each value of a row as it stands in a tuple. A hot path: once for each change."""
    return [
        NULL
        if text is None
        else _TEXT_HEADS[len(text)] + text
        if len(text) < _HEADS
        else b"t" + len(text).to_bytes(4, "big") + text
        for text in texts
    ]


def _qualified(namespace: str, name: str) -> bytes:
    """The server leaves out the name of its own schema."""
    return _name("" if namespace == _PG_CATALOG else namespace) + _name(name)


def _name(text: str) -> bytes:
    return text.encode(errors="surrogateescape") + b"\0"
