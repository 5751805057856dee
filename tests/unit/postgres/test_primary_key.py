"""The mark of a primary key in a description. M4.6"""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.postgres.messages import Column, Relation, ReplicaIdentity, Type
from penstock.postgres.pgoutput import Decoder
from penstock.postgres.primary_key import described_otherwise, with_primary_key
from support.pgoutput_encoder import encode

COLUMNS = tuple(Column(True, name, 25, -1) for name in ("id", "é", "status"))
FULL = Relation(16_400, "public", "notes", "f", COLUMNS)


def key_of(payload: bytes) -> list[str]:
    relation = Decoder(1, "off").decode(payload)
    assert isinstance(relation, Relation)
    assert all(column.in_identity for column in relation.columns if column.in_primary_key)
    return [column.name for column in relation.columns if column.in_primary_key]


def test_the_columns_of_the_key_are_marked_and_nothing_else_changes() -> None:
    payload = encode(FULL)
    marked = with_primary_key(payload, [b"id", "é".encode()])
    assert key_of(marked) == ["id", "é"]
    decoded = Decoder(1, "off").decode(marked)
    assert isinstance(decoded, Relation)
    assert replace(decoded, columns=COLUMNS) == FULL
    assert with_primary_key(payload, []) == payload


def test_a_key_of_which_old_rows_lack_a_column_is_not_marked() -> None:
    columns = tuple(replace(each, in_identity=each.name != "id") for each in COLUMNS)
    by_index = replace(FULL, replica_identity="i", columns=columns)
    assert with_primary_key(encode(by_index), [b"id"]) == encode(by_index)
    assert key_of(with_primary_key(encode(by_index), [b"status"])) == ["status"]
    assert with_primary_key(encode(FULL), [b"id", b"not published"]) == encode(FULL)


@pytest.mark.parametrize(
    ("identity", "otherwise"), [("f", True), ("i", True), ("d", False), ("n", False)]
)
def test_only_another_identity_than_the_key_needs_a_look(
    identity: ReplicaIdentity, otherwise: bool
) -> None:
    found = described_otherwise(encode(replace(FULL, replica_identity=identity)))
    assert found == (FULL.oid if otherwise else None)
    assert described_otherwise(encode(Type(20_000, "f", "f"))) is None
