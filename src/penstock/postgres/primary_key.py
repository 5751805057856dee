"""The primary key in a description of a table: a mark of ours in a Relation message.

    | 'R' | u32 oid | schema \\0 | name \\0 | identity | i16 columns |
    for each column: | u8 flags: 1 in the identity, 128 in the primary key | name \\0 | u32 | i32 |

The server uses the lowest bit of the flags only. Pure.
"""

from __future__ import annotations

from collections.abc import Collection

from penstock.postgres.messages import IN_PRIMARY_KEY

_IN_IDENTITY = 1
_RELATION = ord("R")
_AFTER_OID = 5
# Behind a column's name: its type and modifier.
_TYPE_BYTES = 8


def described_otherwise(payload: bytes) -> int | None:
    """Return the oid of a table that is described by another identity than its primary key."""
    if payload[0] != _RELATION or payload[_identity_at(payload) : _columns_at(payload)] not in (
        b"f",
        b"i",
    ):
        return None
    return int.from_bytes(payload[1:_AFTER_OID], "big")


def with_primary_key(payload: bytes, key: Collection[bytes]) -> bytes:
    """Return the same description with the columns of `key` marked.

    Unless all of them are in the identity, none is: then an old row has no value for some.
    """
    marked, found = bytearray(payload), set()
    at = _columns_at(payload) + 2
    while at < len(payload):
        end = payload.index(0, at + 1)
        name = payload[at + 1 : end]
        if name in key and payload[at] & _IN_IDENTITY:
            marked[at] |= IN_PRIMARY_KEY
            found.add(name)
        at = end + 1 + _TYPE_BYTES
    return bytes(marked) if found == {*key} else payload


def _identity_at(payload: bytes) -> int:
    return payload.index(0, payload.index(0, _AFTER_OID) + 1) + 1


def _columns_at(payload: bytes) -> int:
    return _identity_at(payload) + 1
