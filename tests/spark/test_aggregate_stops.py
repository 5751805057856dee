"""One aggregate's trouble is its own: it stops with its state and remedy, the others go on, and it
comes back without a restart of the job. M5.8
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from structlog.testing import capture_logs

from penstock.changelog.consumers import consumers
from penstock.changelog.reader import LogReader
from penstock.config import Config
from penstock.errors import AggregateStopped, SchemaMismatch
from penstock.ops.doctor import diagnose
from penstock.ops.setup import setup
from penstock.pipelines import job as job_module
from penstock.pipelines.job import Job, require_ready
from penstock.pipelines.seeding import seed
from penstock.pipelines.verifying import verify
from support.database import Database
from support.jobs import RunningJob, captured, job
from support.waiting import eventually

TABLES = (
    "CREATE TABLE letters (id bigserial PRIMARY KEY, status text, size int)",
    "CREATE TABLE calls (id bigserial PRIMARY KEY, status text, size int)",
    "INSERT INTO letters (status, size) VALUES ('new', 1), ('new', 2), ('sent', 3)",
    "INSERT INTO calls (status, size) VALUES ('new', 1)",
)


def counting(table: str, **changes: Any) -> dict[str, Any]:
    return {
        "name": table,
        "sources": [table],
        "dimensions": ["status"],
        "measures": {"count": "count", "size": "sum(size)"},
        "targets": [f"{table}_by_status"],
    } | changes


def config_of(database: Database, log: Path, *aggregates: dict[str, Any]) -> Config:
    full = [{"name": name, "replica_identity": "full"} for name in ("letters", "calls")]
    return Config.model_validate(
        {
            "source": {"dsn": database.dsn(), "tables": full},
            "log": {"path": log},
            "aggregate": aggregates or [counting("letters"), counting("calls")],
        }
    )


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_module, "_SOURCES_EVERY_S", 0.2)
    monkeypatch.setattr(job_module, "_TRY_FIRST_S", 0.2)
    monkeypatch.setattr(job_module, "_TRY_LATEST_S", 1.0)


@pytest.fixture
def both(database18: Database, tmp_path: Path) -> Config:
    """Two aggregates, of a table each."""
    database18.run(*TABLES)
    config = config_of(database18, tmp_path / "log")
    setup(config)
    return config


@pytest.fixture
def running(both: Config, spark: SparkSession, database18: Database) -> Iterator[RunningJob]:
    with captured(both), job(both, spark) as running:
        right(database18, running, "letters", "calls")
        yield running


def shown(database: Database, table: str) -> list[Any]:
    return database.rows(
        f"SELECT status, count, size FROM {table}_by_status WHERE count <> 0 ORDER BY status"
    )


def right(database: Database, running: RunningJob, *tables: str) -> None:
    """Until the counts are those of the tables, after one more change of each."""

    def equal(table: str) -> bool:
        running.must_run()
        return shown(database, table) == database.rows(
            f"SELECT status, count(*), sum(size) FROM {table} GROUP BY status ORDER BY status"
        )

    for table in tables:
        database.run(f"INSERT INTO {table} (status, size) VALUES ('sent', 7)")
    for table in tables:
        eventually(lambda table=table: equal(table), f"{table} is counted", within_s=60)  # type: ignore[misc]


def stops(database: Database) -> dict[str, str]:
    return dict(database.rows("SELECT aggregate, stop ->> 'code' FROM penstock.stops"))


def stopped(database: Database, name: str, code: str) -> None:
    eventually(lambda: stops(database).get(name) == code, f"{name} stops", within_s=60)


def test_a_truncate_stops_its_aggregate_until_a_reset_and_no_other(
    both: Config, running: RunningJob, database18: Database, spark: SparkSession
) -> None:  # M4.6, M5.8
    letters, _ = both.aggregate
    before = shown(database18, "letters")
    with capture_logs() as said:
        database18.run("BEGIN; TRUNCATE letters; INSERT INTO calls (size) VALUES (2); COMMIT")
        stopped(database18, "letters", "truncated")
        # Also what committed with the truncate.
        right(database18, running, "calls")
    assert shown(database18, "letters") == before
    (told,) = [each for each in said if each["event"] == "aggregate stopped"]
    assert "public.letters was truncated at" in told["problem"]
    assert told["remedy"] == "Run: penstock reset letters"
    # It holds back no log, and says what it waits for.
    names = {each.name for each in consumers(LogReader(both.log.path).storage)}
    assert names == {"aggregate-calls"}
    with pytest.raises(AggregateStopped, match=r"letters has stopped: public\.letters was"):
        verify(both, letters, lambda: spark)
    found = [each for each in diagnose(both) if each.check == "aggregate_stopped"]
    assert [each.subject for each in found] == ["aggregate letters"]
    assert "penstock reset letters" in str(found[0].fix)
    # The job takes it up again, and does not stop once more for the same truncate.
    database18.run("INSERT INTO letters (status, size) VALUES ('new', 1)")
    seed(both, letters, lambda: spark)
    right(database18, running, "letters", "calls")
    assert stops(database18) == {}
    assert verify(both, letters, lambda: spark).differences == ()
    assert {each.name for each in consumers(LogReader(both.log.path).storage)} == {
        "aggregate-calls",
        "aggregate-letters",
    }


def test_a_dropped_column_stops_its_aggregate_also_over_a_restart_and_one_comes_back_with_it(
    both: Config, running: RunningJob, database18: Database, spark: SparkSession
) -> None:  # M4.6, M5.8
    database18.run("ALTER TABLE letters DROP COLUMN status")
    database18.run("INSERT INTO letters (size) VALUES (5)")
    stopped(database18, "letters", "column_gone")
    right(database18, running, "calls")
    running.stop()
    with capture_logs() as said, job(both, spark) as again:
        right(database18, again, "calls")
        assert [each["aggregate"] for each in said if each["event"] == "aggregate stopped"] == [
            "letters"
        ]
        database18.run("ALTER TABLE letters ADD COLUMN status text DEFAULT 'old'")
        seed(both, both.aggregate[0], lambda: spark)
        right(database18, again, "letters", "calls")


def test_a_table_that_left_the_publication_stays_stopped_although_it_came_back(
    both: Config, running: RunningJob, database18: Database, spark: SparkSession
) -> None:  # M4.6, M5.8
    database18.run("ALTER PUBLICATION penstock DROP TABLE letters")
    database18.run("INSERT INTO letters (status, size) VALUES ('lost', 5)")
    stopped(database18, "letters", "not_sent")
    setup(both)
    right(database18, running, "calls")
    assert stops(database18) == {"letters": "not_sent"}
    seed(both, both.aggregate[0], lambda: spark)
    right(database18, running, "letters", "calls")


def test_an_aggregate_whose_target_is_gone_waits_for_it_and_no_other(
    both: Config, running: RunningJob, database18: Database
) -> None:  # M5.8
    with capture_logs() as said:
        database18.run("ALTER TABLE letters_by_status RENAME TO elsewhere")
        database18.run("INSERT INTO letters (status, size) VALUES ('new', 5)")
        right(database18, running, "calls")
        eventually(
            lambda: [each for each in said if each["event"] == "aggregate not followed"],
            "it is said",
        )
    (told,) = {each["aggregate"] for each in said if each["event"] == "aggregate not followed"}
    assert told == "letters"
    # Nothing was lost: it goes on where it was.
    database18.run("ALTER TABLE elsewhere RENAME TO letters_by_status")
    right(database18, running, "letters", "calls")
    assert stops(database18) == {}


def test_an_aggregate_that_cannot_begin_keeps_no_other_from_it(
    both: Config, database18: Database, spark: SparkSession, tmp_path: Path
) -> None:  # M5.8
    wrong = counting("letters", dimensions=["no_such_column"], targets=["nowhere"])
    config = config_of(database18, tmp_path / "log", wrong, counting("calls"))
    with captured(config):
        require_ready(config)
        with job(config, spark) as running:
            right(database18, running, "calls")
        alone = config_of(database18, tmp_path / "log", wrong)
        with pytest.raises(SchemaMismatch, match="has no column no_such_column"):
            require_ready(alone)


def test_a_job_whose_aggregates_have_all_stopped_waits_for_a_reset(
    both: Config, running: RunningJob, database18: Database, spark: SparkSession
) -> None:  # M5.8
    database18.run("TRUNCATE letters, calls")
    stopped(database18, "letters", "truncated")
    stopped(database18, "calls", "truncated")
    running.stop()
    require_ready(both)
    with capture_logs() as said, job(both, spark) as again:
        eventually(
            lambda: [each for each in said if each["event"] == "waiting for a reset"], "it says so"
        )
        for each in both.aggregate:
            seed(both, each, lambda: spark)
        right(database18, again, "letters", "calls")


SWAPPED = (
    "BEGIN; CREATE TABLE filled (LIKE letters INCLUDING ALL);"
    " INSERT INTO filled (status, size) VALUES ('other', 9);"
    " ALTER TABLE filled REPLICA IDENTITY FULL; ALTER PUBLICATION penstock ADD TABLE filled;"
    " ALTER TABLE letters RENAME TO letters_old; ALTER TABLE filled RENAME TO letters; COMMIT"
)
MADE_AGAIN = (
    "BEGIN; DROP TABLE letters;"
    " CREATE TABLE letters (id bigserial PRIMARY KEY, status text, size int);"
    " ALTER TABLE letters REPLICA IDENTITY FULL; ALTER PUBLICATION penstock ADD TABLE letters;"
    " COMMIT"
)


@pytest.mark.parametrize("replaced", [SWAPPED, MADE_AGAIN], ids=["swapped", "made again"])
@pytest.mark.parametrize("by", ["the stream", "the catalog"])
def test_a_table_that_was_replaced_is_another_one(
    both: Config,
    running: RunningJob,
    database18: Database,
    spark: SparkSession,
    replaced: str,
    by: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # M4.6, M5.8
    before = shown(database18, "letters")
    if by == "the stream":
        monkeypatch.setattr(Job, "_look_at_sources", lambda _: None)
    database18.run(replaced)
    if by == "the stream":
        database18.run("INSERT INTO letters (status, size) VALUES ('other', 1)")
    stopped(database18, "letters", "table_replaced")
    monkeypatch.undo()
    right(database18, running, "calls")
    assert shown(database18, "letters") == before
    seed(both, both.aggregate[0], lambda: spark)
    right(database18, running, "letters", "calls")


def test_changes_of_a_table_that_was_renamed_for_a_while_are_not_lost_in_silence(
    running: RunningJob, database18: Database, monkeypatch: pytest.MonkeyPatch
) -> None:  # M4.6
    monkeypatch.setattr(Job, "_look_at_sources", lambda _: None)
    database18.run(
        "ALTER TABLE letters RENAME TO elsewhere",
        "INSERT INTO elsewhere (status, size) VALUES ('new', 1)",
        "ALTER TABLE elsewhere RENAME TO letters",
    )
    stopped(database18, "letters", "table_renamed")
    right(database18, running, "calls")


def test_ddl_that_gives_rows_other_values_stops_and_other_ddl_does_not(
    both: Config, running: RunningJob, database18: Database, spark: SparkSession
) -> None:  # M4.6, M5.8
    noted = "SELECT marks::text FROM penstock.sources WHERE aggregate = 'letters'"
    for harmless in (
        "VACUUM FULL letters",
        "ALTER TABLE letters ALTER status SET DEFAULT 'x'",
        "ALTER TABLE letters ADD more int",
        "CLUSTER letters USING letters_pkey",
        "ALTER TABLE letters DROP more",
    ):
        database18.run(harmless)
        right(database18, running, "letters")
    eventually(
        lambda: (
            str(database18.value("SELECT pg_relation_filenode('letters')"))
            in str(database18.value(noted))
        ),
        "the new file is noted",
    )
    assert stops(database18) == {}
    database18.run("ALTER TABLE letters ALTER status TYPE text USING upper(status)")
    stopped(database18, "letters", "column_rewritten")
    right(database18, running, "calls")
    seed(both, both.aggregate[0], lambda: spark)
    right(database18, running, "letters", "calls")


def test_a_column_of_another_type_that_loses_nothing_is_followed_and_a_wider_one_stops(
    database18: Database, tmp_path: Path, spark: SparkSession
) -> None:  # M4.6, M5.8
    database18.run(
        *TABLES,
        "ALTER TABLE letters ADD price numeric(6, 2), ADD code varchar(3)",
        "UPDATE letters SET price = 1.5, code = 'a'",
    )
    priced = counting(
        "letters",
        dimensions=["status", "code", "size"],
        measures={"count": "count", "price": "sum(price)"},
    )
    config = config_of(database18, tmp_path / "log", priced, counting("calls"))
    setup(config)
    database18.run("ALTER TABLE letters_by_status ALTER size TYPE integer")

    def follows(running: RunningJob) -> None:
        # A change that only the new types hold.
        database18.run("INSERT INTO letters VALUES (DEFAULT, 'new', 1, 12345678.25, 'long')")

        def equal() -> bool:
            running.must_run()
            # Types that stay: the server keeps the plan of a statement.
            columns = "SELECT status, code::text, size::bigint"
            ours = f"{columns}, count, price FROM letters_by_status WHERE count > 0"
            sums = "count(*), coalesce(sum(price), 0)"
            true = f"{columns}, {sums} FROM letters GROUP BY status, code, size"
            return set(database18.rows(ours)) == set(database18.rows(true))

        eventually(equal, "all is counted", within_s=120)

    with captured(config), job(config, spark) as running:
        right(database18, running, "calls")
        database18.run(
            "ALTER TABLE letters ALTER price TYPE numeric(12, 2), ALTER code TYPE text",
            "ALTER TABLE letters_by_status ALTER code TYPE text",
        )
        follows(running)
        assert stops(database18) == {}
        # No catalog tells this from USING size * 10.
        database18.run("ALTER TABLE letters ALTER size TYPE bigint")
        database18.run("INSERT INTO letters (status, size) VALUES ('new', 3000000000)")
        stopped(database18, "letters", "column_retyped")
        right(database18, running, "calls")
        database18.run("ALTER TABLE letters_by_status ALTER size TYPE bigint")
        seed(config, config.aggregate[0], lambda: spark)
        follows(running)


def test_a_renamed_label_stops_and_one_that_is_added_does_not(
    database18: Database, tmp_path: Path, spark: SparkSession
) -> None:  # M4.6, M5.8
    database18.run(
        *TABLES,
        "CREATE TYPE kind AS ENUM ('email', 'sms')",
        "ALTER TABLE letters ALTER status TYPE kind USING 'sms'",
        "CREATE TABLE letters_by_status (status text UNIQUE NULLS NOT DISTINCT,"
        " count bigint NOT NULL DEFAULT 0, size numeric NOT NULL DEFAULT 0)",
    )
    config = config_of(database18, tmp_path / "log", counting("letters"))
    setup(config)
    with captured(config), job(config, spark) as running:
        eventually(lambda: shown(database18, "letters") == [("sms", 3, 6)], "it is seeded")
        database18.run("ALTER TYPE kind ADD VALUE 'sent' BEFORE 'sms'")
        eventually(
            lambda: "sent" in str(database18.value("SELECT marks FROM penstock.sources")),
            "the label is noted",
        )
        assert stops(database18) == {}
        database18.run("ALTER TYPE kind RENAME VALUE 'sms' TO 'text'")
        stopped(database18, "letters", "label_renamed")
        seed(config, config.aggregate[0], lambda: spark)
        eventually(lambda: shown(database18, "letters") == [("text", 3, 6)], "it is seeded")
        eventually(lambda: stops(database18) == {}, "it goes on")
        running.must_run()
