"""Nothing happens in the published tables: the slot moves on all the same."""

from __future__ import annotations

from pathlib import Path

from support.capturing import capture_config, capturing
from support.database import Database
from support.oracle import Mirror
from support.waiting import eventually
from support.workload import SLOT, prepare


def test_the_slot_follows_the_wal_of_other_databases(database: Database, tmp_path: Path) -> None:
    # M1.2, M3.8: by a role that could not write anything if it wanted to.
    prepare(database)
    database.run(
        "DROP ROLE IF EXISTS only_replicates",
        "CREATE ROLE only_replicates LOGIN REPLICATION",
        "REVOKE TEMPORARY ON DATABASE " + database.name + " FROM PUBLIC",
    )
    mirror = Mirror(tmp_path)
    with (
        capturing(capture_config(database.dsn("only_replicates"), tmp_path)) as running,
        Database(database.server, "t_somewhere_else") as elsewhere,
    ):
        for table in ("a", "b"):
            elsewhere.run(f"CREATE TABLE {table} AS SELECT generate_series(1, 1000) AS n")
            written = elsewhere.wal_position()
            eventually(lambda: database.confirmed(SLOT) >= written, "confirmed")  # noqa: B023
            assert mirror.complete_lsn >= database.confirmed(SLOT), "in the log before confirmed"
        assert running.connections == 1
    assert mirror.read().commits == []
    database.run("DROP ROLE only_replicates")


def test_transactions_that_turn_out_empty_move_the_slot(database: Database, tmp_path: Path) -> None:
    # M1.2, M3.8
    prepare(database)
    with capturing(capture_config(database.dsn(), tmp_path)):
        for statement in (
            "INSERT INTO unpublished (body) VALUES ('small')",
            "INSERT INTO unpublished (body) SELECT 'streamed' FROM generate_series(1, 2000)",
            "ANALYZE items",
        ):
            database.run(statement)
            written = database.wal_position()
            eventually(lambda: database.confirmed(SLOT) >= written, statement)  # noqa: B023
            assert Mirror(tmp_path).complete_lsn >= written, "readers of quiet tables move on"
    assert Mirror(tmp_path).read().commits == []
