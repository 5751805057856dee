"""In the many-table mode `key` is the primary key, whatever the replica identity is. M4.6"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from penstock.capture.primary_keys import PrimaryKeys
from penstock.changelog.planning import shares
from penstock.changelog.runs import runs
from penstock.decode.json import JsonChanges, WantedTables
from penstock.postgres.messages import Column, Relation
from support.capturing import capture_config, capturing
from support.database import Database
from support.pgoutput_encoder import encode
from support.truth import complete
from support.workload import PUBLICATION, SLOT

ROW = "status text NOT NULL, body text"
TABLES = {
    "full_key": f"(id int, part int, {ROW}, PRIMARY KEY (id, part) INCLUDE (status))",
    "parted": f"(id int PRIMARY KEY, {ROW}) PARTITION BY RANGE (id)",
    "by_index": f"(id int PRIMARY KEY, {ROW})",
    "other_index": f"(id int PRIMARY KEY, {ROW})",
    "keyless": f"(id int, {ROW})",
    "late": f"(id int NOT NULL, {ROW})",
}


def changes_of(database: Database, path: Path) -> list[tuple[str, str, dict[str, Any]]]:
    log = complete(path, database.wal_position())
    found = [
        batch
        for share in shares(log, log.start(), log.end())
        for batch in JsonChanges(WantedTables(())).batches(runs(log, share))
    ]
    return [
        (row["table"].removeprefix("public."), row["_change_type"], json.loads(row["key"]))
        for batch in found
        for row in batch.to_pylist()
    ]


def test_the_key_is_the_primary_key_under_any_identity(database: Database, tmp_path: Path) -> None:
    database.run(*(f"CREATE TABLE {name} {columns}" for name, columns in TABLES.items()))
    database.run(
        "CREATE TABLE parted_1 PARTITION OF parted FOR VALUES FROM (0) TO (100)",
        "CREATE UNIQUE INDEX covering ON by_index (id, status)",
        "CREATE UNIQUE INDEX elsewhere ON other_index (status)",
        *(
            f"ALTER TABLE {name} REPLICA IDENTITY FULL"
            for name in ("full_key", "parted", "parted_1", "keyless", "late")
        ),
        "ALTER TABLE by_index REPLICA IDENTITY USING INDEX covering",
        "ALTER TABLE other_index REPLICA IDENTITY USING INDEX elsewhere",
        f"CREATE PUBLICATION {PUBLICATION} FOR TABLE {', '.join(TABLES)}"
        " WITH (publish_via_partition_root = true)",
    )
    database.create_slot(SLOT)
    config = capture_config(database.dsn(), tmp_path, tables=list(TABLES))
    before = {"id": 1, "status": "a", "body": None}
    after = {"id": 1, "status": "b", "body": "x"}
    with capturing(config) as running:
        running.connected()
        database.run("INSERT INTO full_key VALUES (1, 2, 'a')")
        for name in TABLES.keys() - {"full_key"}:
            database.run(f"INSERT INTO {name} VALUES (1, 'a')")
        for name in TABLES:
            database.run(f"UPDATE {name} SET status = 'b', body = 'x'", f"DELETE FROM {name}")
        expected: dict[str, list[dict[str, Any]]] = {
            "full_key": [{"id": 1, "part": 2}] * 3,
            "parted": [{"id": 1}] * 3,
            "by_index": [{"id": 1}] * 3,
            # Old rows do not have the primary key.
            "other_index": [{"status": "a"}, {"status": "b"}, {"status": "b"}],
            "keyless": [before, after, after],
            "late": [before, after, after],
        }
        found = changes_of(database, tmp_path)
        for name, keys in expected.items():
            assert [key for table, _, key in found if table == name] == keys, name
        # A key that comes later is one from then on, once what was read of the catalog is old.
        database.run("SELECT pg_sleep(1.1)", "ALTER TABLE late ADD PRIMARY KEY (id)")
        database.run("INSERT INTO late VALUES (1, 'a')", "UPDATE late SET status = 'b'")
        found = changes_of(database, tmp_path)
        assert [key for table, _, key in found if table == "late"][3:] == [{"id": 1}] * 2


def test_capture_goes_on_where_the_catalog_cannot_be_asked(
    database18: Database, capsys: pytest.CaptureFixture[str]
) -> None:
    relation = Relation(1, "public", "t", "f", (Column(True, "id", 23, -1),))
    now = [0.0]
    keys = PrimaryKeys("host=127.0.0.1 port=1 dbname=none", lambda: now[0])
    assert keys.marked(encode(relation)) == encode(relation)
    assert keys.marked(encode(relation)) == encode(relation)
    assert capsys.readouterr().out.count("primary keys not read") == 1
    now[0] = 61.0
    keys.marked(encode(relation))
    assert capsys.readouterr().out.count("primary keys not read") == 1
    keys.close()
    # A session that is gone is opened again.
    database18.run("CREATE TABLE t (id int PRIMARY KEY)")
    oid = database18.value("SELECT 't'::regclass::oid::bigint")
    described = encode(Relation(oid, "public", "t", "f", relation.columns))
    keys = PrimaryKeys(database18.dsn(), lambda: now[0])
    marked = keys.marked(described)
    assert marked != described
    database18.run(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE application_name = 'penstock primary keys' AND datname = current_database()"
    )
    now[0] += 2
    # What was known stays known.
    assert keys.marked(described) == marked
    now[0] += 61
    assert keys.marked(described) == marked
    keys.close()
