"""The vectorised decoder gives what the plain one gives, on anything a server may send."""

from __future__ import annotations

import contextlib
import math
import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.changelog.runs import PADDING
from penstock.decode.changes import TableChanges, Wanted
from penstock.decode.definition import Definition
from penstock.decode.deltas import NOTE, STOPPED, Deltas, Summed, SummedSource, WantedDeltas
from penstock.decode.json import JsonChanges, WantedTables
from penstock.decode.reference import rows
from penstock.decode.stops import Stop, StopCode
from penstock.decode.types import TEXT
from penstock.errors import ProtocolViolation, SchemaMismatch, TableTruncated, ValueUnrepresentable
from penstock.lsn import ZERO, Lsn
from penstock.names import TableName
from penstock.postgres.messages import (
    UNCHANGED,
    Column,
    Delete,
    Insert,
    Message,
    Relation,
    Truncate,
    Type,
    Update,
)
from support.pgoutput_encoder import encode
from support.repeats import repeats
from support.rows import random_change, random_history, random_table, run_of

T = TableName("public", "t")


def wanted_of(relation: Relation, *types: Type, **options: Any) -> Wanted:
    definition = Definition.parse([encode(relation), *map(encode, types)])
    names = [column.name for column in relation.columns]
    given = {"after_lsn": ZERO, "on_truncate": "emit", "on_unrepresentable": "null", **options}
    return Wanted(T, tuple(zip(names, definition.types, strict=True)), **given)


def comparable(row: dict[str, Any]) -> dict[str, Any]:
    """NaN is equal to itself, and -0 is not 0."""

    def plain(value: Any) -> Any:
        if isinstance(value, float):
            return "NaN" if math.isnan(value) else (value, math.copysign(1, value))
        return value

    return {name: plain(value) for name, value in row.items()}


@settings(max_examples=repeats(130, soak=400), deadline=None)
@given(st.integers(0, 2**32))
def test_it_is_equal_to_the_reference(seed: int) -> None:  # M4.6
    chance = random.Random(seed)
    ours, our_texts = random_table(chance, 1, "t")
    other, other_texts = random_table(chance, 2, "other")
    tables = [(ours, our_texts), (other, other_texts)]
    changes = [random_change(chance, *chance.choice(tables)) for _ in range(chance.randint(0, 30))]
    run = run_of(chance, changes, [[ours], [other]])
    wanted = wanted_of(
        ours,
        preimages=chance.random() < 0.7,
        on_truncate=chance.choice(["emit", "skip"]),
    )
    some = tuple(column for column in wanted.columns if chance.random() < 0.7)
    # In any order, and perhaps with one that the table did not have yet.
    some = tuple(chance.sample([*some, *chance.choice(([], [("later", TEXT)]))], k=len(some)))
    wanted = Wanted(T, some, Lsn(9999), wanted.preimages, wanted.on_truncate, "null")
    batch = TableChanges(wanted).batch(run)
    batch.validate(full=True)
    assert list(map(comparable, batch.to_pylist())) == list(map(comparable, rows(run, wanted)))


@settings(max_examples=repeats(80, soak=200), deadline=None)
@given(st.integers(0, 2**32))
def test_it_is_equal_to_the_reference_while_tables_change_and_swap_names(seed: int) -> None:
    # M4.6
    chance = random.Random(seed)
    changes, named = random_history(chance, chance.randint(0, 40))
    run = run_of(chance, changes)
    # The one with the most columns has all that the others had.
    widest = max(named["t"], key=lambda relation: len(relation.columns))
    columns = wanted_of(widest, on_truncate="emit").columns
    others = [r for r in named["t"] if r.oid != widest.oid]
    if others:  # of another table, whose columns have other types: read what any type fits
        columns = tuple((name, TEXT) for name, _ in columns)
    wanted = Wanted(T, columns, Lsn(9999), on_truncate="emit", on_unrepresentable="null")
    batch = TableChanges(wanted).batch(run)
    batch.validate(full=True)
    assert list(map(comparable, batch.to_pylist())) == list(map(comparable, rows(run, wanted)))


def test_a_truncate_is_of_the_table_that_had_the_name_then() -> None:  # M4.6
    was = Relation(1, "public", "t", "d", ITEMS.columns)
    renamed, other = replace(was, name="old"), replace(was, oid=2)
    both = Truncate(False, False, (1, 2))
    changes: list[Message] = [
        *(was, replace(other, name="new"), both),  # seq 0: t and new
        *(renamed, both),  # 1: old and new
        *(other, both),  # 2: old and t
        Truncate(False, False, (1,)),  # 3: old
    ]
    run = run_of(random.Random(1), changes)
    wanted = wanted_of(ITEMS)
    for found in (TableChanges(wanted).batch(run).to_pylist(), list(rows(run, wanted))):
        assert [row["_seq"] for row in found] == [0, 2]
    as_json = JsonChanges(WantedTables((), "emit")).batch(run).to_pylist()
    assert [(row["_seq"], row["table"]) for row in as_json] == [
        *((0, "public.t"), (0, "public.new")),
        *((1, "public.old"), (1, "public.new")),
        *((2, "public.old"), (2, "public.t")),
        (3, "public.old"),
    ]
    for name, seq in (("t", 0), ("old", 1), ("new", 0)):
        source = SummedSource(TableName("public", name), frozenset({"insert"}), frozenset(), {}, 0)
        deltas = Deltas(WantedDeltas((Summed("sums", (source,), (), ()),)))
        (batch,) = deltas.batches([run])
        stop = Stop(StopCode.TRUNCATED, f"public.{name}", lsn=str(Lsn(1000 + seq)))
        assert batch[NOTE].to_pylist() == [STOPPED + stop.to_json()]


@settings(max_examples=repeats(60, soak=150), deadline=None)
@given(st.integers(0, 2**32))
def test_bytes_that_are_not_a_change_never_hang_it_or_read_past_the_end(seed: int) -> None:
    chance = random.Random(seed)
    ours, texts = random_table(chance, 1, "t")
    changes = [random_change(chance, ours, texts) for _ in range(5)]
    run = run_of(chance, changes, [[ours]])
    damaged = bytearray(run.buffer)
    for _ in range(chance.randint(1, 5)):
        damaged[chance.randrange(len(damaged) - len(PADDING))] = chance.randrange(256)
    object.__setattr__(run, "buffer", bytes(damaged))
    with contextlib.suppress(ProtocolViolation):
        TableChanges(wanted_of(ours, on_truncate="skip")).batch(run).validate(full=True)


ITEMS = Relation(
    1, "public", "t", "d", (Column(True, "id", 23, -1), Column(False, "day", 1082, -1))
)


def test_a_value_without_a_place_is_an_error_that_names_column_and_position() -> None:  # M4.6
    run = run_of(random.Random(1), [Insert(1, (b"1", b"infinity"))], [[ITEMS]])
    with pytest.raises(ValueUnrepresentable) as caught:
        TableChanges(wanted_of(ITEMS, on_unrepresentable="error")).batch(run)
    assert "column day of public.t" in caught.value.problem
    assert "0/3E8" in caught.value.problem
    assert "onUnrepresentable" in caught.value.remedy
    assert "infinity" not in str(caught.value)


def test_for_what_is_not_utf8_text_is_no_remedy() -> None:  # M4.6
    words = Relation(1, "public", "t", "d", (Column(True, "word", 25, -1),))
    run = run_of(random.Random(1), [Insert(1, (b"\xff",))], [[words]])
    with pytest.raises(ValueUnrepresentable, match="not UTF-8") as caught:
        TableChanges(wanted_of(words, on_unrepresentable="error")).batch(run)
    assert caught.value.remedy == "Set onUnrepresentable to null"


def test_a_truncate_is_an_error_unless_told_otherwise() -> None:  # M4.6
    run = run_of(random.Random(1), [Truncate(False, False, (1,))], [[ITEMS]])
    with pytest.raises(TableTruncated, match="truncated at 0/3E8"):
        TableChanges(wanted_of(ITEMS, on_truncate="error")).batch(run)


def test_a_column_that_came_later_is_null_and_one_that_has_gone_is_an_error() -> None:  # M4.6
    narrow = Relation(1, "public", "t", "d", ITEMS.columns[:1])
    run = run_of(random.Random(1), [Insert(1, (b"1",))], [[narrow]])
    before = wanted_of(ITEMS, after_lsn=Lsn(1000))
    (row,) = TableChanges(before).batch(run).to_pylist()
    assert (row["id"], row["day"]) == (1, None)
    assert (row["_unchanged"], row["_absent"]) == ([], ["day"]), "told apart from NULL"
    with pytest.raises(SchemaMismatch, match=r"column day of public\.t is gone") as caught:
        TableChanges(wanted_of(ITEMS, after_lsn=Lsn(999))).batch(run)
    assert "0/3E8" in caught.value.problem


@pytest.mark.parametrize(
    ("was", "now", "fits"),
    [
        ((21, -1, b"7"), (20, -1), 7),
        ((20, -1, b"7"), (21, -1), None),
        ((23, -1, b"7"), (25, -1), "7"),
        ((25, -1, b"7"), (23, -1), None),
        # Which is what ALTER TABLE makes of it.
        ((700, -1, b"0.1"), (701, -1), 0.10000000149011612),
        ((1021, -1, b"{0.1}"), (1022, -1), [0.10000000149011612]),
        ((1000, -1, b"{t}"), (1009, -1), ["t"]),
        ((1114, -1, b"2026-01-01 00:00:00"), (1184, -1), None),
        ((1700, (5 << 16) + 2 + 4, b"1.25"), (1700, (9 << 16) + 3 + 4), 1.25),
        ((1700, (9 << 16) + 3 + 4, b"1.250"), (1700, (5 << 16) + 2 + 4), None),
        ((23, -1, b"7"), (1700, (12 << 16) + 1 + 4), 7),
        ((1007, -1, b"{7}"), (1016, -1), [7]),
    ],
)
def test_a_column_of_another_type_is_read_if_all_of_its_values_fit(
    was: tuple[int, int, bytes], now: tuple[int, int], fits: object
) -> None:  # M4.6
    before = Relation(1, "public", "t", "d", (Column(True, "id", *was[:2]),))
    after = Relation(1, "public", "t", "d", (Column(True, "id", *now),))
    run = run_of(random.Random(1), [Insert(1, (was[2],))], [[before]])
    decoder = TableChanges(wanted_of(after))
    if fits is None:
        with pytest.raises(SchemaMismatch, match=r"column id of public\.t is"):
            decoder.batch(run)
    else:
        assert decoder.batch(run).to_pylist()[0]["id"] == fits
        assert next(rows(run, wanted_of(after)))["id"] == fits


def test_a_domain_is_its_base_type_and_what_users_made_is_text() -> None:  # M4.6
    # Those of information_schema have oids below what users make, others in each version.
    oids = {"d": 20_000, "e": 20_001, "standard": 13_001}
    columns = tuple(Column(True, name, oid, -1) for name, oid in oids.items())
    relation = Relation(1, "public", "t", "d", columns)
    types = (Type(20_000, "", "int4"), Type(20_001, "public", "int4"), Type(13_001, "", "int4"))
    run = run_of(random.Random(1), [Insert(1, (b"7", b"happy", b"8"))], [[relation, *types]])
    (row,) = TableChanges(wanted_of(relation, *types)).batch(run).to_pylist()
    assert (row["d"], row["e"], row["standard"]) == (7, "happy", 8)


def test_old_values_that_were_not_sent_are_absent_and_toast_is_filled_from_the_old_row() -> None:
    # M4.6
    whole = Relation(1, "public", "t", "f", tuple(Column(True, n, 25, -1) for n in "ab"))
    changes: list[Message] = [
        Update(1, None, (b"old", b"long"), (b"new", UNCHANGED)),
        # A leaf with another identity than its root: nothing is known.
        Update(1, None, None, (b"newer", UNCHANGED)),
        Delete(1, None, (b"new", b"long")),
    ]
    run = run_of(random.Random(1), changes, [[whole]])
    found = TableChanges(wanted_of(whole)).batch(run).to_pylist()
    shown = [(r["_change_type"], r["a"], r["b"], r["_unchanged"], r["_absent"]) for r in found]
    assert shown == [
        ("update_preimage", "old", "long", [], []),
        ("update_postimage", "new", "long", [], []),
        ("update_preimage", None, None, [], ["a", "b"]),
        ("update_postimage", "newer", None, ["b"], []),
        ("delete", "new", "long", [], []),
    ]


def test_a_null_in_a_key_is_what_a_partition_with_another_identity_left_out() -> None:
    # M4.2, M4.6
    root = Relation(1, "public", "t", "i", tuple(Column(True, n, 25, -1) for n in "ab"))
    changes: list[Message] = [
        Update(1, (b"old", None), None, (b"new", b"value")),
        # Its old value is not there to be filled in.
        Update(1, (b"old", None), None, (b"new", UNCHANGED)),
        Delete(1, (b"new", None), None),
    ]
    run = run_of(random.Random(1), changes, [[root]])
    found = TableChanges(wanted_of(root)).batch(run).to_pylist()
    shown = [(r["_change_type"], r["a"], r["b"], r["_unchanged"], r["_absent"]) for r in found]
    assert shown == [
        ("update_preimage", "old", None, [], ["b"]),
        ("update_postimage", "new", "value", [], []),
        ("update_preimage", "old", None, [], ["b"]),
        ("update_postimage", "new", None, ["b"], []),
        ("delete", "new", None, [], ["b"]),
    ]


@pytest.mark.parametrize(
    ("oid", "modifier", "text"),
    [
        (21, -1, b"32768"),
        (23, -1, b"-2147483649"),
        (20, -1, b"9" * 19),
        (1700, (5 << 16) + 1 + 4, b"nan"),
        (1700, (5 << 16) + 1 + 4, b"12345.6"),
        (1700, (5 << 16) + 1 + 4, b"1.23"),
        (1231, (5 << 16) + 1 + 4, b"{1.0,12345.6}"),
    ],
)
def test_a_number_that_its_type_cannot_hold_is_none(oid: int, modifier: int, text: bytes) -> None:
    """No server sends it; it is no error of Arrow's, which would show the value."""
    relation = Relation(1, "public", "t", "d", (Column(True, "n", oid, modifier),))
    run = run_of(random.Random(1), [Insert(1, (text,))], [[relation]])
    (row,) = TableChanges(wanted_of(relation)).batch(run).to_pylist()
    assert row["n"] is None
