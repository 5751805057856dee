"""Tables are dropped, renamed, detached while capture runs: as docs/guarantees.md says."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.capturing import capture_config, capturing
from support.changes import Change, changes
from support.database import Database
from support.oracle import Mirror
from support.workload import PUBLICATION, insert_items, prepare

pytestmark = pytest.mark.every_version


def captured(database: Database, log: Path) -> list[Change]:
    """Everything so far, without the markers."""
    Mirror(log).await_marker(database)
    return [change for change in changes(log) if change.tables != ("public.markers",)]


def test_a_renamed_table_goes_on_under_its_new_name(database: Database, tmp_path: Path) -> None:
    # M4.6: and what was written before keeps the old one.
    prepare(database)
    with capturing(capture_config(database.dsn(), tmp_path)) as running:
        with database.connect() as connection:
            insert_items(connection, 2)
            connection.execute("ALTER TABLE items RENAME TO goods")
            connection.execute("INSERT INTO goods (writer, seq) VALUES (1, 1)")
            connection.execute("CREATE SCHEMA shop")
            connection.execute("ALTER TABLE goods SET SCHEMA shop")
            connection.execute("UPDATE shop.goods SET seq = 7 WHERE writer = 1")
        found = captured(database, tmp_path)
        assert running.connections == 1
    names = [change.tables[0] for change in found]
    assert names == ["public.items", "public.items", "public.goods", "shop.goods"]


def test_a_dropped_table_leaves_its_changes_and_its_successor_is_another_table(
    database: Database, tmp_path: Path
) -> None:
    # M4.6: the server says nothing about a drop, and does not publish what is made in its place.
    prepare(database)
    with capturing(capture_config(database.dsn(), tmp_path)) as running:
        with database.connect() as connection:
            insert_items(connection, 3)
            with connection.transaction():
                insert_items(connection, 2)
                connection.execute("DROP TABLE items")
            connection.execute("CREATE TABLE items (id int PRIMARY KEY, name text)")
            connection.execute("INSERT INTO items VALUES (101, 'not published')")
        assert [change.kind for change in captured(database, tmp_path)] == ["Insert"] * 5
        with database.connect() as connection:
            connection.execute(f"ALTER PUBLICATION {PUBLICATION} ADD TABLE items")
            connection.execute("INSERT INTO items VALUES (102, 'published')")
        found = captured(database, tmp_path)
        assert running.connections == 1
    assert [change.new() for change in found[5:]] == [{"id": "102", "name": "published"}]


def test_a_table_taken_out_of_the_publication_is_silent_and_the_others_go_on(
    database: Database, tmp_path: Path
) -> None:
    # M4.6
    prepare(database)
    with capturing(capture_config(database.dsn(), tmp_path)) as running:
        with database.connect() as connection:
            insert_items(connection, 3)
            connection.execute(f"ALTER PUBLICATION {PUBLICATION} DROP TABLE items")
            insert_items(connection, 3)
        assert len(captured(database, tmp_path)) == 3
        assert running.connections == 1


def test_a_detached_partition_is_silent_until_it_is_published_itself(
    database: Database, tmp_path: Path
) -> None:
    # M4.6: published through its root, it is no longer part of it.
    prepare(database, slot=False)
    database.run(
        "CREATE TABLE parts (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE low PARTITION OF parts FOR VALUES FROM (0) TO (100)",
        "CREATE TABLE high PARTITION OF parts FOR VALUES FROM (100) TO (200)",
        f"ALTER PUBLICATION {PUBLICATION} ADD TABLE parts",
        f"ALTER PUBLICATION {PUBLICATION} SET (publish_via_partition_root = true)",
    )
    database.create_slot("penstock")
    with capturing(capture_config(database.dsn(), tmp_path)) as running:
        database.run(
            "INSERT INTO parts VALUES (1), (101)",
            "ALTER TABLE parts DETACH PARTITION high",
            "INSERT INTO high VALUES (102)",
            "INSERT INTO parts VALUES (2)",
            "ALTER TABLE parts ATTACH PARTITION high FOR VALUES FROM (100) TO (200)",
            "INSERT INTO parts VALUES (103)",
        )
        found = captured(database, tmp_path)
        assert running.connections == 1
    assert {change.tables for change in found} == {("public.parts",)}
    assert [change.new()["id"] for change in found] == ["1", "101", "2", "103"]
