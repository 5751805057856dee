"""From set-up to tear-down where the server takes no replication connection at all."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.changelog.reader import LogReader
from penstock.config import Config
from penstock.errors import NotPublishable, SessionShared, SlotWrongPlugin
from penstock.ops.doctor import diagnose
from penstock.ops.setup import setup
from penstock.ops.teardown import teardown
from penstock.pipelines.seeding import seed
from penstock.pipelines.verifying import verify
from penstock.postgres.embedded import EmbeddedPostgres
from support.capturing import capturing
from support.database import Database
from support.ops import config_for, on_18
from support.pgbouncer import pgbouncer
from support.truth import no_spark
from support.versions import NEWEST, version_id
from support.waiting import eventually

# (server, plugin): wal2json is there for Debian's.
WAYS = [(15, "pgoutput"), (15, "wal2json"), (18, "pgoutput")]
ORDERS = (
    "CREATE TABLE orders (id int PRIMARY KEY, shop varchar(10) NOT NULL, status text NOT NULL)",
    "INSERT INTO orders SELECT n, 'shop ' || n % 3, 'new' FROM generate_series(1, 300) AS n",
)
AGGREGATE = {
    "name": "counts",
    "sources": ["orders"],
    "dimensions": ["shop", "status"],
    "targets": ["order_counts"],
}


@pytest.fixture(params=WAYS, ids=lambda way: f"{version_id(way[0])}-{way[1]}")
def way(request: pytest.FixtureRequest) -> Iterator[tuple[Database, str]]:
    """A database of a server without walsenders, and the plugin."""
    version, plugin = request.param
    with (
        EmbeddedPostgres(
            NEWEST[version], settings={"max_wal_senders": 0}, output_plugins=["wal2json"]
        ) as server,
        Database(server, "app") as database,
    ):
        database.run(*ORDERS)
        yield database, plugin


def polled(database: Database, path: Path, plugin: str, **source: Any) -> Config:
    return Config.model_validate(
        {
            "source": {
                "dsn": database.dsn(),
                "tables": [{"name": "orders", "replica_identity": "full"}],
                "mode": "poll",
                "plugin": plugin,
                **source,
            },
            "poll": {"interval_s": 0.05},
            "heartbeat": {"interval_min": 0},
            "log": {"path": path},
            "aggregate": [AGGREGATE],
        }
    )


def test_an_aggregate_is_set_up_seeded_captured_and_verified_without_replication(
    way: tuple[Database, str], tmp_path: Path
) -> None:  # M4.3, M5.5, M5.6
    database, plugin = way
    config = polled(database, tmp_path / "log", plugin)
    plan = setup(config)
    titles = [step.title for step in plan.steps]
    assert any("publication" in title for title in titles) is (plugin == "pgoutput")
    made = "SELECT plugin FROM pg_replication_slots WHERE slot_name = 'penstock'"
    assert database.value(made) == plugin
    assert setup(config).steps == (), "it is idempotent"
    findings = diagnose(config)
    assert [each for each in findings if each.level == "error"] == []
    aggregate = config.aggregate[0]
    with capturing(config) as running:
        session = running.session()
        database.run("UPDATE orders SET status = 'paid' WHERE id <= 100")
        seeded = seed(config, aggregate, no_spark)
        database.run("DELETE FROM orders WHERE id > 290", "INSERT INTO orders VALUES (0, 's', 'x')")
        written = database.wal_position()
        eventually(lambda: session.durable_lsn >= written, "captured")
        found = verify(config, aggregate, no_spark)
        assert found.differences == ()
        assert found.lsn == seeded.lsn
        assert LogReader(tmp_path / "log").end().lsn >= written
    shown = database.rows("SELECT shop, status, count FROM order_counts ORDER BY 1, 2")
    assert sum(count for *_, count in shown) == 300
    teardown(config)
    assert database.rows("SELECT FROM pg_replication_slots") == []


def test_a_slot_of_the_other_plugin_is_refused(way: tuple[Database, str], tmp_path: Path) -> None:
    database, plugin = way
    other = {"pgoutput": "wal2json", "wal2json": "pgoutput"}[plugin]
    if plugin == "pgoutput" and database.server.version == 18:
        other = "test_decoding"
    database.create_slot("penstock", other)
    config = polled(database, tmp_path / "log", plugin)
    with pytest.raises(SlotWrongPlugin, match=f'"{other}", not "{plugin}"'):
        setup(config)
    assert any(
        each.check in ("slot", "publication") and each.level == "error" for each in diagnose(config)
    )


def test_wal2json_is_given_no_partitioned_table(database18: Database) -> None:
    database18.run("CREATE TABLE parted (id int) PARTITION BY LIST (id)")
    config = config_for(database18, "parted", mode="poll", plugin="wal2json")
    with pytest.raises(NotPublishable, match="under the names of its partitions"):
        setup(config)


@on_18
def test_a_pooler_that_shares_sessions_is_refused(database: Database, tmp_path: Path) -> None:
    # M4.3: the worker's lock would hold nothing there.
    database.run(*ORDERS)
    setup(polled(database, tmp_path / "log", "pgoutput"))
    with (
        pgbouncer(database, "transaction") as dsn,
        capturing(polled(database, tmp_path / "log", "pgoutput", dsn=dsn)) as running,
    ):
        assert isinstance(running.failure(), SessionShared)
