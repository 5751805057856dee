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


def test_skipped_changes_are_a_warning_unless_a_rule_says_so(notes: Database) -> None:
    skipped = {
        "delete of public.notifications: the rule is off": 1000,
        "update of public.notifications: the old status is not in the WAL": 2,
        "public.notifications: a made_at that Spark cannot hold": 3,
    }
    with Follower(notes, config_for(notes).aggregate[0]):
        notes.run(f"UPDATE penstock.progress SET skipped = '{json.dumps(skipped)}'")
    told = found(notes)
    lacking = told.pop(("counts", "skipped", "warning"))
    assert lacking.what == (
        "changes were skipped: 3 (public.notifications: a made_at that Spark cannot hold); "
        "2 (update of public.notifications: the old status is not in the WAL)"
    )
    assert lacking.fix.endswith("`penstock reset counts`")
    by_rule = told.pop(("counts", "skipped", "info"))
    assert ": 1,000 (delete of public.notifications: the rule is off)" in by_rule.what
    assert told == {}


def test_where_nothing_is_left_out_nothing_is_said(notes: Database) -> None:
    assert found(notes) == {}
    with Follower(notes, config_for(notes).aggregate[0]) as follower:
        follower.add({("s", "a"): 1})
    assert found(notes) == {}
    # That the table is missing is told by another finding.
    notes.run("DROP TABLE penstock.parked")
    assert found(notes) == {}
