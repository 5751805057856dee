"""Targets on real servers: made where they are missing, checked where they are there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import psycopg
import pytest

from penstock.config import Config
from penstock.errors import (
    AuthenticationFailed,
    ConfigError,
    InputUnfit,
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
from support.aggregates import NOTES, bad, config_with, declared, findings
from support.commands import penstock
from support.database import Database
from support.ops import on_18, slots

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


@pytest.fixture
def notes(database: Database) -> Database:
    database.run(NOTES)
    return database


@pytest.fixture
def notes18(database18: Database) -> Database:
    database18.run(NOTES)
    return database18


def columns(database: Database, table: str) -> list[tuple[str, str, bool, str | None]]:
    return database.rows(
        "SELECT attname, format_type(atttypid, atttypmod), attnotnull, "
        "       (SELECT pg_get_expr(adbin, adrelid) FROM pg_attrdef "
        "         WHERE adrelid = attrelid AND adnum = attnum) "
        "  FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0 ORDER BY attnum",
        table,
    )


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
    assert tables == [("parked",), ("progress",), ("staged",), ("targets",)]
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
    if finding.fix.startswith("Run: ") and "…" not in finding.fix:
        notes18.run(finding.fix.removeprefix("Run: ").split("; or")[0])
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
    notes.run(caught.value.remedy.removeprefix("Run: "))
    setup(config_with(notes))


@pytest.mark.parametrize(
    ("column", "kind", "fits"),
    [
        ("made_at", "timestamptz", True),
        ("made_at", "timestamptz(0)", False),
        ("made_at", "timestamp", False),
        ("made_at", "date", False),
        ("price", "numeric", True),
        ("price", "numeric(20, 6)", True),
        ("price", "numeric(20, 2)", False),
        ("price", "integer", False),
        ("kind", "kind", True),
        ("kind", "text", True),
        ("kind", "varchar(10)", True),
        ("kind", "char(10)", False),
        ("id", "integer", True),
        ("id", "numeric", True),
        ("status", "varchar(20)", True),
        # What is too long is refused aloud, but blanks at its end are cut off without a word.
        ("status", "varchar(5)", False),
    ],
)
def test_a_dimension_s_column_must_keep_its_values(
    notes18: Database, column: str, kind: str, fits: bool
) -> None:
    notes18.run(
        f"CREATE TABLE stats ({column} {kind}, count int NOT NULL, "
        f"UNIQUE NULLS NOT DISTINCT ({column}))"
    )
    found = bad(findings(notes18, declared(dimensions=[column])))
    assert any("would change values" in one.what for one in found) is not fits


@pytest.mark.parametrize(
    ("kind", "fits"),
    [("numeric", True), ("numeric(20,4)", True), ("numeric(20,2)", False), ("bigint", False)],
)
def test_a_sum_s_column_must_not_round(notes18: Database, kind: str, fits: bool) -> None:
    notes18.run(
        f"CREATE TABLE stats (kind kind, cost {kind} NOT NULL, UNIQUE NULLS NOT DISTINCT (kind))"
    )
    aggregate = declared(dimensions=["kind"], measures={"cost": "sum(price)"})
    found = bad(findings(notes18, aggregate))
    assert any("does not hold sums of numeric(10,4) exactly" in f.what for f in found) is not fits


def two_tables(database: Database, first: str, second: str) -> None:
    database.run(
        "CREATE TYPE mood AS ENUM ('sad')",
        *(
            f"CREATE TABLE {table} (id int PRIMARY KEY, c {kind})"
            for table, kind in (("t", first), ("u", second))
        ),
    )


def of_both(database: Database, dimension: Any = "c") -> Config:
    sources = [{"name": name, "replica_identity": "full"} for name in ("t", "u")]
    aggregate = declared(sources=["t", "u"], dimensions={"c": dimension})
    return config_with(database, aggregate, tables=sources)


# M4.1
@pytest.mark.parametrize(
    ("first", "second", "made"),
    [
        ("real", "double precision", "double precision"),
        ("smallint", "bigint", "bigint"),
        ("integer", "oid", "bigint"),
        ("numeric(10,2)", "numeric(10,4)", "numeric"),
        ("integer", "numeric(9,2)", "numeric"),
        ("timestamp(0)", "timestamp(3)", "timestamp without time zone"),
        ("time(0)", "time", "time without time zone"),
        ("varchar(5)", "text", "text"),
        ("mood", "text", "text"),
        ("uuid", "text", "text"),
        ("name", "varchar(5)", "text"),
        ("char(3)", "char(5)", "character(5)"),
        ("char(3)", "bpchar", "bpchar"),
        ("bit(3)", "bit(5)", "bit varying"),
    ],
)
def test_a_column_of_two_types_gets_one_that_is_accepted_and_advised(
    database18: Database, first: str, second: str, made: str
) -> None:
    two_tables(database18, first, second)
    setup(of_both(database18))
    assert columns(database18, "stats")[0][1] == made
    assert setup(of_both(database18)).steps == ()
    # Of a table of their own the type that is advised is the same.
    database18.run("DROP TABLE stats")
    database18.run("CREATE TABLE stats (c boolean PRIMARY KEY, count int NOT NULL)")
    with pytest.raises(TargetMismatch, match="would change values of") as caught:
        setup(of_both(database18))
    assert f"TYPE {made} USING c::{made};" in caught.value.remedy
    database18.run("DROP TABLE stats")
    with pytest.raises(ConfigError, match="would change values") as refused:
        setup(of_both(database18, {"expression": "c", "type": "boolean"}))
    assert refused.value.remedy == f'Give it as type = "{made}"'
    setup(of_both(database18, {"expression": "c", "type": made}))


@on_18
@pytest.mark.parametrize(("first", "second"), [("char(3)", "text"), ("numeric(40,2)", "text")])
def test_a_column_of_which_no_type_keeps_all_values_is_to_be_an_expression(
    database: Database, first: str, second: str
) -> None:
    two_tables(database, first, second)
    as_text = {"expression": "cast(c as string)", "type": "text"}
    with pytest.raises(ConfigError, match="no type keeps the values of all") as caught:
        setup(of_both(database))
    assert 'Write c = { expression = "cast(c as string)", type = "text" }' in caught.value.remedy
    for kind in (first, second):
        with pytest.raises(ConfigError, match=r"No type keeps .* as string"):
            setup(of_both(database, {"expression": "c", "type": kind}))
    database.run("CREATE TABLE stats (c boolean PRIMARY KEY, count int NOT NULL)")
    with pytest.raises(TargetMismatch) as mismatch:
        setup(of_both(database))
    assert "as string" in mismatch.value.remedy
    database.run(mismatch.value.remedy.removeprefix("Run: ").split(", and")[0])
    setup(of_both(database, as_text))


# M4.1, M7.3: the job could not start, and the slot would hold back WAL.
@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("date", "timestamp"),
        ("timestamp", "timestamptz"),
        ("integer", "text"),
        ("real", "integer"),
        ("numeric(38,0)", "numeric(38,38)"),
        ("boolean", "text"),
    ],
)
def test_types_that_the_job_cannot_read_as_one_are_refused_before_the_slot(
    database18: Database, first: str, second: str
) -> None:
    two_tables(database18, first, second)
    for dimension in ("c", {"expression": "cast(c as string)", "type": "text"}):
        config = of_both(database18, dimension)
        with pytest.raises(InputUnfit, match=r"in public\.u: these do not go together") as caught:
            setup(config)
        assert slots(database18) == []
        (finding,) = [f for f in diagnose(config) if f.check == "aggregate_inputs"]
        assert (finding.what, finding.fix) == (caught.value.problem, caught.value.remedy)


def test_a_sum_over_two_types_needs_room_for_the_digits_of_both(database18: Database) -> None:
    two_tables(database18, "numeric(28,0)", "numeric(10,4)")
    given = of_both(database18).source.model_dump(mode="json", include={"tables"})
    summed = declared(sources=["t", "u"], dimensions=["id"], measures={"a": "sum(c)"})
    with pytest.raises(InputUnfit, match="more than 28 digits together"):
        setup(config_with(database18, summed, **given))
    database18.run("ALTER TABLE t ALTER c TYPE numeric(24,0)")
    setup(config_with(database18, summed, **given))


def test_domains_count_as_what_they_are_made_of(notes: Database) -> None:
    notes.run(
        "CREATE DOMAIN amount AS numeric(12, 2)",
        "CREATE DOMAIN fee AS amount CHECK (VALUE > 0)",
        "ALTER TABLE notes ADD fee fee, ADD n smallserial",
    )
    aggregate = declared(dimensions=["fee", "n"])
    setup(config_with(notes, aggregate))
    kinds = [kind for _, kind, *_ in columns(notes, "stats")]
    assert kinds == ["numeric(12,2)", "smallint", "bigint"]
    assert setup(config_with(notes, aggregate)).steps == ()
    with pytest.raises(InputUnfit, match="a domain, of which the stream does not tell"):
        setup(config_with(notes, declared(measures={"fees": "sum(fee)"})))


def test_a_type_that_is_needed_missing_or_lossy_is_an_error_of_the_declaration(
    notes: Database,
) -> None:
    for day, words in (
        ("to_date(made_at)", r"dimension day is an expression.*Give it a type, day = .*or make"),
        ({"expression": "to_date(made_at)", "type": "dat"}, 'type "dat" of dimension day'),
        ({"expression": "to_date(made_at)", "type": "date; DROP TABLE notes"}, "is no type"),
        ({"expression": "made_at", "type": "timestamptz(0)"}, "change values in silence"),
        ({"expression": "substr(status, 1)", "type": "char(2)"}, 'type = "text"'),
    ):
        with pytest.raises(ConfigError, match=words) as caught:
            setup(config_with(notes, declared(dimensions={"day": day})))
        assert "counts" in str(caught.value)
    assert notes.value("SELECT to_regclass('notes')") is not None
    # With a table of their own, no type is needed.
    notes.run("CREATE TABLE stats (day date PRIMARY KEY, count bigint NOT NULL)")
    setup(config_with(notes, declared(dimensions={"day": "to_date(made_at)"})))


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
            grants = caught.value.remedy.removeprefix("Run as the owner or a superuser: ")
            reports.run(*grants.split("; ")[:-1])
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
    assert exit_code(errors) == 2
