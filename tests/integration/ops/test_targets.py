"""Targets on real servers: made where they are missing, checked where they are there."""

from __future__ import annotations

import json
from pathlib import Path

import psycopg
import pytest

from penstock.errors import (
    AuthenticationFailed,
    ConfigError,
    PrivilegeMissing,
    TargetClash,
    TargetMismatch,
)
from penstock.names import TableName
from penstock.ops.doctor import diagnose
from penstock.ops.findings import exit_code
from penstock.ops.setup import setup
from penstock.ops.steps import SOURCE
from penstock.ops.teardown import teardown
from penstock.pipelines.ready import require_targets
from penstock.pipelines.target_tables import read_targets
from penstock.postgres.embedded import EmbeddedPostgres
from penstock.postgres.tables import read_tables
from support.aggregates import bad, columns, config_with, declared, findings
from support.commands import penstock
from support.database import Database
from support.ops import on_18, slots
from support.printed import statements_of

ALL = {
    "service_id": "service_id",
    "status": "status",
    "kind": "kind",
    "day": {"expression": "to_date(made_at)", "type": "date"},
}
# What a user's migrations may make: a key of its own, other columns, indexes, a foreign key.
THEIRS = """
CREATE TABLE services (id uuid PRIMARY KEY);
CREATE TABLE stats (
    id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    count integer NOT NULL,
    status text NOT NULL,
    service_id uuid NOT NULL REFERENCES services,
    seen_at timestamptz NOT NULL DEFAULT now(),
    remark text,
    CONSTRAINT one_row UNIQUE (service_id, status)
);
CREATE INDEX ON stats (seen_at);
CREATE INDEX ON stats (status) WHERE count > 0;
"""


@pytest.mark.parametrize("seed", [True, False])
def test_a_target_that_is_made_again_has_its_aggregate_seeded_anew(
    notes: Database, seed: bool
) -> None:  # M5.3, M5.5
    config = config_with(notes, declared(targets=["stats", "other"], seed=seed))
    setup(config)
    notes.run(
        "INSERT INTO penstock.progress (aggregate, fingerprint, log_id, applied_lsn, state)"
        " VALUES ('counts', 'f', gen_random_uuid(), '0/1', 'live')",
        "DROP TABLE stats",
    )
    (step,) = setup(config).steps
    # Without seeding its other targets hold what no table of the source could give back.
    assert step.title.endswith("has to be seeded anew") is seed
    state = "seeding" if seed else "live"
    assert notes.value("SELECT state FROM penstock.progress") == state
    assert setup(config).steps == ()


# M4.1, M5.2, M7.4
def test_targets_and_their_bookkeeping_are_made_before_the_slot(notes: Database) -> None:
    aggregate = declared(
        dimensions=ALL,
        measures={"count": "count", "cost": "sum(price)"},
        targets=[
            {"table": "stats", "dimensions": ["service_id", "status", "kind"]},
            {"table": 'reports."By Day"', "dimensions": ["day"], "measures": ["cost"]},
        ],
    )
    config = config_with(notes, aggregate)
    plan = setup(config)
    assert plan.steps[-1].kind == "create slot"
    assert columns(notes, "stats") == [
        ("service_id", "uuid", False, None),
        ("status", "character varying(20)", False, None),
        ("kind", "kind", False, None),
        ("count", "bigint", True, "0"),
        ("cost", "numeric", True, "0"),
    ]
    assert columns(notes, 'reports."By Day"') == [
        ("day", "date", False, None),
        ("cost", "numeric", True, "0"),
    ]
    indexes = notes.rows(
        "SELECT indexdef FROM pg_indexes WHERE tablename = 'stats' ORDER BY indexname"
    )
    assert [index for (index,) in indexes] == [
        (
            "CREATE UNIQUE INDEX stats_dimensions_key ON public.stats USING btree "
            "(service_id, status, kind) NULLS NOT DISTINCT"
        ),
        "CREATE INDEX stats_kind_idx ON public.stats USING btree (kind)",
        "CREATE INDEX stats_status_idx ON public.stats USING btree (status)",
    ]
    tables = notes.rows("SELECT tablename FROM pg_tables WHERE schemaname = 'penstock' ORDER BY 1")
    assert [name for (name,) in tables] == [
        *("parked", "progress", "sources", "staged", "stops", "targets")
    ]
    # Idempotent, and doctor agrees.
    assert setup(config).steps == ()
    found = findings(notes, aggregate)
    assert bad(found) == []
    assert [f.level for f in found if f.check == "aggregate_progress"] == ["info"]


def test_an_aggregate_that_is_added_later_brings_only_what_is_new(notes18: Database) -> None:
    setup(config_with(notes18))
    more = declared(name="by_kind", dimensions=["kind"], targets=["kinds"])
    (step,) = setup(config_with(notes18, declared(), more)).steps
    assert step.title == "target public.kinds of aggregate by_kind"
    assert setup(config_with(notes18, declared(), more)).steps == ()


# M4.1: checked, not created.
def test_a_table_of_the_users_own_is_accepted_and_left_as_it_is(notes: Database) -> None:
    notes.run(THEIRS)
    before = columns(notes, "stats")
    plan = setup(config_with(notes))
    assert not any("stats" in step.sql for step in plan.steps)
    assert columns(notes, "stats") == before
    assert bad(findings(notes)) == []


def test_a_partitioned_table_of_the_users_own_is_accepted(notes18: Database) -> None:
    notes18.run(
        "CREATE TABLE stats (service_id uuid, status text, count bigint DEFAULT 0,"
        " UNIQUE NULLS NOT DISTINCT (status, service_id)) PARTITION BY LIST (status)",
        "CREATE TABLE stats_rest PARTITION OF stats DEFAULT",
    )
    setup(config_with(notes18))
    assert bad(findings(notes18)) == []
    with pytest.raises(TargetMismatch, match=r"is a partition of public\.stats"):
        setup(config_with(notes18, declared(targets=["stats_rest"])))


GOOD = "service_id uuid, status text, count bigint NOT NULL"
KEY = "UNIQUE NULLS NOT DISTINCT (service_id, status)"


# M7.3: each refusal, and the SQL that mends it.
@pytest.mark.parametrize(
    ("made", "words"),
    [
        (f"CREATE TABLE stats ({GOOD})", "no unique key over exactly"),
        (f"CREATE TABLE stats ({GOOD}, UNIQUE (service_id, status))", "no unique key"),
        (f"CREATE TABLE stats ({GOOD}, x int, {KEY[:-1]}, x))", "no unique key"),
        (f"CREATE TABLE stats ({GOOD}, {KEY} DEFERRABLE)", "no unique key"),
        (
            (
                f"CREATE TABLE stats ({GOOD}); CREATE UNIQUE INDEX ON stats (service_id, status) "
                "NULLS NOT DISTINCT WHERE count > 0"
            ),
            "no unique key",
        ),
        (
            (
                f"CREATE TABLE stats ({GOOD}); CREATE UNIQUE INDEX ON stats "
                "(service_id, lower(status)) NULLS NOT DISTINCT"
            ),
            "no unique key",
        ),
        (f"CREATE TABLE stats (service_id uuid, status text, {KEY})", "no column count"),
        (f"CREATE TABLE stats ({GOOD.replace(' NOT NULL', '')}, {KEY})", "may be NULL"),
        (f"CREATE TABLE stats ({GOOD.replace('bigint', 'real')}, {KEY})", "does not hold counts"),
        (f"CREATE TABLE stats ({GOOD.replace('text', 'char(20)')}, {KEY})", "change values"),
        (f"CREATE TABLE stats ({GOOD.replace('uuid', 'name')}, {KEY})", "change values"),
        (f"CREATE TABLE stats ({GOOD}, x int NOT NULL, {KEY})", "column x has no default"),
        (
            f"CREATE TABLE stats (n int, {GOOD} GENERATED ALWAYS AS (n) STORED, {KEY})",
            "the server computes column count",
        ),
        (f"CREATE UNLOGGED TABLE stats ({GOOD}, {KEY})", "is unlogged"),
        ("CREATE VIEW stats AS SELECT 1 AS count", "is a view"),
    ],
)
def test_a_table_that_does_not_fit_is_refused_and_nothing_is_made(
    notes18: Database, made: str, words: str
) -> None:
    notes18.run(*made.split("; "))
    with pytest.raises(TargetMismatch, match=words) as caught:
        setup(config_with(notes18))
    assert slots(notes18) == []
    assert notes18.value("SELECT to_regnamespace('penstock')") is None
    (finding,) = [f for f in findings(notes18) if words in f.what]
    assert (finding.level, finding.fix) == ("error", caught.value.remedy)
    if "ALTER" in finding.fix or "CREATE" in finding.fix:
        notes18.run(*statements_of(finding.fix))
        assert not [f for f in findings(notes18) if words in f.what]


# Of the servers here only Debian's knows such collations.
@pytest.mark.parametrize("server", [15], indirect=True)
def test_a_column_for_which_different_texts_are_equal_is_refused(notes: Database) -> None:
    notes.run(
        "CREATE COLLATION odd (provider = icu, locale = 'und', deterministic = false)",
        f"CREATE TABLE stats ({GOOD.replace('text', 'text COLLATE odd')}, {KEY})",
    )
    with pytest.raises(TargetMismatch, match="different texts are equal") as caught:
        setup(config_with(notes))
    notes.run(*statements_of(caught.value.remedy))
    setup(config_with(notes))


def test_a_target_that_is_a_source_or_shared_is_refused(notes18: Database) -> None:
    for aggregates in (
        [declared(targets=["notes"])],
        [declared(targets=["penstock.progress"])],
        [declared(), declared(name="again")],
    ):
        config = config_with(notes18, *aggregates)
        with pytest.raises(TargetClash):
            setup(config)
        assert any("write" in f.what for f in diagnose(config) if f.level == "error")


# M5.3: another database, and another server.
def test_targets_can_be_in_another_database_or_on_another_server(notes18: Database) -> None:
    with (
        EmbeddedPostgres(15) as server,
        Database(server, "reports") as reports,
        Database(notes18.server, "t_beside") as beside,
    ):
        aggregates = [
            declared(target_dsn=reports.dsn()),
            declared(name="near", target_dsn=beside.dsn()),
            declared(name="here", targets=["here"]),
        ]
        config = config_with(notes18, *aggregates)
        places = [step.database for step in setup(config).steps]
        assert set(places) == {SOURCE, "[[aggregate]] counts", "[[aggregate]] near"}
        assert places[-1] == SOURCE
        for database, table in ((reports, "stats"), (beside, "stats"), (notes18, "here")):
            assert database.value("SELECT to_regclass(%s)", table) == table
            assert database.value("SELECT to_regclass('penstock.progress')") is not None
        assert setup(config).steps == ()
        assert bad(findings(notes18, *aggregates)) == []
        # The source's own types are not there.
        enum = declared(target_dsn=reports.dsn(), dimensions=["kind"], targets=["kinds"])
        with pytest.raises(ConfigError, match="which this database lacks"):
            setup(config_with(notes18, enum))
        typed = {"kind": {"expression": "kind", "type": "text"}}
        setup(config_with(notes18, enum | {"dimensions": typed}))
        # The same table name elsewhere is no loop.
        setup(config_with(notes18, declared(target_dsn=reports.dsn(), targets=["notes"])))


@on_18
def test_a_target_that_cannot_be_reached_is_named(notes: Database) -> None:
    aggregate = declared(target_dsn=notes.dsn("no_such_role"))
    with pytest.raises(AuthenticationFailed):
        setup(config_with(notes, aggregate))
    (finding,) = [f for f in findings(notes, aggregate) if f.check == "target_connection"]
    assert (finding.level, finding.subject) == ("error", "aggregate counts")


# M7.3, M7.5
def test_the_role_of_the_targets_is_given_what_it_lacks_or_told(notes18: Database) -> None:
    notes18.run(THEIRS, "DROP ROLE IF EXISTS writer", "CREATE ROLE writer LOGIN")
    try:
        aggregate = declared(target_dsn=notes18.dsn("writer"))
        weak = config_with(notes18, aggregate, dsn=notes18.dsn("writer"), setup_dsn=notes18.dsn())
        lacking = [f for f in findings(notes18, aggregate) if f.check == "target_privileges"]
        assert "GRANT SELECT, INSERT, UPDATE, DELETE ON public.stats TO writer" in lacking[0].fix
        grants = [s for step in setup(weak).steps for s in step.statements if "GRANT" in s]
        assert grants == [
            # It is the role of `dsn` too, which seeds.
            "GRANT SELECT (service_id, status, ctid) ON public.notes TO writer",
            "GRANT USAGE ON SCHEMA penstock TO writer",
            "GRANT SELECT, INSERT, UPDATE, DELETE ON penstock.progress TO writer",
            "GRANT SELECT, INSERT, UPDATE, DELETE ON penstock.parked TO writer",
            "GRANT SELECT, INSERT, UPDATE, DELETE ON penstock.targets TO writer",
            "GRANT SELECT, INSERT, UPDATE, DELETE ON penstock.stops TO writer",
            "GRANT SELECT, INSERT, UPDATE, DELETE ON penstock.sources TO writer",
            "GRANT SELECT, INSERT, UPDATE, DELETE ON penstock.staged TO writer",
            "GRANT SELECT, INSERT, UPDATE, DELETE ON public.stats TO writer",
        ]
        assert setup(weak).steps == ()
        assert bad(findings(notes18, aggregate)) == []
        with notes18.connect(user="writer") as connection:
            connection.execute("SELECT * FROM penstock.progress FOR UPDATE")
            connection.execute("DELETE FROM stats")
    finally:
        notes18.run("DROP OWNED BY writer", "DROP ROLE writer")


def test_a_role_that_may_not_make_targets_is_told_the_sql(notes18: Database) -> None:
    notes18.run("DROP ROLE IF EXISTS writer", "CREATE ROLE writer LOGIN")
    with Database(notes18.server, "t_reports") as reports:
        try:
            config = config_with(notes18, declared(target_dsn=reports.dsn("writer")))
            with pytest.raises(PrivilegeMissing) as caught:
                setup(config)
            assert slots(notes18) == []
            reports.run(*statements_of(caught.value.remedy))
            setup(config)
        finally:
            reports.run("DROP OWNED BY writer")
    notes18.run("DROP ROLE writer")


# M4.1: the command.
def test_a_dry_run_says_which_database_its_sql_is_for(notes18: Database, tmp_path: Path) -> None:
    file = tmp_path / "penstock.toml"
    with Database(notes18.server, "t_reports") as reports:
        file.write_text(
            f'[source]\ndsn = "{notes18.dsn()}"\ntables = ["notes"]\n[[aggregate]]\n'
            f'name = "counts"\nsources = ["notes"]\ndimensions = ["status"]\n'
            f'targets = ["stats"]\ntarget_dsn = "{reports.dsn()}"\n'
        )
        given = ("--config", str(file))
        dry = penstock("setup", "--dry-run", *given)
        lines = dry.stdout.splitlines()
        marks = [line for line in lines if line.startswith("-- in the database of")]
        assert marks == [
            "-- in the database of [source]:",
            "-- in the database of [[aggregate]] counts:",
            "-- in the database of [source]:",
        ]
        assert "CREATE TABLE public.stats (" in lines
        assert reports.value("SELECT to_regclass('stats')") is None
        as_json = json.loads(penstock("setup", "--dry-run", "--json", *given).stdout)
        assert {step["database"] for step in as_json["steps"]} == {
            SOURCE,
            "[[aggregate]] counts",
        }
        assert reports.value("SELECT to_regnamespace('penstock')") is None


def test_tear_down_leaves_the_targets_and_says_so(notes18: Database) -> None:
    config = config_with(notes18)
    setup(config)
    plan = teardown(config)
    assert any("public.stats" in note and "left as they are" in note for note in plan.notes)
    assert notes18.value("SELECT count(*) FROM stats") == 0
    assert notes18.value("SELECT count(*) FROM penstock.progress") == 0
    assert slots(notes18) == []


def test_a_pipeline_writes_keys_as_they_are(notes: Database) -> None:
    notes.run(
        "ALTER TABLE notes ADD code char(5) NOT NULL DEFAULT '', ADD flags bit(3)",
        "CREATE DOMAIN short AS varchar(20)",
        "CREATE TABLE stats (code char(5), flags bit(3), status short, count int NOT NULL,"
        " UNIQUE NULLS NOT DISTINCT (code, flags, status))",
    )
    config = config_with(notes, declared(dimensions=["code", "flags", "status"]))
    setup(config)
    with notes.connect() as connection:
        (target,) = read_targets(connection, config.aggregate[0])
        code, flags, status = (column.type for column in target.dimensions)
        long = 21 * "a"
        keys = f"SELECT 'ab   '::text::{code}, '101'::text::{flags}, '{long}'::text::{status}"
        assert connection.execute(keys.encode()).fetchone() == ("ab   ", "101", long)
        # What does not fit is refused aloud, and the key is parked.
        with pytest.raises(psycopg.errors.StringDataRightTruncation):
            connection.execute(f"INSERT INTO stats {keys}, 1".encode())


# M7.3: what the pipeline does when it starts.
def test_a_pipeline_finds_its_targets_ready_or_says_what_to_do(notes: Database) -> None:
    config = config_with(notes)
    (aggregate,) = config.aggregate
    with notes.connect() as connection:
        tables = read_tables(connection, [TableName("public", "notes")])
        with pytest.raises(TargetMismatch, match=r"penstock\.progress.*Run `penstock setup`"):
            require_targets(connection, aggregate, tables)
        setup(config)
        require_targets(connection, aggregate, tables)
        notes.run("ALTER TABLE stats DROP CONSTRAINT stats_dimensions_key")
        with pytest.raises(TargetMismatch, match="no unique key"):
            require_targets(connection, aggregate, tables)
        notes.run("DROP TABLE stats")
        with pytest.raises(TargetMismatch, match=r"target public\.stats .* does not exist"):
            require_targets(connection, aggregate, tables)


# M3.9, M5.3
def test_progress_of_another_declaration_or_log_is_found(notes18: Database, tmp_path: Path) -> None:
    setup(config_with(notes18))
    aggregate = config_with(notes18).aggregate[0]
    notes18.run(
        "INSERT INTO penstock.progress (aggregate, fingerprint, log_id, applied_lsn, state) "
        f"VALUES ('counts', '{aggregate.fingerprint}', "
        "'00000000-0000-0000-0000-000000000001', '0/1', 'live')"
    )
    found = findings(notes18)
    assert bad(found) == []
    assert any("hold everything up to 0/1" in f.what for f in found)
    (other,) = bad(findings(notes18, declared(filter="status <> 'x'")))
    assert (other.level, other.fix) == ("warning", "Run `penstock reset counts`")
    log = tmp_path / "log"
    log.mkdir()
    identity = {
        "format": 1,
        "id": "00000000-0000-0000-0000-000000000002",
        "system_id": "1",
        "timeline": 1,
        "database": "d",
        "slot": "s",
        "start_lsn": "0/1",
        "created_at": "now",
    }
    (log / "log.json").write_text(json.dumps(identity))
    config = config_with(notes18)
    config = config.model_copy(update={"log": config.log.model_copy(update={"path": log})})
    errors = [f for f in diagnose(config) if f.level == "error"]
    assert [f.what for f in errors] == ["its position is one in another change log"]
    assert "give this one another name" in errors[0].fix
    assert exit_code(errors) == 2
