"""Columns of targets: those that keep what they are given, and what is advised for others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from penstock.config import Config
from penstock.declarations import AggregateConfig
from penstock.errors import ConfigError, InputUnfit, PenstockError, TargetMismatch
from penstock.names import TableName
from penstock.ops.doctor import diagnose
from penstock.ops.findings import Finding
from penstock.ops.setup import setup
from penstock.pipelines.ready import require_targets
from penstock.pipelines.target_checks import target_errors
from penstock.pipelines.target_facts import read_target_tables
from penstock.pipelines.targets import Target, targets_of
from penstock.postgres.tables import read_tables
from support.aggregates import bad, columns, config_with, declared, findings
from support.database import Database
from support.ops import on_18, slots
from support.printed import statements_of


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
        ("kind", "varchar(5)", True),
        ("kind", "varchar(4)", False),
        ("kind", "char(10)", False),
        ("service_id", "varchar(36)", True),
        ("service_id", "varchar(35)", False),
        ("id", "integer", True),
        ("id", "numeric", True),
        ("status", "varchar(20)", True),
        ("status", "varchar(19)", False),
    ],
)
def test_a_dimension_s_column_must_keep_its_values(
    notes18: Database, column: str, kind: str, fits: bool
) -> None:
    notes18.run(
        f"CREATE TABLE stats ({column} {kind}, count int NOT NULL, "
        f"UNIQUE NULLS NOT DISTINCT ({column}))"
    )
    aggregate = declared(dimensions=[column])

    def told() -> list[Finding]:
        return [f for f in bad(findings(notes18, aggregate)) if f"column {column} is" in f.what]

    assert [f.level for f in told()] == ([] if fits else ["error"])
    run_advised(notes18, *(f.fix for f in told()))
    assert told() == []


# M7.3: its keys would be parked.
def test_a_text_column_that_is_too_short_for_a_label_is_refused(notes18: Database) -> None:
    short = declared(dimensions={"kind": {"expression": "kind", "type": "varchar(5)"}})
    config = config_with(notes18, short)
    setup(config)
    notes18.run("ALTER TYPE kind ADD VALUE 'letter'")
    with pytest.raises(TargetMismatch, match=r"is too short for some values of public\.kind"):
        setup(config)
    with notes18.connect() as connection:
        tables = read_tables(connection, [TableName("public", "notes")])
        with pytest.raises(TargetMismatch, match="is too short for some values") as caught:
            require_targets(connection, config.aggregate[0], tables)
    run_advised(notes18, caught.value.remedy)
    setup(config)
    notes18.run("DROP TABLE stats")
    with pytest.raises(ConfigError, match=r'"varchar\(5\)" .* is too short') as refused:
        setup(config)
    assert refused.value.remedy == 'Give it as type = "text"'


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


# Types that a user's own table may have, each with a value; strings may hold anything.
EVERY = {
    "boolean": "true",
    "smallint": "1",
    "integer": "1",
    "bigint": "1",
    "oid": "1",
    "real": "1.5",
    "double precision": "1.5",
    "numeric": "1.5",
    "numeric(10,2)": "1.5",
    "text": None,
    "varchar": None,
    "varchar(3)": None,
    "char(5)": None,
    "bpchar": None,
    "name": None,
    '"char"': "x",
    "uuid": "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11",
    "date": "2026-07-01",
    "timestamp": "2026-07-01 12:00",
    "timestamp(0)": "2026-07-01 12:00",
    "timestamptz": "2026-07-01 12:00Z",
    "time": "12:00",
    "time(0)": "12:00",
    "interval": "1 day",
    "bytea": "x",
    "bit(4)": "1010",
    "varbit": "101",
    "inet": "10.0.0.1",
    "cidr": "10.0.0.0/8",
    "macaddr": "08:00:2b:01:02:03",
    "macaddr8": "08:00:2b:01:02:03:04:05",
    "pg_lsn": "0/1",
    "xid8": "1",
    "kind": "email",
}
# Of a column that can be a dimension.
SOURCES = {kind: f"c{n}" for n, kind in enumerate(EVERY) if kind not in ("numeric", "interval")}


def run_advised(database: Database, *remedies: str) -> None:
    database.run(*(sql for each in remedies for sql in statements_of(each)))


def wrong(database: Database, targets: Sequence[Target]) -> list[PenstockError]:
    """What is wrong with targets of which `every` is the source."""
    with database.connect() as connection:
        tables = read_tables(connection, [TableName("public", "every")])
        found = read_target_tables(connection, [target.table for target in targets])
    return [
        error for target in targets for error in target_errors(target, found[target.table], tables)
    ]


# M4.1, M7.3
def test_the_server_accepts_what_is_advised_for_a_column_of_any_type(database18: Database) -> None:
    columns = ", ".join(f"{name} {kind}" for kind, name in SOURCES.items())
    made = ["CREATE TYPE kind AS ENUM ('email')", f"CREATE TABLE every ({columns})"]
    targets: list[Target] = []
    for kind, value in EVERY.items():
        for dimension in SOURCES.values():
            name = f"t{len(targets)}"
            aggregate = declared(
                sources=["every"],
                dimensions={"c": dimension},
                measures={"n": "count"},
                targets=[name],
            )
            targets += targets_of(AggregateConfig.model_validate(aggregate))
            default = f"{kind} NOT NULL DEFAULT '{value or 1}'"
            made.append(f"CREATE TABLE {name} (c {default} UNIQUE, n {default})")
            if value is not None:
                made.append(f"INSERT INTO {name} DEFAULT VALUES")
    database18.run(*made)
    found = wrong(database18, targets)
    assert len(found) > len(targets)
    run_advised(database18, *(error.remedy for error in found))
    assert not wrong(database18, targets)


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
    assert f" TYPE {made} USING " in caught.value.remedy
    run_advised(database18, caught.value.remedy)
    assert setup(of_both(database18)).steps == ()
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
    run_advised(database, mismatch.value.remedy)
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
        ({"expression": "made_at", "type": "timestamptz(0)"}, "change values of .* in silence"),
        ({"expression": "substr(status, 1)", "type": "char(2)"}, 'type = "text"'),
    ):
        with pytest.raises(ConfigError, match=words) as caught:
            setup(config_with(notes, declared(dimensions={"day": day})))
        assert "counts" in str(caught.value)
    assert notes.value("SELECT to_regclass('notes')") is not None
    # With a table of their own, no type is needed.
    notes.run("CREATE TABLE stats (day date PRIMARY KEY, count bigint NOT NULL)")
    setup(config_with(notes, declared(dimensions={"day": "to_date(made_at)"})))
