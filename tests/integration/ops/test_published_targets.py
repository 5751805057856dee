"""What Penstock writes is not in its own publication, or set-up and doctor say so. M4.1, M7.3"""

from __future__ import annotations

import psycopg
import pytest

from penstock.config import Config
from penstock.errors import TargetClash
from penstock.ops.doctor import diagnose
from penstock.ops.findings import Finding
from penstock.ops.setup import setup
from penstock.ops.teardown import teardown
from support.aggregates import config_with, declared
from support.database import Database
from support.ops import config_for, on_18, slots
from support.printed import statements_of

OURS = "penstock.progress, penstock.parked"
STATS = "CREATE TABLE stats (service_id uuid, status varchar(20), count bigint NOT NULL DEFAULT 0, "
KEY = "UNIQUE NULLS NOT DISTINCT (service_id, status))"
PARTITIONED = (
    f"{STATS} {KEY} PARTITION BY LIST (status)",
    "CREATE TABLE stats_1 PARTITION OF stats DEFAULT",
)


def told(config: Config) -> list[Finding]:
    return [f for f in diagnose(config) if f.check == "target_published"]


@on_18
@pytest.mark.parametrize(
    ("before", "published", "sent"),
    [
        ((), "ALL TABLES", f"{OURS}, public.stats"),
        ((), "TABLES IN SCHEMA public", "public.stats"),
        ((), "TABLE notes, TABLES IN SCHEMA public", "public.stats"),
        (("CREATE SCHEMA penstock",), "TABLE notes, TABLES IN SCHEMA penstock", OURS),
        ((STATS + KEY,), "TABLE notes, stats", "public.stats"),
        (PARTITIONED, "TABLE notes, stats_1", "public.stats"),
        (PARTITIONED, "TABLE notes, stats", "public.stats"),
    ],
)
def test_a_publication_of_what_penstock_writes_is_refused_and_mended_by_what_is_advised(
    notes: Database, before: tuple[str, ...], published: str, sent: str
) -> None:
    notes.run(*before, f"CREATE PUBLICATION penstock FOR {published}")
    config = config_with(notes)
    schemas = "SELECT array_agg(nspname::text ORDER BY 1) FROM pg_namespace"
    found = notes.value(schemas)
    for dry_run in (True, False):
        with pytest.raises(TargetClash) as caught:
            setup(config, dry_run=dry_run)
    assert f'publication "penstock" sends {sent}, which' in caught.value.problem
    assert "another database" in caught.value.remedy
    assert (slots(notes), notes.value(schemas)) == ([], found), "nothing was made"
    (finding,) = told(config)
    assert (finding.level, finding.subject) == ("error", "publication penstock")
    assert (finding.what, finding.fix) == (caught.value.problem, caught.value.remedy)

    notes.run(*statements_of(finding.fix))
    setup(config)
    assert setup(config).steps == ()
    assert told(config) == []
    held = "SELECT schemaname || '.' || tablename FROM pg_publication_tables"
    assert [name for (name,) in notes.rows(held)] == ["public.notes"]
    notes.run("UPDATE stats SET count = 1", "UPDATE penstock.progress SET epoch = 1")
    teardown(config)


@on_18
def test_what_made_writes_fail_was_a_schema_that_is_published_whole(notes: Database) -> None:
    """Set-up's own targets have no primary key: an index with NULLs is no replica identity."""
    config = config_with(notes)
    setup(config)
    notes.run("ALTER PUBLICATION penstock ADD TABLES IN SCHEMA public")
    with pytest.raises(TargetClash):
        setup(config)
    (finding,) = told(config)
    assert "public.stats" in finding.what
    update = "UPDATE stats SET count = 2"
    with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match="replica identity"):
        notes.run(update)
    notes.run(*statements_of(finding.fix), update)
    teardown(config)


@on_18
def test_each_aggregates_own_targets_are_looked_at(notes: Database) -> None:
    stats = (STATS + KEY).replace("stats", "{}")
    notes.run(
        *(stats.format(name) for name in ("stats_a", "stats_b")),
        "CREATE PUBLICATION penstock FOR TABLE notes, stats_a, stats_b",
    )
    both = [declared(name=name, targets=[f"stats_{name}"]) for name in ("a", "b")]
    config = config_with(notes, *both)
    assert [f.fix.partition(".")[0] for f in told(config)] == [
        "Run: ALTER PUBLICATION penstock DROP TABLE public"
    ] * 2
    assert ["stats_a" in f.what for f in told(config)] == [True, False]


@on_18
def test_without_targets_in_the_database_everything_may_be_published(notes: Database) -> None:
    notes.run("CREATE PUBLICATION penstock FOR ALL TABLES")
    with Database(notes.server, "t_reports") as reports:
        elsewhere = config_with(notes, declared(target_dsn=reports.dsn()))
        for config in (config_for(notes, "notes"), elsewhere):
            setup(config)
            assert setup(config).steps == ()
            assert told(config) == []
    teardown(config_for(notes, "notes"))
