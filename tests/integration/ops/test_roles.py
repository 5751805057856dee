"""docs/roles.md: its SQL, executed as it stands, makes roles that are enough and no more. M7.5"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from penstock.config import Config
from penstock.errors import PrivilegeMissing
from penstock.ops.doctor import diagnose
from penstock.ops.findings import Finding, exit_code
from penstock.ops.setup import setup
from penstock.ops.teardown import teardown
from penstock.pipelines.seeding import seed
from penstock.pipelines.verifying import verify
from penstock.postgres.embedded import EmbeddedPostgres
from support.aggregates import config_with, declared
from support.capturing import capturing
from support.database import Database
from support.ops import config_for, reader, replica_identities, slots
from support.printed import statements_of
from support.truth import no_spark

TABLES = ("orders", "order_stats", "events", "events_1")
DOCUMENT = Path(__file__).parents[3] / "docs" / "roles.md"


def blocks() -> dict[str, list[str]]:
    """The statements of each SQL block, by the section that it is in."""
    found = re.findall(
        r"^## ([^\n]*)\n(?:(?!^## ).)*?^```sql\n(.*?)^```",
        DOCUMENT.read_text(),
        re.DOTALL | re.MULTILINE,
    )
    bare = {section: re.sub(r"--.*", "", block) for section, block in found}
    return {
        section: [s.strip() for s in block.split(";") if s.strip()]
        for section, block in bare.items()
    }


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
        for section in ("Set-up", "Capture", "Targets"):
            database.run(*blocks()[section])
        yield database
        database.run(*blocks()["A cleaner end"])
    with psycopg.connect(server.dsn(), autocommit=True) as connection:
        connection.execute("DROP ROLE app_owner")


def test_every_block_of_the_document_is_run() -> None:
    known = ["Set-up", "Capture", "Seeding and verifying", "Targets", "A cleaner end"]
    assert list(blocks()) == known
    assert DOCUMENT.read_text().count("```sql") == len(known)


def findings(config: Config) -> list[Finding]:
    return [f for f in diagnose(config) if f.check not in {"java", "pyspark"}]


@pytest.mark.every_version
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
    assert exit_code(findings(config)) == 0, findings(config)
    with reader(app, "penstock", user="penstock_capture") as capture:
        with app.connect(user="penstock_capture") as connection:
            connection.execute("SELECT pg_logical_emit_message(false, 'penstock', 'beat')")
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute("SELECT * FROM orders")
        assert capture.info.backend_pid
        teardown(config, force=True)
    assert slots(app) == []
    assert app.value("SELECT count(*) FROM pg_publication") == 0


@pytest.mark.every_version
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
    assert exit_code(findings(config)) == 0, findings(config)
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


SOURCES = {"theirs": ("orders", "status", "order_stats"), "ours": ("events", "k", "event_stats")}


def counted(app: Database, name: str, **changes: Any) -> dict[str, Any]:
    table, column, target = SOURCES[name]
    given = {"name": name, "sources": [table], "dimensions": [column], "targets": [target]}
    return declared(**given, target_dsn=app.dsn("penstock_targets")) | changes


def with_roles(app: Database, log: Path, *aggregates: dict[str, Any], tables: list[str]) -> Config:
    given = config_with(
        app,
        *aggregates,
        tables=tables,
        dsn=app.dsn("penstock_capture"),
        setup_dsn=app.dsn("penstock_setup"),
        keepalive_interval_s=0.1,
    )
    return given.model_copy(update={"log": given.log.model_copy(update={"path": log})})


@pytest.fixture
def seeded(app: Database, tmp_path: Path) -> Config:
    """Aggregates of a table and of a partitioned one, which has rows in a partition."""
    app.run(
        "INSERT INTO orders VALUES (1, 'sent'), (2, 'sent'), (3, 'new')",
        "INSERT INTO events VALUES (1, 1), (2, 1)",
    )
    both = (counted(app, name) for name in SOURCES)
    return with_roles(app, tmp_path, *both, tables=["orders", "events"])


def seed_and_verify(config: Config) -> dict[str, int]:
    """How many rows each target has, all of them right."""
    with capturing(config) as running:
        running.connected()
        for aggregate in config.aggregate:
            seed(config, aggregate, no_spark)
        verified = [verify(config, aggregate, no_spark) for aggregate in config.aggregate]
    assert [one.differences for one in verified] == [(), ()]
    return {one.aggregate: one.keys for one in verified}


# M5.5, M5.6, M7.5
@pytest.mark.every_version
def test_the_documented_roles_seed_and_verify(app: Database, seeded: Config) -> None:
    app.run(*blocks()["Seeding and verifying"])
    titles = [step.title for step in setup(seeded).steps]
    assert not [title for title in titles if "may seed" in title]
    assert exit_code(findings(seeded)) == 0, findings(seeded)
    assert seed_and_verify(seeded) == {"theirs": 2, "ours": 1}
    teardown(seeded)


# M4.5, M5.5, M7.5
def test_tables_whose_rows_do_not_count_need_no_right_to_seed(
    app: Database, tmp_path: Path
) -> None:
    for table in ("archive", "history"):
        app.run(
            f"CREATE TABLE {table} (a int, status text)",
            f"ALTER TABLE {table} OWNER TO app_owner",
            f"INSERT INTO {table} VALUES (9, 'sent')",
        )
    app.run(*blocks()["Seeding and verifying"], "INSERT INTO orders VALUES (1, 'sent')")
    rules_off = {"table": "archive", "insert": False, "update": False, "delete": False}
    no_inserts = {"table": "history", "insert": False}
    config = with_roles(
        app,
        tmp_path,
        counted(app, "theirs", sources=["orders", rules_off]),
        counted(app, "theirs", sources=["orders", no_inserts], verifiable=False)
        | {"name": "later", "targets": ["later"]},
        tables=["orders", "archive", "history"],
    )
    assert not [step.title for step in setup(config).steps if "may seed" in step.title]
    assert exit_code(findings(config)) == 0, findings(config)
    with capturing(config) as running:
        running.connected()
        assert [seed(config, each, no_spark).rows for each in config.aggregate] == [1, 1]
        assert verify(config, config.aggregate[0], no_spark).differences == ()
    assert app.rows("SELECT * FROM later") == app.rows("SELECT * FROM order_stats") == [("sent", 1)]
    teardown(config)


GRANTS = (
    "GRANT SELECT (status, ctid) ON public.orders TO penstock_capture",
    "GRANT SELECT (k, ctid) ON public.events TO penstock_capture",
)


# M4.1, M7.3, M7.5
def test_what_the_role_lacks_to_seed_is_named_by_doctor_and_granted_by_set_up(
    app: Database, seeded: Config
) -> None:
    lacking = [f for f in findings(seeded) if f.check == "aggregate_privileges"]
    assert [(f.level, f.subject, statements_of(f.fix)) for f in lacking] == [
        ("error", "aggregate theirs", [GRANTS[0]]),
        ("error", "aggregate ours", [GRANTS[1]]),
    ]
    (step,) = [step for step in setup(seeded, dry_run=True).steps if "may seed" in step.title]
    assert step.statements == GRANTS
    assert [f for f in findings(seeded) if f.check == "aggregate_privileges"] == lacking
    setup(seeded)
    assert setup(seeded).steps == ()
    assert exit_code(findings(seeded)) == 0, findings(seeded)
    with (
        app.connect(user="penstock_capture") as connection,
        pytest.raises(psycopg.errors.InsufficientPrivilege),
    ):
        connection.execute("SELECT a FROM orders")  # no more than what is read
    assert seed_and_verify(seeded) == {"theirs": 2, "ours": 1}
    teardown(seeded)


# M7.3, M7.5
@pytest.mark.every_version
def test_what_set_up_may_not_grant_is_asked_for_before_anything_is_made(
    app: Database, seeded: Config
) -> None:
    app.run("REVOKE USAGE ON SCHEMA public FROM PUBLIC")
    usage = "GRANT USAGE ON SCHEMA public TO penstock_capture"
    lacking = [f for f in findings(seeded) if f.check == "aggregate_privileges"]
    assert [statements_of(f.fix) for f in lacking] == [[usage, grant] for grant in GRANTS]
    with pytest.raises(PrivilegeMissing) as caught:
        setup(seeded)
    assert f"Run as a superuser: {usage}\n" in caught.value.remedy
    assert GRANTS[0] not in caught.value.remedy
    assert slots(app) == []
    app.run(usage)
    setup(seeded)
    assert setup(seeded).steps == ()
    teardown(seeded)


# M4.6, M5.5, M7.3
def test_rows_that_a_policy_would_hide_are_an_error_and_not_a_wrong_count(
    app: Database, seeded: Config
) -> None:
    setup(seeded)
    app.run(
        "ALTER TABLE orders ENABLE ROW LEVEL SECURITY",
        "CREATE POLICY sent_only ON orders USING (status = 'sent')",
    )
    about = 'row-level security of public.orders applies to role "penstock_capture"'
    bypass = "ALTER ROLE penstock_capture BYPASSRLS"
    (finding,) = [f for f in findings(seeded) if f.check == "aggregate_privileges"]
    assert (finding.level, finding.subject) == ("error", "aggregate theirs")
    assert finding.what.startswith(about)
    assert bypass in finding.fix
    with pytest.raises(PrivilegeMissing, match=about):
        setup(seeded)
    with pytest.raises(PrivilegeMissing, match="row-level security policy") as caught:
        seed_and_verify(seeded)
    assert "BYPASSRLS" in caught.value.remedy
    app.run(bypass)
    assert exit_code(findings(seeded)) == 0, findings(seeded)
    assert seed_and_verify(seeded) == {"theirs": 2, "ours": 1}
    teardown(seeded)


# M7.3
def test_a_policy_does_not_concern_an_owner_unless_it_is_forced(
    app: Database, seeded: Config
) -> None:
    def told() -> list[str]:
        return [f.fix for f in findings(seeded) if f.check == "aggregate_privileges"]

    app.run("GRANT app_owner TO penstock_capture", "ALTER TABLE orders ENABLE ROW LEVEL SECURITY")
    assert told() == []
    app.run("ALTER TABLE orders FORCE ROW LEVEL SECURITY")
    assert told() == ["Run as a superuser: ALTER ROLE penstock_capture BYPASSRLS"]
    app.run("REVOKE app_owner FROM penstock_capture")
