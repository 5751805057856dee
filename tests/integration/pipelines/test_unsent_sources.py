"""Tables of which the publication no longer sends what aggregates count: nothing in the stream
tells, so the job looks. M4.6
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from unittest.mock import Mock, call

import pytest

from penstock.config import Config
from penstock.decode.stops import Stop, StopCode
from penstock.errors import InputUnfit, PenstockError
from penstock.ops.setup import setup
from penstock.pipelines import job
from penstock.pipelines.job import Job, require_ready
from penstock.pipelines.seeding import seed
from penstock.pipelines.sources import read_sources
from support.aggregates import NOTES, config_with, declared
from support.database import Database
from support.logs import begin_log
from support.ops import on_18
from support.printed import statements_of
from support.truth import no_spark
from support.waiting import eventually

CORRECT = "Then, if it has begun: penstock reset counts"
DROPPED = "ALTER PUBLICATION penstock DROP TABLE notes"
INSERTS_ONLY = "ALTER PUBLICATION penstock SET (publish = 'insert')"
SOME_ROWS = "ALTER PUBLICATION penstock SET TABLE notes WHERE (status = 'sent')"
SOME_COLUMNS = "ALTER PUBLICATION penstock SET TABLE notes (id)"
NOT_HELD = 'which publication "penstock" does not hold'


def config_of(database: Database, log: Path, *aggregates: dict[str, Any], **source: Any) -> Config:
    config = config_with(database, *aggregates, **source)
    return config.model_copy(update={"log": config.log.model_copy(update={"path": log})})


@pytest.fixture
def config(database: Database, tmp_path: Path) -> Config:
    """Set up, and with a log."""
    database.run(NOTES)
    config = config_of(database, tmp_path)
    setup(config)
    begin_log(database, tmp_path, database.wal_position())
    require_ready(config)
    return config


def unfit(config: Config) -> list[PenstockError]:
    """What the watch says."""
    return [each.error for each in read_sources(config).unfit.values()]


def refused(config: Config) -> InputUnfit:
    """What the start and the watch say of the first aggregate, which is the same."""
    with pytest.raises(InputUnfit) as caught:
        require_ready(config)
    assert str(caught.value) == str(unfit(config)[0])
    return caught.value


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (INSERTS_ONLY, 'publication "penstock" does not send update, delete, truncate'),
        (SOME_ROWS, "sends only those with .*status.*, while seeding counts all"),
        (SOME_COLUMNS, "column service_id .* does not send.* column status .* does not send"),
    ],
)
def test_what_is_no_longer_sent_of_a_table_is_told_with_the_sql_that_mends_it(
    database: Database, config: Config, change: str, words: str
) -> None:
    database.run(change)
    error = refused(config)
    assert re.search(words, error.problem)
    assert error.remedy.endswith(CORRECT)
    database.run(*statements_of(error.remedy))
    require_ready(config)


def test_one_statement_mends_a_table_for_all_aggregates_and_keeps_what_else_was_chosen(
    database: Database, config: Config
) -> None:
    log = config.log.path
    since = {"seed": False, "verifiable": False}
    two = [
        declared(dimensions=["service_id"], **since),
        declared(name="more", dimensions=["status"], targets=["more"], **since),
    ]
    both = config_of(database, log, *two)
    database.run(f"{SOME_COLUMNS} WHERE (id > 7)")
    error, other = unfit(both)
    assert "aggregate counts reads column service_id" in error.problem
    assert "aggregate more reads column status" in other.problem
    assert error.remedy.count("BEGIN") == 1
    assert error.remedy.endswith(CORRECT)
    assert other.remedy.endswith("penstock reset more")
    assert statements_of(error.remedy) == statements_of(other.remedy)
    database.run(*statements_of(error.remedy))
    assert unfit(both) == []
    sent = "SELECT attnames::text[], rowfilter FROM pg_publication_tables"
    assert database.rows(sent) == [(["id", "service_id", "status"], "(id > 7)")]
    # A seeded one beside them counts all rows; the columns stay chosen.
    seeded = config_of(database, log, declared(dimensions=["status"]))
    (error,) = unfit(seeded)
    database.run(*statements_of(error.remedy))
    assert unfit(seeded) == []
    assert database.rows(sent) == [(["id", "service_id", "status"], None)]


@pytest.mark.parametrize(
    "change",
    [[DROPPED], ["DROP TABLE notes", "DROP TYPE kind", NOTES]],
    ids=["taken out", "made anew"],
)
def test_a_table_that_is_no_longer_published_is_told_and_set_up_publishes_it(
    database: Database, config: Config, change: list[str]
) -> None:
    database.run(*change)
    error = refused(config)
    assert error.problem == f"aggregate counts counts rows of public.notes, {NOT_HELD}"
    assert error.remedy == f"Run `penstock setup`, which adds it\n{CORRECT}"
    setup(config)
    require_ready(config)


def test_a_table_that_set_up_has_not_seen_is_told_although_its_target_is_there(
    database: Database, config: Config
) -> None:
    database.run(
        "CREATE TABLE letters (id int PRIMARY KEY, status text)",
        "CREATE TABLE by_status (status text UNIQUE NULLS NOT DISTINCT, count bigint NOT NULL)",
    )
    letters = declared(
        name="letters", sources=["letters"], dimensions=["status"], targets=["by_status"]
    )
    full = {"name": "letters", "replica_identity": "full"}
    more = config_of(database, config.log.path, declared(), letters, tables=["notes", full])
    require_ready(more)  # the other aggregate is well
    (error,) = unfit(more)
    assert error.problem == f"aggregate letters counts rows of public.letters, {NOT_HELD}"
    setup(more)
    assert unfit(more) == []


def test_a_table_that_was_renamed_or_dropped_is_told(database: Database, config: Config) -> None:
    database.run("ALTER TABLE notes RENAME TO notes_old")
    error = refused(config)
    assert error.problem == "aggregate counts counts rows of public.notes, which does not exist"
    assert "If it was renamed, its changes come under the new name" in error.remedy
    assert error.remedy.endswith(CORRECT)
    database.run("ALTER TABLE notes_old RENAME TO notes")
    require_ready(config)
    database.run("DROP TABLE notes")
    assert refused(config).problem == error.problem
    # Capture tells of the publication itself.
    database.run("DROP PUBLICATION penstock")
    assert refused(config).problem == error.problem


@on_18
def test_generated_columns_that_are_no_longer_sent_are_told(
    database: Database, tmp_path: Path
) -> None:
    database.run(NOTES, "ALTER TABLE notes ADD day int GENERATED ALWAYS AS (id % 7) STORED")
    config = config_of(database, tmp_path, declared(dimensions=["day"]))
    setup(config)
    begin_log(database, tmp_path, database.wal_position())
    require_ready(config)
    database.run("ALTER PUBLICATION penstock SET (publish_generated_columns = none)")
    error = refused(config)
    assert "reads column day of public.notes, a generated column, which publication" in str(error)
    database.run(*statements_of(error.remedy))
    require_ready(config)


ARCHIVE = {"table": "archive", "insert": False, "update": False, "delete": False}


@pytest.mark.parametrize(
    ("published", "changes"),
    [
        ("FOR ALL TABLES", {}),
        ("FOR TABLES IN SCHEMA public", {}),
        ("FOR TABLE notes (id, service_id, status)", {}),
        # Nothing of a table whose rules are off is needed, not even the table.
        ("FOR TABLE notes", {"sources": ["notes", ARCHIVE]}),
        (
            "FOR TABLE notes WITH (publish = 'insert, update, truncate')",
            {"sources": [{"table": "notes", "delete": False}], "verifiable": False},
        ),
        (
            "FOR TABLE notes WHERE (status = 'sent') WITH (publish = 'insert, update, delete')",
            {"seed": False},
        ),
    ],
)
def test_what_is_not_needed_need_not_be_sent(
    database: Database, config: Config, published: str, changes: dict[str, Any]
) -> None:
    database.run("DROP PUBLICATION penstock", f"CREATE PUBLICATION penstock {published}")
    given = config_of(database, config.log.path, declared(**changes), tables=["notes", "archive"])
    assert unfit(given) == []


def test_a_table_whose_changes_leave_the_wal_is_told_where_all_are_published(
    database: Database, config: Config
) -> None:
    # The server refuses it for a table that is published by name.
    database.run(
        "DROP PUBLICATION penstock",
        "CREATE PUBLICATION penstock FOR ALL TABLES",
        "ALTER TABLE notes SET UNLOGGED",
    )
    error = refused(config)
    assert "which cannot be published (unlogged table): its changes are not in the" in str(error)
    database.run(*statements_of(error.remedy))
    require_ready(config)


@on_18
def test_a_table_that_leaves_the_publication_stops_its_aggregate_and_one_that_is_moved_does_not(
    database: Database, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:  # M5.8
    monkeypatch.setattr(job, "_SOURCES_EVERY_S", 0.01)
    watcher = Job(config, Mock())
    writer = Mock(stop=None, away=None, noted=Mock(return_value=None))
    writer.name = "counts"
    watcher._writers = [writer]
    with watcher._beside(watcher._watch_sources, "watching"):
        by_name, by_schema = "TABLE notes", "TABLES IN SCHEMA public"
        for gone, instead in ((by_name, by_schema), (by_schema, by_name)) * 50:
            database.run(
                f"BEGIN; ALTER PUBLICATION penstock DROP {gone};"
                f" ALTER PUBLICATION penstock ADD {instead}; COMMIT"
            )
        assert not writer.stop_for.called
        database.run(DROPPED)
        eventually(lambda: writer.stop_for.called, "it is noticed")
    assert watcher._failure is None
    assert writer.stop_for.call_args == call(Stop(StopCode.NOT_SENT, "public.notes"))
    assert NOT_HELD in str(writer.fail.call_args)


@pytest.mark.parametrize("is_seeded", [True, False])
def test_no_seeding_ends_a_stop_while_its_changes_are_not_sent(
    database: Database, tmp_path: Path, is_seeded: bool
) -> None:  # M5.8: what changes after its snapshot would be lost
    database.run(NOTES)
    config = config_of(database, tmp_path, declared(seed=is_seeded))
    setup(config)
    begin_log(database, tmp_path, database.wal_position())
    (aggregate,) = config.aggregate
    seed(config, aggregate, no_spark)
    stops = "SELECT count(*) FROM penstock.stops"
    database.run(
        DROPPED,
        "INSERT INTO penstock.stops (aggregate, stop) VALUES ('counts', '{\"code\": \"x\"}')",
    )
    with pytest.raises(InputUnfit, match=NOT_HELD) as caught:
        seed(config, aggregate, no_spark)
    assert str(caught.value) == str(unfit(config)[0])
    assert database.value(stops) == 1
    assert database.value("SELECT state FROM penstock.progress") == "seeded"
    database.run("ALTER PUBLICATION penstock ADD TABLE notes")
    seed(config, aggregate, no_spark)
    assert database.value(stops) == 0
