"""docs/roles.md: its SQL, executed as it stands, makes roles that are enough and no more. M7.5"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from penstock.ops.doctor import diagnose
from penstock.ops.findings import exit_code
from penstock.ops.setup import setup
from penstock.ops.teardown import teardown
from penstock.postgres.embedded import EmbeddedPostgres
from support.aggregates import config_with, declared
from support.database import Database
from support.ops import config_for, reader, replica_identities, slots

TABLES = ("orders", "order_stats", "events", "events_1")
DOCUMENT = Path(__file__).parents[3] / "docs" / "roles.md"


def blocks() -> list[list[str]]:
    """The statements of each SQL block."""
    found = re.findall(r"```sql\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    bare = [re.sub(r"--.*", "", block) for block in found]
    return [[s.strip() for s in block.split(";") if s.strip()] for block in bare]


@pytest.fixture
def app(server: EmbeddedPostgres) -> Iterator[Database]:
    with Database(server, "app") as database:
        database.run(
            "CREATE ROLE app_owner",
            "CREATE TABLE orders (a int, status text)",
            "CREATE TABLE order_stats (status text PRIMARY KEY, count bigint NOT NULL)",
            "CREATE TABLE events (id int, k int) PARTITION BY LIST (k)",
            "CREATE TABLE events_1 PARTITION OF events FOR VALUES IN (1)",
            *(f"ALTER TABLE {t} OWNER TO app_owner" for t in TABLES),
            "REVOKE CONNECT ON DATABASE app FROM PUBLIC",
        )
        *grants, farewell = blocks()
        database.run(*(statement for block in grants for statement in block))
        yield database
        database.run(*farewell)
    with psycopg.connect(server.dsn(), autocommit=True) as connection:
        connection.execute("DROP ROLE app_owner")


def test_the_documented_roles_set_up_check_and_tear_down(app: Database) -> None:
    config = config_for(
        app,
        "orders",
        "events",
        dsn=app.dsn("penstock_capture"),
        setup_dsn=app.dsn("penstock_setup"),
    )
    setup(config)
    identities = {"orders": "f", "events": "f", "events_1": "f", "order_stats": "d"}
    assert replica_identities(app) == identities
    assert setup(config).steps == ()
    findings = [f for f in diagnose(config) if f.check not in {"java", "pyspark"}]
    assert exit_code(findings) == 0, findings
    with reader(app, "penstock", user="penstock_capture") as capture:
        with app.connect(user="penstock_capture") as connection:
            connection.execute("SELECT pg_logical_emit_message(false, 'penstock', 'beat')")
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute("SELECT * FROM orders")
        assert capture.info.backend_pid
        teardown(config, force=True)
    assert slots(app) == []
    assert app.value("SELECT count(*) FROM pg_publication") == 0


def test_the_documented_role_of_targets_writes_them_and_nothing_else(app: Database) -> None:
    aggregates = [
        declared(
            name=name,
            sources=["orders"],
            dimensions=["status"],
            targets=[target],
            target_dsn=app.dsn("penstock_targets"),
        )
        for name, target in (("theirs", "order_stats"), ("ours", "stats"))
    ]
    config = config_with(
        app,
        *aggregates,
        tables=["orders"],
        dsn=app.dsn("penstock_capture"),
        setup_dsn=app.dsn("penstock_setup"),
    )
    setup(config)
    assert setup(config).steps == ()
    findings = [f for f in diagnose(config) if f.check not in {"java", "pyspark"}]
    assert exit_code(findings) == 0, findings
    with app.connect(user="penstock_targets") as connection:
        for table in ("order_stats", "stats"):
            connection.execute(
                f"INSERT INTO {table} VALUES ('sent', 1) ON CONFLICT (status) "
                f"DO UPDATE SET count = {table}.count + excluded.count".encode()
            )
            connection.execute(f"DELETE FROM {table}".encode())
        connection.execute("SELECT * FROM penstock.progress FOR UPDATE")
        for statement in (b"SELECT * FROM orders", b"DROP TABLE stats"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(statement)
    teardown(config)
