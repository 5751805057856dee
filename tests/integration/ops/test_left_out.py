"""What doctor says about what an aggregate has not counted, or does not show. M4.5, M5.4"""

from __future__ import annotations

import json

import pytest

from penstock.config import Config
from penstock.ops.doctor import diagnose
from penstock.ops.findings import Finding
from support.database import Database
from support.targets import Follower, with_tables

COLUMNS = "(service text, status text, count bigint NOT NULL DEFAULT 0)"


def config_for(database: Database) -> Config:
    """One that was seeded, and one that was not."""
    common = {"sources": ["notifications"], "dimensions": ["service", "status"]}
    return Config.model_validate(
        {
            "source": {"dsn": database.dsn(), "tables": ["notifications"]},
            "aggregate": [
                {"name": "counts", "targets": ["stats"], **common},
                {"name": "since", "targets": ["since"], "seed": False, **common},
            ],
        }
    )


@pytest.fixture
def notes(database18: Database) -> Database:
    database18.run("CREATE TABLE notifications (id int PRIMARY KEY, service text, status text)")
    with_tables(database18, *(f"CREATE TABLE {name} {COLUMNS}" for name in ("stats", "since")))
    return database18


def found(database: Database) -> dict[tuple[str, str, str], Finding]:
    checks = ("parked", "below_zero", "skipped", "clamped")
    names = [f"aggregate_{each}" for each in checks]
    told = [f for f in diagnose(config_for(database)) if f.check in names]
    by_place: dict[tuple[str, str, str], Finding] = {
        (f.subject.split()[-1], f.check.partition("_")[2], f.level): f for f in told
    }
    assert len(by_place) == len(told)
    return by_place


def test_parked_keys_are_told_with_their_reasons_and_without_values(notes: Database) -> None:
    notes.run("ALTER TABLE stats ADD CONSTRAINT known CHECK (service <> 'hunter2')")
    seeded, since = config_for(notes).aggregate
    with Follower(notes, seeded) as follower:
        follower.add({("hunter2", "a"): 1, ("hunter2", "b"): 1, ("s", "a"): -1})
    with Follower(notes, since, seeded=False) as follower:
        follower.add({("s", "a"): -1})

    told = found(notes)
    refused = told.pop(("counts", "parked", "warning"))
    assert refused.what == "its targets refuse keys: 2 in public.stats: CheckViolation: known"
    assert "tried again by themselves" in refused.fix
    negative = told.pop(("counts", "below_zero", "warning"))
    assert negative.what.endswith(": 1 in public.stats")
    assert "`penstock verify counts --repair`" in negative.fix
    assert told.pop(("since", "clamped", "info")).what.endswith(" 1 time")
    assert told == {}
    assert "hunter2" not in repr((refused, negative))
    progress = [f.what for f in diagnose(config_for(notes)) if f.check == "aggregate_progress"]
    assert [what.endswith(", but for what is parked") for what in progress] == [True, False]


def skipped(database: Database, aggregate: int, **by_reason: int) -> list[Finding]:
    """What is told where an aggregate has skipped so many."""
    with Follower(database, config_for(database).aggregate[aggregate]):
        database.run(f"UPDATE penstock.progress SET skipped = '{json.dumps(by_reason)}'")
    return [f for f in diagnose(config_for(database)) if f.check == "aggregate_skipped"]


# Each reason that there is, as it is told and what is advised.
RULE_OFF = "delete of public.notifications: the rule is off"
OLD = "update of public.notifications: the old status is not in the WAL"
UNCHANGED = "update of public.notifications: the unchanged status is not in the WAL"
INFINITE = "public.notifications: a made_at that Spark cannot hold"
FORMER = "public.notifications had no column status then"


def test_skipped_changes_are_told_with_what_helps_for_each_reason(notes: Database) -> None:
    # M4.5
    by_reason = {RULE_OFF: 1000, OLD: 2, UNCHANGED: 5, INFINITE: 3, FORMER: 1}
    in_wal, held, former, by_rule = skipped(notes, 0, **by_reason)
    assert {each.level for each in (in_wal, held, former)} == {"warning"}
    assert in_wal.what == f"changes were skipped: 5 ({UNCHANGED}); 2 ({OLD})"
    assert in_wal.fix == (
        "Let the table's replica identity cover these columns: an index over the primary key and "
        "them, or FULL. Then run `penstock verify --repair counts` or `penstock reset counts`"
    )
    assert held.what == f"changes were skipped: 3 ({INFINITE})"
    assert "`penstock verify` does not expect it" in held.why
    assert held.fix.startswith("Give such rows another value or the column another type")
    assert "identity" not in held.fix
    assert former.what == f"changes were skipped: 1 ({FORMER})"
    assert former.fix == "Run `penstock verify --repair counts` or `penstock reset counts`"
    assert (by_rule.level, by_rule.fix) == ("info", "")
    assert f": 1,000 ({RULE_OFF})" in by_rule.what


def test_what_cannot_be_verified_can_only_be_seeded_anew(notes: Database) -> None:  # M4.5
    (told,) = skipped(notes, 1, **{FORMER: 1})
    assert told.fix == "Run `penstock reset since`"


def test_what_a_repair_has_counted_already_is_not_told(notes: Database) -> None:  # M5.6
    assert skipped(notes, 0, **{OLD: -2}) == []


def test_where_nothing_is_left_out_nothing_is_said(notes: Database) -> None:
    assert found(notes) == {}
    with Follower(notes, config_for(notes).aggregate[0]) as follower:
        follower.add({("s", "a"): 1})
    assert found(notes) == {}
    # That the table is missing is told by another finding.
    notes.run("DROP TABLE penstock.parked")
    assert found(notes) == {}
