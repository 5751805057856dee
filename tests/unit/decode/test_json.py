"""Many tables at once: rows as JSON that any parser reads, equal to what the typed reader knows."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.decode.changes import Wanted
from penstock.decode.definition import Definition
from penstock.decode.json import JsonChanges, WantedTables
from penstock.decode.reference import rows
from penstock.decode.types import TEXT, Kind
from penstock.errors import TableTruncated
from penstock.lsn import ZERO
from penstock.names import TableName
from penstock.postgres.messages import Column, Insert, Message, Relation, Truncate
from support.pgoutput_encoder import encode
from support.repeats import repeats
from support.rows import random_change, random_table, run_of

NUMBERS = (Kind.SMALLINT, Kind.INTEGER, Kind.BIGINT, Kind.REAL, Kind.DOUBLE, Kind.DECIMAL)


def plain(text: str | None, kind: Kind) -> object:
    """What JSON should hold for a text."""
    if text is None:
        return None
    if kind is Kind.BOOLEAN:
        return text == "t"
    if kind in NUMBERS and text.lstrip("-")[0].isdigit():
        return json.loads(text)
    return text


@settings(max_examples=repeats(80, soak=200), deadline=None)
@given(st.integers(0, 2**32))
def test_it_says_what_the_reference_says(seed: int) -> None:  # M4.6
    chance = random.Random(seed)
    tables = [random_table(chance, oid, f"t{oid}") for oid in (1, 2)]
    changes = [random_change(chance, *chance.choice(tables)) for _ in range(chance.randint(0, 20))]
    run = run_of(chance, changes, [[relation] for relation, _ in tables])
    expected = []
    for relation, _ in tables:
        definition = Definition.parse([encode(relation)])
        names = tuple((column.name, TEXT) for column in relation.columns)
        wanted = Wanted(definition.table, names, ZERO, on_truncate="emit")
        kinds = dict(zip((name for name, _ in names), definition.types, strict=True))
        for row in rows(run, wanted):
            hidden = {*row["_unchanged"], *row["_absent"]}
            known = {
                name: plain(row[name], kinds[name].kind) for name, _ in names if name not in hidden
            }
            expected.append((row["_seq"], str(definition.table), row["_change_type"], known))
    found: list[tuple[Any, ...]] = []
    for row in JsonChanges(WantedTables((), "emit")).batch(run).to_pylist():
        seq, table, change = row["_seq"], row["table"], row["_change_type"]
        if change == "truncate":
            found.append((seq, table, change, {}))
            continue
        images = {"before": "update_preimage", "after": "update_postimage"}
        for side, name in images.items():
            if row[side] is not None:
                found.append((seq, table, change.replace("update", name), json.loads(row[side])))
        key = json.loads(row["key"])
        assert key.items() <= json.loads(row["after"] or row["before"]).items()
    truncated = [row for row in expected if row[2] == "truncate"]
    shown = [row for row in expected if row[2] != "truncate"]
    shown += [(seq, table, change, {}) for seq, table, change, _ in truncated]
    assert sorted(found, key=repr) == sorted(shown, key=repr)


WORDS = Relation(1, "public", "Words", "d", (Column(True, 'a "b"', 25, -1),))


def test_any_text_survives() -> None:
    texts = ["", "\\", '"', "\n\r\t", "\x01\x1f", "null", "ä🐘", "{}"]
    changes: list[Message] = [Insert(1, (text.encode(),)) for text in texts]
    batch = JsonChanges(WantedTables(())).batch(run_of(random.Random(1), changes, [[WORDS]]))
    after = [json.loads(row) for row in batch["after"].to_pylist()]
    assert after == [{'a "b"': text} for text in texts]
    assert set(batch["table"].to_pylist()) == {'public."Words"'}


def test_tables_that_were_not_asked_for_are_left_out() -> None:
    run = run_of(random.Random(1), [Insert(1, (b"x",))], [[WORDS]])
    assert len(JsonChanges(WantedTables((TableName("public", "words"),))).batch(run)) == 0
    assert len(JsonChanges(WantedTables((TableName("public", "Words"),))).batch(run)) == 1


def test_a_truncate_is_an_error_unless_told_otherwise() -> None:  # M4.6
    run = run_of(random.Random(1), [Truncate(False, False, (1,))], [[WORDS]])
    with pytest.raises(TableTruncated, match=r'public\."Words" was truncated'):
        JsonChanges(WantedTables(())).batch(run)
    assert len(JsonChanges(WantedTables((), "skip")).batch(run)) == 0
