"""Deltas: what runs of the log add to aggregates, summed up and with nothing left out unsaid."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.decode import deltas
from penstock.decode.definition import Definition
from penstock.decode.deltas import (
    COUNTED,
    STOPPED,
    Deltas,
    Input,
    Summed,
    SummedSource,
    WantedDeltas,
    sum_type,
)
from penstock.decode.stops import Stop, StopCode
from penstock.decode.types import TEXT, Kind, ValueType
from penstock.errors import SchemaMismatch
from penstock.names import TableName
from penstock.postgres.messages import (
    UNCHANGED,
    Column,
    Delete,
    Insert,
    Message,
    Relation,
    Truncate,
    Update,
)
from support.counting import Totals, counted, totals_of
from support.pgoutput_encoder import encode
from support.repeats import repeats
from support.rows import random_change, random_table, run_of

INTEGER, BIGINT, SMALLINT = (ValueType(k) for k in (Kind.INTEGER, Kind.BIGINT, Kind.SMALLINT))
PRICE = ValueType(Kind.DECIMAL, 10, 2)
OIDS = {TEXT: (25, -1), INTEGER: (23, -1), BIGINT: (20, -1), SMALLINT: (21, -1)}
OIDS |= {PRICE: (1700, (10 << 16) + 2 + 4)}
ALL = frozenset(("insert", "update", "delete"))


def modifier(precision: int, scale: int) -> int:
    return (precision << 16) + scale + 4


def table(oid: int, name: str, **columns: ValueType | tuple[int, int]) -> Relation:
    """The first column is the identity."""
    given = [
        Column(number == 0, name, *(OIDS[kind] if isinstance(kind, ValueType) else kind))
        for number, (name, kind) in enumerate(columns.items())
    ]
    return Relation(oid, "public", name, "f", tuple(given))


def source(name: str, **changes: Any) -> SummedSource:
    given: dict[str, Any] = {
        "rules": ALL,
        "immutable": frozenset(),
        "aliases": {},
        "after_lsn": 0,
    }
    return SummedSource(TableName("public", name), **given | changes)


def summed(
    *sources: SummedSource, keys: dict[str, ValueType], sums: dict[str, ValueType] | None = None
) -> Summed:
    return Summed(
        "counts",
        sources,
        tuple(Input(*each) for each in keys.items()),
        tuple(Input(*each) for each in (sums or {}).items()),
    )


def found(
    changes: Sequence[Message], definitions: Sequence[Relation], *wanted: Summed
) -> list[Totals]:
    run = run_of(random.Random(1), changes, [[each] for each in definitions])
    return totals_of(Deltas(WantedDeltas(wanted)).batches([run]), wanted)


def key(*values: Any) -> tuple[str, ...]:
    return tuple(map(repr, values))


@pytest.mark.parametrize(
    ("kind", "oid", "values", "total"),
    [
        (SMALLINT, (21, -1), [32767, 32767, 1], 65535),
        (INTEGER, (23, -1), [2**31 - 1] * 5, 5 * (2**31 - 1)),
        (BIGINT, (20, -1), [2**63 - 1] * 20, 20 * (2**63 - 1)),
        (PRICE, (1700, modifier(10, 2)), ["99999999.99", "0.01"], Decimal("100000000.00")),
        (
            ValueType(Kind.DECIMAL, 38, 30),
            (1700, modifier(38, 30)),
            ["0.000000000000000000000000000001", "12345678"],
            Decimal("12345678.000000000000000000000000000001"),
        ),
    ],
)
def test_sums_do_not_wrap(
    kind: ValueType, oid: tuple[int, int], values: list[Any], total: Any
) -> None:  # M5.2
    t = table(1, "t", id=INTEGER, amount=oid)
    wanted = summed(source("t"), keys={}, sums={"amount": kind})
    inserts: list[Message] = [Insert(1, (b"1", str(value).encode())) for value in values]
    (totals,) = found(inserts, [t], wanted)
    assert totals.rows == {(): (len(values), total)}
    deletes = [Delete(1, None, change.new) for change in inserts if isinstance(change, Insert)]
    (totals,) = found(deletes, [t], wanted)
    assert totals.rows == {(): (-len(values), Decimal(total).copy_negate())}


def test_a_sum_beyond_38_digits_is_an_error_and_not_another_number() -> None:  # M5.2
    widest = ValueType(Kind.DECIMAL, 38, 0)
    t = table(1, "t", id=INTEGER, amount=(1700, modifier(38, 0)))
    wanted = summed(source("t"), keys={}, sums={"amount": widest})
    insert = Insert(1, (b"1", b"9" * 38))
    assert found([insert], [t], wanted)[0].rows == {(): (1, Decimal("9" * 38))}
    with pytest.raises(SchemaMismatch, match=r"the sum of amount .* 38 digits"):
        found([insert, insert], [t], wanted)
    run = run_of(random.Random(1), [insert], [[t]])
    with pytest.raises(SchemaMismatch, match=r"the sum of amount .* 38 digits"):
        list(Deltas(WantedDeltas((wanted,))).batches([run, run]))


def test_null_in_a_sum_adds_nothing_and_null_in_a_key_is_a_value() -> None:  # M5.2
    t = table(1, "t", id=INTEGER, status=TEXT, price=PRICE)
    wanted = summed(source("t"), keys={"status": TEXT}, sums={"price": PRICE})
    changes: list[Message] = [
        Insert(1, (b"1", None, None)),
        Insert(1, (b"2", None, b"1.50")),
        Insert(1, (b"3", b"sent", None)),
    ]
    (totals,) = found(changes, [t], wanted)
    assert totals.rows == {key(None): (2, Decimal("1.50")), key("sent"): (1, 0)}


def test_what_cancels_out_is_not_sent_neither_in_one_run_nor_over_several() -> None:  # M5.4
    t = table(1, "t", id=INTEGER, status=TEXT)
    wanted = summed(source("t"), keys={"status": TEXT})
    came, went = Insert(1, (b"1", b"x")), Delete(1, None, (b"1", b"x"))
    decoder = Deltas(WantedDeltas((wanted,)))
    chance = random.Random(1)
    both = run_of(chance, [came, went], [[t]])
    (batch,) = decoder.batches([both])
    assert batch["_note"].to_pylist() == [COUNTED]
    (batch,) = decoder.batches([run_of(chance, [came], [[t]]), run_of(chance, [went], [[t]])])
    assert batch["_note"].to_pylist() == [COUNTED]
    assert batch["_rows"].to_pylist() == [2]


def test_a_sum_changes_though_the_count_does_not() -> None:  # M5.2
    t = table(1, "t", id=INTEGER, status=TEXT, price=PRICE)
    wanted = summed(source("t"), keys={"status": TEXT}, sums={"price": PRICE})
    update = Update(1, None, (b"1", b"x", b"1.00"), (b"1", b"x", b"3.50"))
    (totals,) = found([update], [t], wanted)
    assert totals.rows == {key("x"): (0, Decimal("2.50"))}


def test_several_aggregates_over_the_same_and_other_tables() -> None:  # M5.2
    orders = table(1, "orders", id=INTEGER, status=TEXT, price=PRICE)
    lines = table(2, "lines", id=INTEGER, status=INTEGER)
    changes: list[Message] = [
        Insert(1, (b"1", b"new", b"2.00")),
        Insert(2, (b"1", b"7")),
        Update(1, None, (b"1", b"new", b"2.00"), (b"1", b"paid", b"2.00")),
        Insert(1, (b"2", b"new", b"3.00")),
    ]
    # Columns of one name and other types do not get mixed up.
    by_status = summed(source("orders"), keys={"status": TEXT})
    of_lines = summed(source("lines"), keys={"status": INTEGER})
    total = summed(source("orders"), keys={}, sums={"price": PRICE})
    first, second, third = found(changes, [orders, lines], by_status, of_lines, total)
    assert first.rows == {key("paid"): (1,), key("new"): (1,)}
    assert second.rows == {key(7): (1,)}
    assert third.rows == {(): (2, Decimal("5.00"))}
    assert [each.notes for each in (first, second, third)] == [
        {COUNTED: 3},
        {COUNTED: 1},
        {COUNTED: 3},
    ]


def test_an_aggregate_that_reads_no_column_counts_rows() -> None:  # M5.2
    t = table(1, "t", id=INTEGER, status=TEXT)
    row, other = (b"1", b"new"), (b"1", b"paid")
    # Of a row that changes or goes, nothing need be known.
    changes: list[Message] = [
        *(Insert(1, row), Insert(1, row), Insert(1, row)),
        *(Update(1, None, row, other), Update(1, None, None, other), Update(1, row, None, other)),
        *(Delete(1, None, other), Delete(1, row, None)),
    ]
    (totals,) = found(changes, [t], summed(source("t"), keys={}))
    assert (totals.rows, totals.notes) == ({(): (1,)}, {COUNTED: 8})


def test_one_aggregate_over_two_tables_with_types_that_go_together() -> None:  # M4.6, M5.2
    small = table(1, "small", id=INTEGER, service=INTEGER)
    large = table(2, "large", id=INTEGER, service=BIGINT)
    wanted = summed(source("small"), source("large"), keys={"service": BIGINT})
    changes: list[Message] = [Insert(1, (b"1", b"5")), Insert(2, (b"1", b"5"))]
    (totals,) = found(changes, [small, large], wanted)
    assert totals.rows == {key(5): (2,)}


def test_names_that_look_like_our_own() -> None:  # M4.6
    """A column may be called as a sum would be, or as a column of ours."""
    names = ("sum price", "_rows", "x_sum", "Weird `name`")
    t = Relation(
        1,
        "public",
        "t",
        "f",
        (*(Column(False, name, 20, -1) for name in names), Column(False, "price", 20, -1)),
    )
    wanted = summed(source("t"), keys=dict.fromkeys(names, BIGINT), sums={"price": BIGINT})
    row = (b"1", b"2", b"3", b"4", b"5")
    (totals,) = found([Insert(1, row), Insert(1, row)], [t], wanted)
    assert totals.rows == {key(1, 2, 3, 4): (2, 10)}
    run = run_of(random.Random(1), [Insert(1, row)], [[t]])
    (totals,) = totals_of(Deltas(WantedDeltas((wanted,))).batches([run, run]), [wanted])
    assert totals.rows == {key(1, 2, 3, 4): (2, 10)}


def test_an_array_can_be_read_by_an_expression() -> None:  # M4.6
    tags = ValueType(Kind.ARRAY, element=TEXT)
    t = table(1, "t", id=INTEGER, tags=(1009, -1))
    wanted = summed(source("t"), keys={"tags": tags})
    changes: list[Message] = [
        Insert(1, (b"1", b"{a,b}")),
        Insert(1, (b"2", b"{a,b}")),
        Insert(1, (b"3", None)),
        Delete(1, None, (b"1", b"{a,b}")),
    ]
    (totals,) = found(changes, [t], wanted)
    assert totals.rows == {key(["a", "b"]): (1,), key(None): (1,)}
    run = run_of(random.Random(1), changes, [[t]])
    (totals,) = totals_of(Deltas(WantedDeltas((wanted,))).batches([run, run]), [wanted])
    assert totals.rows == {key(["a", "b"]): (2,), key(None): (2,)}


# --- tables that change ---------------------------------------------------------------------------


def stop_of(totals: Any) -> Stop:
    (note,) = (note for note in totals.notes if note.startswith(STOPPED))
    return Stop.from_json(note.removeprefix(STOPPED))


def test_a_truncate_stops_its_aggregate_and_no_other() -> None:  # M4.6, M5.8
    t, other = table(1, "t", id=INTEGER, status=TEXT), table(2, "other", id=INTEGER)
    wanted = summed(source("t"), keys={"status": TEXT})
    truncate = Truncate(False, False, (2, 1))
    beside = summed(source("more"), keys={"id": INTEGER})
    more = table(3, "more", id=INTEGER)
    changes: list[Message] = [truncate, Insert(3, (b"7",)), Insert(1, (b"1", b"a"))]
    stopped, others = found(changes, [t, other, more], wanted, beside)
    assert stop_of(stopped) == Stop(StopCode.TRUNCATED, "public.t", lsn="0/3E8")
    assert (others.rows, others.notes) == ({key(7): (1,)}, {COUNTED: 1})
    assert found([Truncate(False, False, (2,))], [t, other], wanted)[0].rows == {}


def test_a_truncate_of_a_table_that_does_not_count_is_nothing() -> None:  # M4.6
    t, archive = table(1, "t", id=INTEGER, status=TEXT), table(2, "archive", id=INTEGER)
    off = source("archive", rules=frozenset())
    wanted = summed(source("t"), off, keys={"status": TEXT})
    (totals,) = found([Truncate(False, False, (2,))], [t, archive], wanted)
    assert (totals.rows, totals.notes) == ({}, {})


def test_what_the_target_has_is_not_looked_at_again() -> None:  # M5.5: the others run on
    """One aggregate was reset after a truncate and another type; the others are still before."""
    before = table(1, "t", id=INTEGER, status=(1114, -1))
    after = table(1, "t", id=INTEGER, status=INTEGER)
    chance = random.Random(1)
    changes: list[Message] = [Insert(1, (b"1", b"infinity")), Truncate(False, False, (1,))]
    runs = [
        run_of(chance, changes, [[before]]),
        run_of(chance, [Insert(1, (b"1", b"7"))], [[after]]),
    ]
    runs[1] = replace(runs[1], commit_lsn=runs[1].commit_lsn + np.uint64(100))
    wanted = summed(source("t"), keys={"status": INTEGER})
    (totals,) = found(changes[:1], [before], wanted)
    assert stop_of(totals).code is StopCode.COLUMN_RETYPED
    later = replace(wanted, applied_lsn=1000)
    (totals,) = totals_of(Deltas(WantedDeltas((later,))).batches(runs), [later])
    assert stop_of(totals).code is StopCode.TRUNCATED
    # The truncate commits at 1001.
    wanted = replace(wanted, applied_lsn=1001)
    (totals,) = totals_of(Deltas(WantedDeltas((wanted,))).batches(runs), [wanted])
    assert (totals.rows, totals.notes) == ({key(7): (1,)}, {COUNTED: 1})
    wanted = replace(wanted, applied_lsn=1100)
    assert list(Deltas(WantedDeltas((wanted,))).batches(runs)) == []


def test_a_table_that_does_not_count_needs_none_of_the_columns() -> None:  # M4.5
    t = table(1, "t", id=INTEGER, status=TEXT)
    archive = table(2, "archive", id=INTEGER, status=(1009, -1), other=INTEGER)
    bare = table(3, "bare", id=INTEGER)
    off = [source(name, rules=frozenset()) for name in ("archive", "bare")]
    wanted = summed(source("t"), *off, keys={"status": INTEGER})
    archived = (b"1", b"{x}", b"2")
    changes: list[Message] = [
        Insert(2, archived),
        Update(2, None, archived, archived),
        Insert(3, (b"1",)),
    ]
    (totals,) = found(changes, [archive, bare], wanted)
    assert totals.rows == {}
    assert totals.notes == {
        "insert of public.archive: the rule is off": 1,
        "update of public.archive: the rule is off": 1,
        "insert of public.bare: the rule is off": 1,
    }
    assert t.oid == 1


def test_a_column_that_is_gone_stops_and_one_that_came_later_is_a_reason() -> None:  # M4.6
    without = table(1, "t", id=INTEGER)
    wanted = summed(source("t", after_lsn=1000), keys={"status": TEXT})
    # The first change commits at 1000: the column came after it.
    (totals,) = found([Insert(1, (b"1",))], [without], wanted)
    assert totals.rows == {}
    assert totals.notes == {"public.t had no column status then": 1}
    (totals,) = found([Insert(1, (b"1",)), Insert(1, (b"2",))], [without], wanted)
    assert stop_of(totals) == Stop(StopCode.COLUMN_GONE, "public.t", "status", "0/3E9")


def test_a_column_of_another_type_stops_its_aggregate() -> None:  # M4.6, M5.8
    t = table(1, "t", id=INTEGER, status=TEXT)
    wanted = summed(source("t"), keys={"status": INTEGER})
    (totals,) = found([Insert(1, (b"1", b"x"))], [t], wanted)
    retyped = Stop(StopCode.COLUMN_RETYPED, "public.t", "status", "0/3E8", "integer", "text")
    assert stop_of(totals) == retyped


def test_a_column_renamed_in_mid_stream_goes_on_by_its_alias() -> None:  # M4.5, M4.6
    before = table(1, "t", id=INTEGER, status=TEXT)
    after = table(1, "t", id=INTEGER, notification_status=TEXT)
    aliases = {"notification_status": ("notification_status", "status")}
    wanted = summed(source("t", aliases=aliases), keys={"notification_status": TEXT})
    chance = random.Random(1)
    inserted = run_of(chance, [Insert(1, (b"1", b"created"))], [[before]])
    sent = Update(1, None, (b"1", b"created"), (b"1", b"sent"))
    updated = run_of(chance, [sent], [[after]])
    (totals,) = totals_of(Deltas(WantedDeltas((wanted,))).batches([inserted, updated]), [wanted])
    assert totals.rows == {key("sent"): (1,)}


# Issue 22, item 17: in the migration that aliases invite, a backfilling UPDATE changes nothing.
ALIASED = source("t", aliases={"status": ("notification_status", "status")})


def migrating(*identity: str, whole: bool = False) -> Relation:
    """Both columns, the new one nullable and behind the old one."""
    kinds = {"id": INTEGER, "status": TEXT, "notification_status": TEXT}
    columns = (Column(whole or name in identity, name, *OIDS[kind]) for name, kind in kinds.items())
    return Relation(1, "public", "t", "f" if whole else "i", tuple(columns))


def test_the_first_alias_that_is_not_null_counts() -> None:  # M4.5, M4.6
    wanted = summed(ALIASED, keys={"status": TEXT})
    changes: list[Message] = [
        Insert(1, (b"1", b"old", b"new")),
        Insert(1, (b"2", b"old", None)),
        Insert(1, (b"3", None, None)),
        # The backfill, then the application's own change, then the old column is emptied.
        Update(1, None, (b"2", b"old", None), (b"2", b"old", b"old")),
        Update(1, None, (b"2", b"old", b"old"), (b"2", b"old", b"sent")),
        Update(1, None, (b"2", b"old", b"sent"), (b"2", None, b"sent")),
        Delete(1, None, (b"1", b"old", b"new")),
    ]
    (totals,) = found(changes, [migrating(whole=True)], wanted)
    assert totals.rows == {key("sent"): (1,), key(None): (1,)}
    assert totals.notes == {COUNTED: len(changes)}


def test_an_old_alias_that_is_not_in_the_wal_may_have_been_a_value() -> None:  # M4.5
    wanted = summed(ALIASED, keys={"status": TEXT})
    by_index = migrating("id", "status")
    changes: list[Message] = [
        Update(1, None, None, (b"1", b"old", b"new")),
        # What the key leaves out is NULL there, which says nothing.
        Update(1, (b"1", b"old", None), None, (b"1", b"sent", None)),
        Delete(1, (b"1", b"old", None), None),
    ]
    (totals,) = found(changes, [by_index], wanted)
    assert totals.rows == {}
    assert totals.notes == {
        "update of public.t: the old status is not in the WAL": 2,
        "delete of public.t: the old status is not in the WAL": 1,
    }
    # With the new column in the identity, the old one is not asked for.
    (totals,) = found(changes[:1], [migrating("id", "notification_status")], wanted)
    assert totals.notes == {COUNTED: 1}


def test_of_two_inputs_that_share_a_column_one_may_be_immutable() -> None:  # M4.5
    shared = source(
        "t",
        aliases={"kept": ("notification_status", "status"), "changing": ("notification_status",)},
        immutable=frozenset({"kept"}),
    )
    backfill = Update(1, None, None, (b"1", b"old", b"old"))
    definition = migrating("id")
    (totals,) = found([backfill], [definition], summed(shared, keys={"kept": TEXT}))
    assert totals.rows == {}
    assert totals.notes == {COUNTED: 1}
    both = summed(shared, keys={"kept": TEXT, "changing": TEXT})
    (totals,) = found([backfill], [definition], both)
    assert totals.notes == {"update of public.t: the old changing is not in the WAL": 1}


def test_aliases_of_different_types_are_read_each_by_its_own() -> None:  # M4.6
    both = table(1, "t", id=INTEGER, old=INTEGER, new=BIGINT)
    aliased = source("t", aliases={"amount": ("new", "old")})
    wanted = summed(aliased, keys={}, sums={"amount": BIGINT})
    wide = str(2**40).encode()
    (totals,) = found(
        [Insert(1, (b"1", b"5", None)), Insert(1, (b"1", b"5", wide))], [both], wanted
    )
    assert totals.rows == {(): (2, 5 + 2**40)}
    wanted = summed(aliased, keys={"amount": INTEGER})
    (totals,) = found([Insert(1, (b"1", b"5", None))], [both], wanted)
    retyped = Stop(StopCode.COLUMN_RETYPED, "public.t", "new", "0/3E8", "integer", "bigint")
    assert stop_of(totals) == retyped


# --- values without a place -----------------------------------------------------------------------


def test_images_with_values_that_have_no_place_are_left_out_each_by_itself() -> None:  # M4.6
    moment = ValueType(Kind.TIMESTAMP)
    t = table(1, "t", id=INTEGER, at=(1114, -1), price=PRICE)
    wanted = summed(source("t"), keys={"at": moment}, sums={"price": PRICE})
    finite, price = b"2026-11-16 00:00:00", b"1.00"
    changes: list[Message] = [
        Insert(1, (b"1", b"infinity", price)),
        # Of an update the old image does not count, and the new one does.
        Update(1, None, (b"1", b"infinity", price), (b"1", finite, price)),
        Insert(1, (b"2", finite, b"NaN")),
        Delete(1, None, (b"2", finite, b"NaN")),
        Insert(1, (b"3", b"-infinity", b"NaN")),
        Update(1, None, (b"3", b"infinity", b"NaN"), (b"3", b"-infinity", b"NaN")),
        Insert(1, (b"4", finite, price)),
    ]
    (totals,) = found(changes, [t], wanted)
    assert list(totals.rows.values()) == [(2, Decimal("2.00"))]
    # Each change is told once, whatever is wrong with it.
    assert totals.notes == {
        COUNTED: 1,
        "public.t: a at that Spark cannot hold": 4,
        "public.t: a price that Spark cannot hold": 2,
    }


def test_an_unchanged_toast_value_is_filled_in_from_the_whole_old_row() -> None:  # M4.6
    full = table(1, "t", id=INTEGER, body=TEXT, status=TEXT)
    wanted = summed(source("t"), keys={"body": TEXT, "status": TEXT})
    update = Update(1, None, (b"1", b"long", b"a"), (b"1", UNCHANGED, b"b"))
    (totals,) = found([update], [full], wanted)
    assert totals.rows == {key("long", "a"): (-1,), key("long", "b"): (1,)}


# --- over runs, and against the plain way --------------------------------------------------------


def _alternatives(chance: random.Random, each: Input, inputs: Sequence[Input]) -> list[str]:
    """Columns that may stand in for one another, in any order; two inputs may share some."""
    names = [other.name for other in inputs if each.kind.holds(other.kind) and other != each]
    found = [each.name, *chance.sample(names, chance.randint(0, min(2, len(names))))]
    return chance.sample(found, len(found))


def random_wanted(chance: random.Random, relation: Relation) -> Summed:
    definition = Definition.parse([encode(relation)])
    inputs = [
        Input(column.name, kind)
        for column, kind in zip(relation.columns, definition.types, strict=True)
    ]
    numeric = (Kind.SMALLINT, Kind.INTEGER, Kind.BIGINT, Kind.DECIMAL)
    keys = tuple(each for each in inputs if chance.random() < 0.5)
    sums = tuple(e for e in inputs if e.kind.kind in numeric and chance.random() < 0.5)
    if chance.random() < 0.2:
        keys = (*keys, Input("later", TEXT))
    aliases = {
        each.name: ("not there", *_alternatives(chance, each, inputs))
        for each in dict.fromkeys((*keys, *sums))
        if each.name != "later" and chance.random() < 0.4
    }
    rules = frozenset(rule for rule in ALL if chance.random() < 0.85)
    immutable = frozenset(each.name for each in keys if chance.random() < 0.4)
    name = chance.choice(["counts", "others"])
    return Summed(name, (source(relation.name, rules=rules, immutable=immutable,
                                aliases=aliases, after_lsn=99_999),), keys, sums)  # fmt: skip


@settings(max_examples=repeats(60, soak=400), deadline=None)
@given(st.integers(0, 2**32))
def test_it_is_equal_to_counting_one_by_one(seed: int) -> None:  # M4.5, M4.6
    chance = random.Random(seed)
    tables = [random_table(chance, 1, "t"), random_table(chance, 2, "other")]
    wanted = [random_wanted(chance, chance.choice(tables)[0]) for _ in range(3)]
    per_run = []
    for _ in range(chance.randint(1, 3)):
        changes = [random_change(chance, *chance.choice(tables)) for _ in range(20)]
        per_run.append([change for change in changes if not isinstance(change, Truncate)])
    definitions: list[list[Message]] = [[relation] for relation, _ in tables]
    decoder = Deltas(WantedDeltas(tuple(wanted)))
    runs = [run_of(chance, changes, definitions) for changes in per_run]
    by_oid = {relation.oid: [relation] for relation, _ in tables}
    everything = [
        (change, by_oid[change.relation_oid])  # type: ignore[union-attr]
        for changes in per_run
        for change in changes
    ]
    expected = [counted(everything, one) for one in wanted]
    assert totals_of(decoder.batches(runs), wanted) == expected
    # Run by run it comes to the same.
    single = [batch for run in runs for batch in decoder.batches([run])]
    assert totals_of(single, wanted) == expected


def test_many_distinct_rows_are_sent_on_before_memory_grows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(deltas, "_MOST_ROWS", 20)
    t = table(1, "t", id=INTEGER)
    wanted = summed(source("t"), keys={"id": INTEGER})
    chance = random.Random(1)
    runs = [
        run_of(chance, [Insert(1, (str(n % 45).encode(),)) for n in range(first, first + 7)], [[t]])
        for first in range(0, 140, 7)
    ]
    batches = list(Deltas(WantedDeltas((wanted,))).batches(runs))
    assert len(batches) > 1
    (totals,) = totals_of(batches, [wanted])
    assert totals.rows == {key(n): (4 if n < 5 else 3,) for n in range(45)}
    assert totals.notes == {COUNTED: 140}


def test_the_widest_integer_is_summed_as_a_decimal() -> None:
    assert [str(sum_type(kind)) for kind in (SMALLINT, INTEGER, BIGINT, PRICE)] == [
        *("int64", "int64", "decimal128(38, 0)", "decimal128(38, 2)"),
    ]


def test_moments_of_a_minute_are_one_where_nobody_asks_for_more() -> None:  # M5.2
    t = table(1, "t", id=INTEGER, at=(1184, -1))
    moment = ValueType(Kind.TIMESTAMPTZ)
    exact = summed(source("t"), keys={"at": moment})
    coarse = replace(exact, keys=(Input("at", moment, by_minute=True),))
    inserts = [
        Insert(1, (b"1", f"2026-01-01 12:{at}+00".encode()))
        for at in ("00:00", "00:59.999999", "01:00")
    ]
    by_moment, by_minute = found(inserts, [t], exact, coarse)
    assert [count for count, *_ in by_moment.rows.values()] == [1, 1, 1]
    assert sorted(count for count, *_ in by_minute.rows.values()) == [1, 2]
