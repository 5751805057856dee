"""What an aggregate reads, on real servers: can it be counted, and are old values in the WAL."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.errors import InputUnfit, OldValuesMissing, UnsafeIdentity
from penstock.names import TableName
from penstock.ops.doctor import diagnose
from penstock.ops.findings import Finding
from penstock.ops.setup import setup
from penstock.pipelines.sources import read_sources
from support.aggregates import bad, config_with, declared, findings
from support.database import Database
from support.ops import on_18, slots
from support.printed import statements_of


# M5.2, M7.3
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"dimensions": ["stat"]}, "reads column stat of public.notes, which has none"),
        ({"measures": {"a": "sum(nope)"}}, "reads column nope of public.notes, which has none"),
        ({"measures": {"a": "sum(status)"}}, "varying(20), which cannot be summed exactly"),
        ({"measures": {"a": "sum(f)"}}, "a sum of floats depends on their order"),
        ({"measures": {"a": "sum(n)"}}, "which has no fixed number of digits"),
        ({"measures": {"a": "sum(wide)"}}, "more digits than there is room for"),
        ({"measures": {"a": "sum(m)"}}, "of type money, which cannot be summed exactly"),
        ({"dimensions": ["tags"]}, "an array, which cannot be a dimension"),
        ({"dimensions": ["n"]}, "of type numeric, which cannot be a dimension"),
        ({"dimensions": ["v"]}, "a virtual generated column"),
    ],
)
def test_a_column_that_cannot_be_counted_is_refused(
    notes18: Database, changes: dict[str, Any], words: str
) -> None:
    notes18.run(
        "ALTER TABLE notes REPLICA IDENTITY DEFAULT, ADD f float, ADD n numeric, "
        "ADD wide numeric(30, 2), ADD m money, ADD tags text[], "
        "ADD v int GENERATED ALWAYS AS (1) VIRTUAL"
    )
    aggregate = declared(**changes)
    with pytest.raises(InputUnfit) as caught:
        setup(config_with(notes18, aggregate))
    assert words in caught.value.problem
    # Doctor says the same, and before set-up too.
    found = [f for f in bad(findings(notes18, aggregate)) if f.check != "aggregate_old_values"]
    (unfit, *others) = found
    assert (unfit.level, unfit.what) == ("error", caught.value.problem)
    assert unfit.fix == caught.value.remedy
    assert {f.fix for f in others} == {"Run `penstock setup`"}
    notes18.run("CREATE PUBLICATION penstock FOR TABLE notes")
    assert any(words in f.what for f in findings(notes18, aggregate) if f.level == "error")


def test_stored_generated_columns_are_sent_where_the_server_can(notes: Database) -> None:
    notes.run("ALTER TABLE notes ADD g int GENERATED ALWAYS AS (id % 10) STORED")
    aggregate = declared(dimensions=["g"])
    if notes.server.version < 18:
        with pytest.raises(InputUnfit, match="a generated column"):
            setup(config_with(notes, aggregate))
        return
    setup(config_with(notes, aggregate))
    assert bad(findings(notes, aggregate)) == []
    notes.run("ALTER PUBLICATION penstock SET (publish_generated_columns = none)")
    (finding,) = [f for f in findings(notes, aggregate) if "a generated column" in f.what]
    assert "publish_generated_columns = stored" in finding.fix


def test_a_column_that_the_publication_leaves_out_is_refused(notes18: Database) -> None:
    notes18.run(
        "ALTER TABLE notes REPLICA IDENTITY DEFAULT",
        "CREATE PUBLICATION penstock FOR TABLE notes (id, service_id)",
    )
    aggregate = declared(sources=[{"table": "notes", "update": False, "delete": False}])
    aggregate["verifiable"] = False
    with pytest.raises(InputUnfit, match='publication "penstock" does not send') as caught:
        setup(config_with(notes18, aggregate))
    notes18.run(*statements_of(caught.value.remedy))
    setup(config_with(notes18, aggregate))


BY_SETUP = "Run `penstock setup`, or: "


def lacking(database: Database, *aggregates: dict[str, Any], **source: Any) -> list[Finding]:
    """About old values: what set-up would refuse, and what it would mend."""
    found = bad(diagnose(config_with(database, *aggregates, **source)))
    checks = ("aggregate_old_values", "replica_identity", "partition_identity")
    return [f for f in found if f.check in checks]


def mended(database: Database, *aggregates: dict[str, Any], **source: Any) -> list[str]:
    """Run the SQL of doctor's findings until there are none; what was run."""
    ran: list[str] = []
    for _ in range(5):
        wrong = lacking(database, *aggregates, **source)
        if not wrong:
            return ran
        statements = statements_of(wrong[0].fix)
        ran += statements
        database.run(*statements)
    raise AssertionError(ran)


# M4.2
def test_old_values_by_a_primary_key_need_an_index_or_full(notes: Database) -> None:
    notes.run("ALTER TABLE notes REPLICA IDENTITY DEFAULT")
    with pytest.raises(OldValuesMissing, match="the old service_id, status"):
        setup(config_with(notes))
    assert slots(notes) == []
    assert mended(notes) == [
        (
            "CREATE UNIQUE INDEX CONCURRENTLY IF NOT EXISTS notes_penstock_key ON public.notes "
            "(id, service_id, status)"
        ),
        "ALTER TABLE public.notes REPLICA IDENTITY USING INDEX notes_penstock_key",
    ]
    setup(config_with(notes))
    # A nullable column cannot be in an identity's index.
    nullable = declared(name="by_kind", dimensions=["kind"], targets=["kinds"])
    assert mended(notes, nullable) == ["ALTER TABLE public.notes REPLICA IDENTITY FULL"]
    setup(config_with(notes, nullable, declared()))


EVENTS = """
CREATE TABLE events (
    id bigint PRIMARY KEY,
    kind varchar(20) NOT NULL,
    state text NOT NULL CHECK (state IN ('new', 'done')),
    region varchar(10) NOT NULL,
    payload jsonb NOT NULL
)
"""


def of_events(name: str, **changes: Any) -> dict[str, Any]:
    return declared(name=name, sources=["events"], targets=[f"{name}_counts"], **changes)


PLACE = {"expression": "get_json_object(payload, '$.place')", "type": "text"}


# M4.2: what is advised never makes the application's own writes fail.
def test_a_long_value_can_be_written_after_the_advice_for_a_path_was_followed(
    database: Database,
) -> None:
    database.run(EVENTS)
    by_path = of_events("by_path", dimensions={"kind": "kind", "place": PLACE})
    source = {"tables": ["events"]}
    (finding,) = lacking(database, by_path, **source)
    assert "values of payload may be too long for an index" in finding.fix
    assert mended(database, by_path, **source) == [
        "ALTER TABLE public.events REPLICA IDENTITY FULL"
    ]
    setup(config_with(database, by_path, **source))
    database.run(
        "INSERT INTO events SELECT 1, 'a', 'new', 'eu', jsonb_build_object('text', "
        "string_agg(md5(random()::text), '')) FROM generate_series(1, 188)"
    )
    assert database.value("SELECT octet_length(payload::text) FROM events") > 6_000


# M4.2: a table has one replica identity, whoever needs it.
def test_one_index_serves_all_aggregates_of_a_table(database: Database) -> None:
    database.run(EVENTS)
    three = [of_events(f"by_{name}", dimensions=[name]) for name in ("kind", "state", "region")]
    source = {"tables": ["events"]}
    wrong = lacking(database, *three, **source)
    fixes = {finding.fix for finding in wrong}
    assert (len(wrong), len(fixes)) == (3, 1)
    # Whoever runs what stands at each of them gets the same.
    for finding in wrong:
        database.run(*statements_of(finding.fix))
    assert lacking(database, *three, **source) == []
    setup(config_with(database, *three, **source))
    # One more comes later: its index has another name, and still serves the others.
    database.run("ALTER TABLE events ADD priority int NOT NULL DEFAULT 0")
    four = [*three, of_events("by_priority", dimensions=["priority"])]
    assert mended(database, *four, **source) == [
        (
            "CREATE UNIQUE INDEX CONCURRENTLY IF NOT EXISTS events_penstock_key_2 "
            "ON public.events (id, kind, priority, region, state)"
        ),
        "ALTER TABLE public.events REPLICA IDENTITY USING INDEX events_penstock_key_2",
    ]
    setup(config_with(database, *four, **source))


def test_an_index_of_an_earlier_advice_that_values_do_not_fit_into_is_found(
    database: Database,
) -> None:
    database.run(
        EVENTS,
        "CREATE UNIQUE INDEX events_penstock_key ON events (id, payload)",
        "ALTER TABLE events REPLICA IDENTITY USING INDEX events_penstock_key",
    )
    by_path = of_events("by_path", dimensions={"place": PLACE})
    config = config_with(database, by_path, tables=["events"])
    (finding,) = [f for f in diagnose(config) if f.check == "index_width"]
    assert finding.level == "warning"
    database.run(*statements_of(finding.fix))
    assert not [f for f in diagnose(config) if f.check == "index_width"]
    assert lacking(database, by_path, tables=["events"]) == []
    left = "SELECT count(*) FROM pg_class WHERE relname = 'events_penstock_key'"
    assert database.value(left) == 0


# Doctor takes these for bounds; the server prints them in its own way.
@pytest.mark.parametrize(
    "definition",
    [
        "text CHECK (char_length(state) <= 20)",
        "text CHECK (length(state) < 20)",
        "varchar CHECK (octet_length(state) <= 20)",
        "varchar CHECK (state IN ('new', 'it''s done'))",
        "text CHECK (state IN ('new', 'done'))",
        "varchar(20)",
        "char(3)",
        "numeric(10, 2)",
        "mood",
        "short",
    ],
)
def test_an_index_is_advised_where_values_have_a_bound(database: Database, definition: str) -> None:
    database.run(
        "CREATE TYPE mood AS ENUM ('new', 'done'); CREATE DOMAIN short AS varchar(20)",
        f"CREATE TABLE events (id int PRIMARY KEY, state {definition} NOT NULL)",
    )
    aggregate = of_events("counts", dimensions=["state"])
    create, _ = mended(database, aggregate, tables=["events"])
    assert create.startswith("CREATE UNIQUE INDEX CONCURRENTLY")


@on_18
def test_an_update_needs_no_old_value_of_what_it_does_not_change(notes: Database) -> None:
    notes.run("ALTER TABLE notes REPLICA IDENTITY DEFAULT")
    source = {"table": "notes", "immutable": ["service_id"], "delete": False}
    aggregate = declared(sources=[source], verifiable=False)
    (finding,) = [f for f in findings(notes, aggregate) if f.check == "aggregate_old_values"]
    assert "UPDATE of public.notes does not write the old status" in finding.what
    assert "immutable" in finding.fix
    # It is not a thing that could be verified anyway: set-up goes on and tells.
    assert finding.level == "warning"
    assert any(
        "such changes are skipped" in note for note in setup(config_with(notes, aggregate)).notes
    )
    both = source | {"immutable": ["service_id", "status"]}
    assert mended(notes, declared(sources=[both], verifiable=False)) == []
    off = {"table": "notes", "insert": False, "update": False, "delete": False}
    notes.run("CREATE TABLE other (id int PRIMARY KEY, service_id uuid, status text)")
    off["table"] = "other"
    fine = declared(sources=[both, off], verifiable=False)
    assert mended(notes, fine, tables=["notes", "other"]) == []


# M4.2: each leaf's own identity counts.
def test_a_partition_that_writes_less_than_its_root_is_found_and_mended(
    database: Database,
) -> None:
    database.run(
        "CREATE TABLE notes (id int, k int NOT NULL, status text NOT NULL, PRIMARY KEY (id, k))"
        " PARTITION BY LIST (k)",
        "CREATE TABLE a PARTITION OF notes FOR VALUES IN (1)",
        "CREATE TABLE b PARTITION OF notes FOR VALUES IN (2)",
    )
    aggregate = declared(dimensions=["status"])
    for table in ("notes", "a", "b"):
        database.run(f"ALTER TABLE {table} REPLICA IDENTITY FULL")
    assert mended(database, aggregate) == []
    database.run("ALTER TABLE b REPLICA IDENTITY DEFAULT")
    (finding,) = lacking(database, aggregate)
    assert (finding.level, finding.subject) == ("error", "public.b")
    assert "UPDATE and DELETE of public.b do not write the old status to" in finding.why
    assert "the job refuses to run" in finding.why
    assert finding.fix.startswith(BY_SETUP)
    assert mended(database, aggregate) == ["ALTER TABLE public.b REPLICA IDENTITY FULL"]
    # Neither has it: all of them, at one go.
    for table in ("notes", "a", "b"):
        database.run(f"ALTER TABLE {table} REPLICA IDENTITY DEFAULT")
    assert mended(database, aggregate) == [
        f"ALTER TABLE public.{table} REPLICA IDENTITY FULL" for table in ("notes", "a", "b")
    ]
    # By an index of the root, of which each leaf has its own.
    database.run(
        "CREATE UNIQUE INDEX by_status ON notes (id, k, status)",
        "ALTER TABLE notes REPLICA IDENTITY USING INDEX by_status",
        "ALTER TABLE a REPLICA IDENTITY USING INDEX a_id_k_status_idx",
        "ALTER TABLE b REPLICA IDENTITY DEFAULT",
    )
    ran = mended(database, aggregate)
    assert ran == ["ALTER TABLE public.b REPLICA IDENTITY USING INDEX b_id_k_status_idx"]
    setup(config_with(database, aggregate))


PARTED = (
    "CREATE TABLE notes (id int, k int, status text, PRIMARY KEY (id, k)) PARTITION BY LIST (k)",
    "CREATE TABLE leaf PARTITION OF notes FOR VALUES IN (1)",
    "ALTER TABLE notes REPLICA IDENTITY FULL",
    "ALTER TABLE leaf REPLICA IDENTITY FULL",
    "CREATE TABLE other (id int PRIMARY KEY)",
)
OF_ROOT = declared(dimensions=["status"])
OF_LEAF = declared(name="of_leaf", sources=["leaf"], dimensions=["status"], targets=["leaf_stats"])
VIA_ROOT = "WITH (publish_via_partition_root = true)"
OURS = "COMMENT ON PUBLICATION penstock IS 'Made by Penstock'"
UNDER_ROOT = r"counts rows of public\.leaf, whose .* under the name of public\.notes"
BY_LEAVES = r"counts rows of public\.notes, whose .* under the names of its partitions"


# M4.1, M4.6: what counts is the publication that set-up leaves, not the one that it finds.
@pytest.mark.parametrize(
    ("made", "tables", "aggregates", "words"),
    [
        # A leaf is published, and set-up would add its root.
        ([f"leaf {VIA_ROOT}", OURS], ["notes", "leaf"], [OF_ROOT, OF_LEAF], UNDER_ROOT),
        ([f"leaf {VIA_ROOT}"], ["notes", "leaf"], [OF_LEAF], UNDER_ROOT),
        # One of ours would begin to publish roots.
        (["leaf", OURS], ["leaf", "notes"], [OF_LEAF], UNDER_ROOT),
        # Neither is, and both would be added.
        ([f"other {VIA_ROOT}"], ["notes", "leaf"], [OF_LEAF, OF_ROOT], UNDER_ROOT),
        # Where roots are not published, one that is added comes under the names of its leaves.
        (["other"], ["notes"], [OF_ROOT], BY_LEAVES),
        (["leaf"], ["notes"], [OF_ROOT], BY_LEAVES),
        # The other way round, the leaf's root is there already.
        ([f"notes {VIA_ROOT}", OURS], ["leaf"], [OF_LEAF], UNDER_ROOT),
        # Nothing is there yet.
        ([], ["leaf", "notes"], [OF_LEAF, OF_ROOT], UNDER_ROOT),
    ],
)
def test_a_source_that_would_be_sent_under_another_name_is_refused_before_anything_is_made(
    database18: Database,
    made: list[str],
    tables: list[str],
    aggregates: list[dict[str, Any]],
    words: str,
) -> None:
    database18.run(*PARTED)
    if made:
        database18.run(f"CREATE PUBLICATION penstock FOR TABLE {made[0]}", *made[1:])
    published = "SELECT tablename FROM pg_publication_tables"
    before = database18.rows(published)
    config = config_with(database18, *aggregates, tables=tables)
    for dry_run in (True, False):
        with pytest.raises(InputUnfit, match=words) as caught:
            setup(config, dry_run=dry_run)
    assert slots(database18) == []
    assert database18.rows(published) == before
    told = [f for f in diagnose(config) if f.check == "aggregate_inputs" and f.level == "error"]
    assert [(f.what, f.fix) for f in told] == [(caught.value.problem, caught.value.remedy)]


def test_a_partition_that_nobody_counts_may_be_beside_its_root_and_is_told(
    database: Database,
) -> None:  # M4.6
    database.run(*PARTED, f"CREATE PUBLICATION penstock FOR TABLE leaf {VIA_ROOT}", OURS)
    note = "changes of public.leaf come under the name of public.notes, of which it is a partition"
    for tables in (["notes"], ["notes", "leaf"]):
        config = config_with(database, OF_ROOT, tables=tables)
        assert note in setup(config).notes
        assert read_sources(config).tables.keys() == {TableName("public", "notes")}


@on_18
def test_a_table_that_does_not_fit_the_publication_it_would_be_added_to_is_refused(
    database: Database,
) -> None:  # M4.1
    database.run(
        "CREATE TABLE other (id int PRIMARY KEY)",
        "CREATE TABLE notes (id int, g int GENERATED ALWAYS AS (id) STORED NOT NULL UNIQUE)",
        "CREATE PUBLICATION penstock FOR TABLE other",
    )
    table = {"name": "notes", "replica_identity": "notes_g_key"}
    config = config_with(database, declared(dimensions=["id"]), tables=[table])
    with pytest.raises(UnsafeIdentity, match="generated columns that are not published") as caught:
        setup(config)
    assert slots(database) == []
    (finding,) = [f for f in diagnose(config) if f.check == "application_writes"]
    assert caught.value.remedy == finding.fix
    database.run(*statements_of(finding.fix))
    assert not [f for f in diagnose(config) if f.check == "application_writes"]


def test_a_table_without_any_identity_is_refused_with_the_fix(database18: Database) -> None:
    database18.run("CREATE TABLE notes (service_id uuid, status text)")
    assert mended(database18) == ["ALTER TABLE public.notes REPLICA IDENTITY FULL"]
    database18.run("ALTER TABLE notes REPLICA IDENTITY NOTHING")
    assert mended(database18) == ["ALTER TABLE public.notes REPLICA IDENTITY FULL"]
