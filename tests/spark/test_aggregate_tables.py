"""Declared aggregates over tables of every kind, through the whole job."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from penstock.config import Config
from penstock.errors import TargetMismatch
from penstock.ops.setup import setup
from penstock.pipelines import job as job_module
from penstock.pipelines.job import Job
from penstock.pipelines.seeding import seed
from penstock.pipelines.sources import read_sources
from penstock.pipelines.verifying import verify
from support.database import Database
from support.jobs import captured, caught_up, job
from support.notify import PLAIN, SCHEMA, notify_config
from support.toml import write_toml
from support.waiting import eventually

ONE_NOTIFICATION = (
    "INSERT INTO notifications VALUES (gen_random_uuid(), gen_random_uuid(), gen_random_uuid(),"
    " NULL, 'sms', 'normal', 'created', now(), 1)"
)
ARCHIVED = (
    "WITH old AS (DELETE FROM notifications RETURNING *)"
    " INSERT INTO notification_history SELECT * FROM old"
)


def test_the_life_of_a_notification_step_by_step_through_archive_and_purge(
    database18: Database, tmp_path: Path, spark: SparkSession
) -> None:  # M4.5
    # The archive has it under its older name.
    database18.run(*SCHEMA, "ALTER TABLE notification_history RENAME notification_status TO status")
    database18.create_slot("penstock")
    names = {"notification_status": ["notification_status", "status"]}
    sources = [
        {"table": "notifications", "delete": False, "aliases": names},
        {"table": "notification_history", "insert": False, "delete": False, "aliases": names},
    ]
    declared = {**PLAIN, "sources": sources, "verifiable": False}
    config = notify_config(database18, tmp_path / "log", declared)
    with captured(config), job(config, spark) as running:
        caught_up(database18, running)
        for statement, expected in (
            (ONE_NOTIFICATION, {"created": 1}),
            ("UPDATE notifications SET notification_status = 'sending'", {"sending": 1}),
            ("UPDATE notifications SET price = 2", {"sending": 1}),
            ("UPDATE notifications SET notification_status = 'delivered'", {"delivered": 1}),
            (ARCHIVED, {"delivered": 1}),
            # A receipt that comes late.
            ("UPDATE notification_history SET status = 'failed'", {"failed": 1}),
            ("DELETE FROM notification_history", {"failed": 1}),
        ):
            database18.run(statement)
            caught_up(database18, running)
            shown = database18.rows("SELECT notification_status, count FROM ft_service_stats")
            assert {status: count for status, count in shown if count} == expected, statement
    ((changes, skipped),) = database18.rows("SELECT changes, skipped FROM penstock.progress")
    assert changes == 5
    assert skipped == {
        "delete of public.notifications: the rule is off": 1,
        "insert of public.notification_history: the rule is off": 1,
        "delete of public.notification_history: the rule is off": 1,
    }


_ROW = "region text NOT NULL, status text NOT NULL, amount integer NOT NULL, body text"
KINDS = (
    f"CREATE TABLE parted (id bigserial, {_ROW}) PARTITION BY LIST (region)",
    "CREATE TABLE parted_north PARTITION OF parted FOR VALUES IN ('north')",
    "CREATE TABLE parted_south PARTITION OF parted FOR VALUES IN ('south')",
    f"CREATE TABLE keyless (id bigserial, {_ROW})",
    f"CREATE TABLE by_index (id bigserial PRIMARY KEY, {_ROW})",
    "CREATE UNIQUE INDEX by_index_key ON by_index (id, region, status, amount)",
    f"CREATE TABLE fixed (id bigserial PRIMARY KEY, {_ROW})",
    "CREATE UNIQUE INDEX fixed_key ON fixed (id, status)",
)


def counts_of(table: str, **source: Any) -> dict[str, Any]:
    return {
        "name": f"counts_of_{table}",
        "sources": [{"table": table, **source}],
        "dimensions": ["region", "status"],
        "measures": {"count": "count", "total": "sum(amount)"},
        "targets": [f"counts_of_{table}"],
    }


def config_of(
    database: Database, log: Path, tables: list[Any], *aggregates: dict[str, Any]
) -> Config:
    """Of tables of the test's own, set up."""
    source = {"dsn": database.dsn(), "tables": tables, "keepalive_interval_s": 0.1}
    config = Config.model_validate(
        {
            "source": source,
            "heartbeat": {"interval_min": 0},
            "log": {"path": log},
            "aggregate": aggregates,
        }
    )
    setup(config)
    return config


def work_on(database: Database, table: str, *changing: str) -> None:
    """Rows come, change in some columns, and go."""
    chance = random.Random(table)
    draw = {
        "region": "(ARRAY['north', 'south'])[1 + floor(random() * 2)::int]",
        "status": "(ARRAY['new', 'open', 'done'])[1 + floor(random() * 3)::int]",
        "amount": "floor(random() * 100)::int",
        "body": "md5(random()::text)",
    }
    some = f"id IN (SELECT id FROM {table} ORDER BY random() LIMIT 5)"
    for _ in range(25):
        changed = chance.choice(("body", *changing))
        database.run(
            f"INSERT INTO {table} ({', '.join(draw)}) SELECT {', '.join(draw.values())}"
            " FROM generate_series(1, 10)",
            f"UPDATE {table} SET {changed} = {draw[changed]} WHERE {some}",
            f"WITH gone AS (DELETE FROM {table} WHERE {some} RETURNING *)"
            f" INSERT INTO gone SELECT '{table}', region, status, amount FROM gone",
        )


def differing(database: Database, target: str, rows: str) -> list[Any]:
    """What a target shows and should not, or the other way round."""
    truth = (
        f"SELECT region, status, count(*), sum(amount)::numeric FROM ({rows}) AS r GROUP BY 1, 2"
    )
    seen = f"SELECT region, status, count, total FROM {target} WHERE count <> 0 OR total <> 0"
    return database.rows(f"({seen} EXCEPT {truth}) UNION ALL ({truth} EXCEPT {seen})")


_COUNTED = "region, status, amount"


def test_every_kind_of_replica_identity_gives_what_group_by_gives(
    database18: Database, tmp_path: Path, spark: SparkSession
) -> None:  # M4.2, M4.5, M4.6
    database18.run(*KINDS, f"CREATE TABLE gone (was text, {_ROW.removesuffix(', body text')})")
    config = config_of(
        database18,
        tmp_path / "log",
        [
            {"name": "parted", "replica_identity": "full"},
            "keyless",
            {"name": "by_index", "replica_identity": "by_index_key"},
            {"name": "fixed", "replica_identity": "fixed_key"},
        ],
        counts_of("parted"),
        counts_of("keyless"),
        counts_of("by_index"),
        # Of a row that goes, the WAL has neither region nor amount.
        {
            **counts_of("fixed", immutable=["region", "amount"], delete=False),
            "verifiable": False,
        },
    )
    everything = ("region", "status", "amount")
    with captured(config):
        for table in ("parted", "keyless", "by_index"):
            work_on(database18, table, *everything)
        with job(config, spark) as running:
            for table in ("parted", "keyless", "by_index"):
                work_on(database18, table, *everything)
            # Begun before: what went by then was never counted.
            caught_up(database18, running)
            work_on(database18, "fixed", "status")
            caught_up(database18, running)
            for table in ("parted", "keyless", "by_index"):
                rows = f"SELECT {_COUNTED} FROM {table}"
                assert differing(database18, f"counts_of_{table}", rows) == []
            rows = f"SELECT {_COUNTED} FROM fixed"
            rows += f" UNION ALL SELECT {_COUNTED} FROM gone WHERE was = 'fixed'"
            assert differing(database18, "counts_of_fixed", rows) == []
            for aggregate in config.aggregate[:3]:
                assert verify(config, aggregate, lambda: spark).differences == ()
    skipped = dict(database18.rows("SELECT aggregate, skipped FROM penstock.progress"))
    went = database18.value("SELECT count(*) FROM gone WHERE was = 'fixed'")
    assert skipped == {
        "counts_of_parted": {},
        "counts_of_keyless": {},
        "counts_of_by_index": {},
        "counts_of_fixed": {"delete of public.fixed: the rule is off": went},
    }


# By column: its type in one table and in the other, and values that both have.
MIXED = {
    "size": ("real", "double precision", "0.1", "-0.0", "'NaN'", "'Infinity'", "1e-40", "16777217"),
    "price": ("numeric(10,2)", "numeric(10,4)", "1.50", "-99.99", "12345.67"),
    "amount": ("integer", "numeric(9,2)", "7", "-7", "0"),
    "number": ("oid", "smallint", "0", "32767"),
    "code": ("char(3)", "char(5)", "'a'", "'a b'", "''"),
    "flags": ("bit(3)", "bit varying(5)", "'101'", "'000'"),
    "at": ("timestamp(0)", "timestamp(3)", "'2026-01-01 12:00:00'"),
    "name": ("varchar(5)", "text", "'a  '", "'a'", "''"),
}


@pytest.mark.parametrize("computed", [False, True])
def test_columns_of_two_types_are_counted_in_one_that_keeps_them(
    database18: Database, tmp_path: Path, spark: SparkSession, computed: bool
) -> None:  # M4.6, M5.2, M5.5, M5.6
    for place, table in enumerate(("one", "other")):
        typed = ", ".join(f"{name} {kinds[place]}" for name, kinds in MIXED.items())
        database18.run(f"CREATE TABLE {table} (id bigserial PRIMARY KEY, {typed})")
    rows = [
        f"INSERT INTO {table} ({name}) VALUES ({value})"
        for table in ("one", "other")
        for name, (_, _, *values) in MIXED.items()
        for value in values
    ]
    database18.run(*rows, "INSERT INTO other (size, price) VALUES (0.1::real, 1.0001)")
    # With an expression among them, Spark reads the rows too, and not the server alone.
    dimensions = {**{name: name for name in MIXED}, **({"never": "id < 0"} if computed else {})}
    declared: dict[str, Any] = {
        "name": "mixed",
        "sources": ["one", "other"],
        "dimensions": dimensions,
        "targets": [{"table": f"by_{name}", "dimensions": [name]} for name in MIXED],
    }
    tables = [{"name": name, "replica_identity": "full"} for name in ("one", "other")]
    config = config_of(database18, tmp_path / "log", tables, declared)

    def differing(name: str) -> list[Any]:
        both = f"SELECT {name} FROM one UNION ALL SELECT {name} FROM other"
        truth = f"SELECT {name}, count(*) FROM ({both}) AS b GROUP BY 1"
        seen = f"SELECT {name}, count FROM by_{name} WHERE count <> 0"
        return database18.rows(f"({seen} EXCEPT {truth}) UNION ALL ({truth} EXCEPT {seen})")

    with captured(config), job(config, spark) as running:
        caught_up(database18, running)
        for changes in ((), (*rows, *rows), ("DELETE FROM one", "UPDATE other SET size = size")):
            database18.run(*changes)
            caught_up(database18, running)
            assert {name: differing(name) for name in MIXED} == {name: [] for name in MIXED}
            assert verify(config, config.aggregate[0], lambda: spark).differences == ()
    assert database18.value("SELECT count(*) FROM penstock.parked") == 0


def test_partitions_that_are_published_by_themselves_are_tables_like_others(
    database18: Database, tmp_path: Path, spark: SparkSession
) -> None:  # M4.6
    database18.run(*KINDS[:3], f"CREATE TABLE gone (was text, {_ROW.removesuffix(', body text')})")
    database18.run("CREATE PUBLICATION penstock FOR TABLE parted")
    leaves = ["parted_north", "parted_south"]
    both = {**counts_of("parted"), "sources": leaves}
    config = config_of(
        database18,
        tmp_path / "log",
        [{"name": leaf, "replica_identity": "full"} for leaf in leaves],
        both,
    )
    assert not database18.value("SELECT pubviaroot FROM pg_publication")
    with captured(config), job(config, spark) as running:
        caught_up(database18, running)
        work_on(database18, "parted", "region", "status", "amount")
        caught_up(database18, running)
        rows = f"SELECT {_COUNTED} FROM parted"
        assert differing(database18, "counts_of_parted", rows) == []
        assert verify(config, config.aggregate[0], lambda: spark).differences == ()


def test_a_partition_that_is_added_counts_and_one_without_its_identity_stops_the_aggregate(
    database18: Database, tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:  # M4.2, M4.6, M5.6
    monkeypatch.setattr(job_module, "_SOURCES_EVERY_S", 0.1)
    not_yet = threading.Event()

    def look(config: Config) -> Any:
        found = read_sources(config)
        return replace(found, unfit={}) if not_yet.is_set() else found

    monkeypatch.setattr(job_module, "read_sources", look)
    database18.run(*KINDS[:3], "ALTER TABLE parted ADD PRIMARY KEY (id, region)")
    whole = {"name": "parted", "replica_identity": "full"}
    config = config_of(database18, tmp_path / "log", [whole], counts_of("parted"))

    def added(region: str, *statements: str) -> None:
        database18.run(
            (
                f"CREATE TABLE parted_{region} PARTITION OF parted FOR VALUES IN ('{region}');"
                + "".join(statements)
            ),
            (
                "INSERT INTO parted (region, status, amount)"
                f" SELECT '{region}', 'new', n FROM generate_series(1, 3) AS n"
            ),
            f"DELETE FROM parted WHERE region = '{region}' AND amount = 1",
        )

    def wrong() -> list[Any]:
        return differing(database18, "counts_of_parted", f"SELECT {_COUNTED} FROM parted")

    with captured(config), job(config, spark) as running:
        caught_up(database18, running)
        added("east", "ALTER TABLE parted_east REPLICA IDENTITY FULL")
        caught_up(database18, running)
        assert wrong() == []
        not_yet.set()
        added("west")
        caught_up(database18, running)
        # The row that went, of which only the key was written.
        assert wrong() != []
        not_yet.clear()
        stops = "SELECT stop ->> 'code' FROM penstock.stops"
        eventually(lambda: database18.rows(stops) == [("partition_differs",)], "it stops")
        setup(config)
        # Nothing comes back by itself: a row was counted wrongly.
        assert database18.rows(stops) == [("partition_differs",)]
        seed(config, config.aggregate[0], lambda: spark)
        caught_up(database18, running)
        assert wrong() == []


def test_expressions_with_a_comment_and_such_that_read_no_column(
    database18: Database, tmp_path: Path, spark: SparkSession
) -> None:  # M5.2, M5.5
    database18.run(*KINDS[3:4])
    # A comment swallows nothing of what comes after it.
    status = {"expression": "upper(status) /* ; */ -- as shown", "type": "text"}
    counts = counts_of("keyless")
    counts |= {"dimensions": {"region": "region", "status": status}, "filter": "amount > 0 -- paid"}
    total = {
        "name": "total",
        "sources": ["keyless"],
        "dimensions": {"all": {"expression": "'all'", "type": "text"}},
        "targets": ["total"],
    }
    config = config_of(database18, tmp_path / "log", ["keyless"], counts, total)
    with captured(config):
        database18.run("INSERT INTO keyless VALUES (1, 'north', 'new', 5), (2, 'north', 'new', 0)")
        with job(config, spark) as running:
            caught_up(database18, running)
            assert database18.rows("TABLE counts_of_keyless") == [("north", "NEW", 1, 5)]
            assert database18.rows("TABLE total") == [("all", 2)]
            database18.run(
                "INSERT INTO keyless VALUES (3, 'north', 'new', 5), (4, 'north', 'new', 0)",
                "UPDATE keyless SET amount = 7 WHERE id = 2",
                "DELETE FROM keyless WHERE id = 1",
            )
            caught_up(database18, running)
            assert database18.rows("TABLE counts_of_keyless") == [("north", "NEW", 2, 12)]
            assert database18.rows("TABLE total") == [("all", 3)]
            assert verify(config, config.aggregate[0], lambda: spark).differences == ()


@pytest.mark.parametrize(
    ("expression", "gives", "kind", "remedy"),
    [
        ("upper(status)", "string", "integer", "Make the expression give integer"),
        ("to_date(status)", "date", "character varying(5)", "Give the column the type text"),
    ],
)
def test_a_target_must_hold_what_an_expression_gives(
    database18: Database,
    tmp_path: Path,
    spark: SparkSession,
    expression: str,
    gives: str,
    kind: str,
    remedy: str,
) -> None:  # M5.2
    database18.run(*KINDS[3:4])
    counts = counts_of("keyless")
    counts["dimensions"] = {"status": {"expression": expression, "type": kind}}
    config = config_of(database18, tmp_path / "log", ["keyless"], counts)
    with captured(config), pytest.raises(TargetMismatch) as caught:
        Job(config, spark).run()
    assert caught.value.problem == (
        "target public.counts_of_keyless of aggregate counts_of_keyless: column status is "
        f"{kind}, and its expression gives {gives}"
    )
    assert caught.value.remedy.startswith(remedy)


def test_doctor_has_spark_look_at_expressions(database18: Database, tmp_path: Path) -> None:
    # M4.2, M5.2
    database18.run(*KINDS[3:4])
    wrong: dict[str, dict[str, str]] = {
        "fits": {"expression": "upper(status)", "type": "text"},
        "unfit": {"expression": "upper(status)", "type": "integer"},
        "unknown": {"expression": "nope(status)", "type": "text"},
    }
    aggregates = [
        {
            "name": name,
            "sources": ["keyless"],
            "dimensions": {"status": status},
            "targets": [f"counts_{name}"],
        }
        for name, status in wrong.items()
    ]
    settings = {
        "source": {"dsn": database18.dsn(), "tables": ["keyless"]},
        "aggregate": aggregates,
    }
    setup(Config.model_validate(settings))
    file = write_toml(tmp_path / "penstock.toml", settings)
    command = [sys.executable, "-m", "penstock", "doctor", "--json", "--config", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2
    # Spark itself is not heard.
    assert done.stderr == ""
    found = {
        finding["subject"]: (finding["level"], finding["what"])
        for finding in json.loads(done.stdout)["findings"]
        if finding["check"] == "aggregate_expressions"
    }
    assert found["aggregate fits"][0] == "ok"
    level, what = found["aggregate unfit"]
    assert level == "error"
    assert "column status is integer, and its expression gives string" in what
    level, what = found["aggregate unknown"]
    assert level == "error"
    assert "Cannot resolve routine `nope`" in what
