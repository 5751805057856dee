"""The life of a notification, change by change: what each adds and takes away, and what is left
out because the WAL does not tell (M4.5)."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from penstock.decode.deltas import (
    COUNTED,
    Deltas,
    Input,
    Summed,
    SummedSource,
    WantedDeltas,
)
from penstock.decode.types import TEXT
from penstock.names import TableName
from penstock.postgres.messages import (
    UNCHANGED,
    Column,
    Delete,
    Insert,
    Message,
    Relation,
    ReplicaIdentity,
    Row,
    Update,
)
from support.counting import Totals, totals_of
from support.rows import run_of

NAMES = ("id", "service_id", "status", "body")
TABLE = TableName("public", "notifications")
SOURCE = SummedSource(TABLE, frozenset(("insert", "update", "delete")), frozenset(), {}, 0)


def notifications(identity: ReplicaIdentity, *columns: str) -> Relation:
    given = (Column(name in columns, name, 25, -1) for name in NAMES)
    return Relation(1, TABLE.schema, TABLE.name, identity, tuple(given))


BY_INDEX = notifications("i", "id", "status")
DEFAULT = notifications("d", "id")
FULL = notifications("f", *NAMES)


def row(status: str | None, *, service: str | None = "s", body: Any = b"text") -> Row:
    def octets(text: str | None) -> bytes | None:
        return None if text is None else text.encode()

    return b"1", octets(service), octets(status), body


def key_of(relation: Relation, values: Row) -> Row:
    """As the server sends it: what is not in the identity is NULL."""
    pairs = zip(relation.columns, values, strict=True)
    return tuple(value if column.in_identity else None for column, value in pairs)


def updated(relation: Relation, old: Row, new: Row) -> Update:
    """As a server with this identity would write it."""
    if relation.replica_identity == "f":
        return Update(1, None, old, new)
    key = key_of(relation, old)
    return Update(1, None if key == key_of(relation, new) else key, None, new)


def deleted(relation: Relation, old: Row) -> Delete:
    if relation.replica_identity == "f":
        return Delete(1, None, old)
    return Delete(1, key_of(relation, old), None)


def counted(
    relation: Relation,
    changes: Sequence[Message],
    *,
    keys: Sequence[str] = ("service_id", "status"),
    **source: Any,
) -> Totals:
    wanted = Summed(
        "counts", (replace(SOURCE, **source),), tuple(Input(key, TEXT) for key in keys), ()
    )
    run = run_of(random.Random(1), changes, [[relation]])
    (totals,) = totals_of(Deltas(WantedDeltas((wanted,))).batches([run]), [wanted])
    return totals


def deltas(totals: Totals) -> dict[str, int]:
    """Keys without quotes, and the count."""
    return {",".join(key).replace("'", ""): count for key, (count,) in totals.rows.items()}


SERVICE = frozenset(["service_id"])


@pytest.mark.parametrize(
    ("relation", "immutable"), [(BY_INDEX, SERVICE), (FULL, frozenset()), (FULL, SERVICE)]
)
def test_the_life_of_a_notification(relation: Relation, immutable: frozenset[str]) -> None:
    # M4.5
    life: list[tuple[Message, dict[str, int]]] = [
        (Insert(1, row("created")), {"s,created": 1}),
        (
            updated(relation, row("created"), row("sending")),
            {"s,created": -1, "s,sending": 1},
        ),
        # Of something else: nothing changes hands.
        (updated(relation, row("sending"), row("sending", body=b"other")), {}),
        (
            updated(relation, row("sending"), row("delivered")),
            {"s,sending": -1, "s,delivered": 1},
        ),
        (deleted(relation, row("delivered")), {"s,delivered": -1}),
    ]
    if relation is BY_INDEX:
        # Its service is not in the identity: of the row that goes it is not known.
        life = life[:-1]
    for change, adds in life:
        totals = counted(relation, [change], immutable=immutable)
        assert deltas(totals) == adds
        assert totals.notes == {COUNTED: 1}
    # Together it is what is left.
    totals = counted(relation, [change for change, _ in life], immutable=immutable)
    assert deltas(totals) == ({} if relation is FULL else {"s,delivered": 1})
    assert totals.notes == {COUNTED: len(life)}


def test_no_old_row_on_an_update_means_that_the_identity_is_the_same() -> None:  # M4.5
    update = Update(1, None, None, row("sending", body=b"other"))
    totals = counted(BY_INDEX, [update], keys=["id", "status"])
    assert (totals.rows, totals.notes) == ({}, {COUNTED: 1})


def test_a_whole_old_row_that_did_not_come_tells_nothing() -> None:  # M4.2, M4.5
    """A leaf of a partitioned table has another identity than its root, which is what R shows."""
    totals = counted(FULL, [Update(1, None, None, row("sending"))])
    assert totals.rows == {}
    assert totals.notes == {
        f"update of {TABLE}: the old service_id is not in the WAL": 1,
    }


def test_of_a_partition_with_less_identity_than_its_root_no_null_is_subtracted() -> None:
    # M4.2, M4.5
    """As of a new partition, which has the key only: R shows the status as part of the identity."""
    changed: Row = (b"2", *row("sending")[1:])
    changes: list[Message] = [
        Update(1, key_of(DEFAULT, row("sending")), None, changed),
        Delete(1, key_of(DEFAULT, changed), None),
    ]
    totals = counted(BY_INDEX, changes, keys=["status"])
    assert totals.rows == {}
    assert totals.notes == {
        f"update of {TABLE}: the old status is not in the WAL": 1,
        f"delete of {TABLE}: the old status is not in the WAL": 1,
    }
    # What does not change is the new row's.
    totals = counted(BY_INDEX, changes[:1], keys=["status"], immutable=frozenset(["status"]))
    assert (totals.rows, totals.notes) == ({}, {COUNTED: 1})


def test_with_the_default_identity_the_old_status_is_not_known() -> None:  # M4.5
    changes: list[Message] = [
        Insert(1, row("created")),
        updated(DEFAULT, row("created"), row("sending")),
        deleted(DEFAULT, row("sending")),
    ]
    totals = counted(DEFAULT, changes, immutable=SERVICE)
    # Both images of the update are left out: half of it would be a wrong count.
    assert deltas(totals) == {"s,created": 1}
    assert totals.notes == {
        COUNTED: 1,
        f"update of {TABLE}: the old status is not in the WAL": 1,
        f"delete of {TABLE}: the old service_id is not in the WAL": 1,
    }
    # What does not change is the new row's.
    totals = counted(DEFAULT, changes, immutable=frozenset(["service_id", "status"]))
    assert deltas(totals) == {"s,created": 1}
    assert totals.notes[COUNTED] == 2


def test_an_immutable_column_of_an_old_row_is_only_taken_from_its_own_new_row() -> None:  # M4.5
    changes = [
        Update(1, (str(n).encode(), None, b"a", None), None, (str(n).encode(), s, b"b", b"x"))
        for n, s in enumerate((b"s1", b"s2", None, b"s3"))
    ]
    totals = counted(BY_INDEX, changes, immutable=SERVICE)
    services = ("s1", "s2", "None", "s3")
    expected = {f"{s},a": -1 for s in services} | {f"{s},b": 1 for s in services}
    assert deltas(totals) == expected


def test_an_old_value_that_is_known_wins_over_immutable() -> None:  # M4.5
    """Somebody declared what is not so; where the WAL tells, that counts."""
    update = updated(FULL, row("a", service="s1"), row("a", service="s2"))
    assert deltas(counted(FULL, [update], immutable=SERVICE)) == {"s1,a": -1, "s2,a": 1}


def test_null_is_a_value_and_not_a_missing_one() -> None:  # M4.5, M5.2
    update = updated(FULL, row(None, service=None), row("sent", service=None))
    totals = counted(FULL, [update])
    assert deltas(totals) == {"None,None": -1, "None,sent": 1}
    assert totals.notes == {COUNTED: 1}


@pytest.mark.parametrize("off", ["insert", "update", "delete"])
def test_a_rule_that_is_off_ignores_and_counts_its_changes(off: str) -> None:  # M4.5
    changes: list[Message] = [
        Insert(1, row("a")),
        Insert(1, row("a")),
        updated(FULL, row("a"), row("b")),
        deleted(FULL, row("b")),
    ]
    rules = frozenset(("insert", "update", "delete")) - {off}
    totals = counted(FULL, changes, rules=rules)
    expected: dict[str, dict[str, int]] = {
        "insert": {"s,a": -1},
        "update": {"s,a": 2, "s,b": -1},
        "delete": {"s,a": 1, "s,b": 1},
    }
    assert deltas(totals) == expected[off]
    ignored = {"insert": 2, "update": 1, "delete": 1}[off]
    assert totals.notes == {
        COUNTED: 4 - ignored,
        f"{off} of {TABLE}: the rule is off": ignored,
    }


def test_an_unchanged_toast_value_that_is_needed_is_a_reason() -> None:  # M4.6
    update = updated(BY_INDEX, row("a"), row("b", body=UNCHANGED))
    totals = counted(BY_INDEX, [update], keys=["status", "body"], immutable=frozenset(["body"]))
    assert totals.rows == {}
    assert totals.notes == {f"update of {TABLE}: the unchanged body is not in the WAL": 1}
    # One that nobody needs does no harm.
    totals = counted(BY_INDEX, [update], keys=["status"])
    assert deltas(totals) == {"a": -1, "b": 1}


def test_an_unchanged_toast_value_in_the_identity_is_in_the_old_key() -> None:  # M4.6
    relation = notifications("i", "id", "body")
    update = Update(1, (b"1", None, None, b"long"), None, (b"1", b"s", b"b", UNCHANGED))
    totals = counted(relation, [update], keys=["id", "body"])
    assert (totals.rows, totals.notes) == ({}, {COUNTED: 1})


def test_of_several_missing_values_the_first_is_the_reason() -> None:  # M4.5
    totals = counted(DEFAULT, [deleted(DEFAULT, row("a"))] * 3)
    assert totals.notes == {f"delete of {TABLE}: the old service_id is not in the WAL": 3}
