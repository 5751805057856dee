"""What set-up would do, and what it refuses, decided from facts alone."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.errors import (
    NotLogical,
    NotPublishable,
    PenstockError,
    PrivilegeMissing,
    ServerIsStandby,
    ServerTooOld,
    SlotBeforePublication,
    SlotInvalidated,
    SlotLimitReached,
    SlotOtherDatabase,
    SlotTwoPhase,
    SlotWrongPlugin,
    TableMissing,
    UnsafeIdentity,
)
from penstock.names import TableName
from penstock.ops.facts import SourceFacts
from penstock.ops.plan import plan_setup
from penstock.ops.teardown import plan_teardown
from penstock.postgres.catalog import check_version
from penstock.postgres.publications import PublishedTable
from penstock.postgres.tables import Index
from support.facts import (
    bare,
    column,
    config,
    keyless,
    publication,
    role,
    server,
    slot,
    source,
    table,
)

UNIQUE = Index("orders_uq", ("id", "status"))


def sql(facts: SourceFacts, *tables: Any, **settings: Any) -> list[str]:
    plan = plan_setup(config(*tables, **settings), facts)
    return [statement for step in plan.steps for statement in step.statements]


# M4.1
def test_a_first_run_makes_the_publication_and_the_slot_last() -> None:
    assert sql(bare()) == [
        (
            "CREATE PUBLICATION penstock FOR TABLE public.orders "
            "WITH (publish_via_partition_root = true)"
        ),
        "COMMENT ON PUBLICATION penstock IS 'Made by Penstock'",
        "SELECT lsn FROM pg_create_logical_replication_slot('penstock', 'pgoutput')",
    ]


def test_a_second_run_has_nothing_to_do() -> None:
    assert sql(source()) == []


def test_the_slot_can_be_in_use_while_set_up_runs_again() -> None:
    assert sql(source(slot=slot(active_pid=7))) == []


def test_replica_identity_comes_before_the_publication() -> None:
    first, *_ = sql(bare(keyless(candidates=(UNIQUE,))))
    assert first == "ALTER TABLE public.orders REPLICA IDENTITY USING INDEX orders_uq"


# M4.2
@pytest.mark.parametrize(
    ("facts", "choice", "expected"),
    [
        (table(), "auto", None),
        (table(identity="full"), "auto", None),
        (table(identity="index", identity_index=UNIQUE), "auto", None),
        (table(identity="nothing"), "auto", "DEFAULT"),
        (table(identity="index", identity_index=None), "auto", "DEFAULT"),
        (keyless(), "auto", "FULL"),
        (keyless(identity="nothing"), "auto", "FULL"),
        (keyless(candidates=(UNIQUE,)), "auto", "USING INDEX orders_uq"),
        (table(), "full", "FULL"),
        (table(identity="full"), "default", "DEFAULT"),
        (table(), "default", None),
        (table(candidates=(UNIQUE,)), "orders_uq", "USING INDEX orders_uq"),
    ],
)
def test_each_replica_identity_setting_means_one_statement(
    facts: Any, choice: str, expected: str | None
) -> None:
    statements = sql(source(facts), {"name": "orders", "replica_identity": choice})
    wanted = [f"ALTER TABLE public.orders REPLICA IDENTITY {expected}"] if expected else []
    assert statements == wanted


@pytest.mark.parametrize(
    ("facts", "choice", "words"),
    [
        (keyless(), "default", "no primary key"),
        (table(), "no_such_index", "Indexes that can: orders_pkey"),
        (table(columns=(column("v", "virtual"),)), "full", "virtual"),
        (keyless(columns=(column("v", "virtual"),)), "auto", "virtual"),
    ],
)
def test_an_identity_that_would_break_the_application_is_refused(
    facts: Any, choice: str, words: str
) -> None:
    with pytest.raises(UnsafeIdentity, match=words):
        sql(bare(facts), {"name": "orders", "replica_identity": choice})


def test_each_leaf_gets_the_identity_of_its_root() -> None:
    leaves = (table("leaf_a", identity="full"), table("leaf_b"))
    root = table(kind="partitioned table", identity="full", leaves=leaves)
    assert sql(source(root)) == ["ALTER TABLE public.leaf_b REPLICA IDENTITY FULL"]


def test_a_leaf_is_given_its_own_index_of_the_same_columns() -> None:
    leaf_index = Index("leaf_uq", ("status", "id"))
    leaf = keyless("leaf", candidates=(leaf_index,))
    root = keyless(kind="partitioned table", candidates=(UNIQUE,), leaves=(leaf,))
    assert sql(source(root)) == [
        "ALTER TABLE public.orders REPLICA IDENTITY USING INDEX orders_uq",
        "ALTER TABLE public.leaf REPLICA IDENTITY USING INDEX leaf_uq",
    ]


def test_a_leaf_without_such_an_index_is_refused() -> None:
    root = keyless(kind="partitioned table", candidates=(UNIQUE,), leaves=(keyless("leaf"),))
    with pytest.raises(UnsafeIdentity, match=r"partition public\.leaf has no unique index"):
        sql(bare(root))


def test_full_is_announced_with_its_cost() -> None:
    (note,) = plan_setup(config(), bare(keyless())).notes
    assert "whole old row" in note


def test_generated_columns_are_published_only_where_the_identity_holds_them() -> None:
    generated = table(columns=(column("id"), column("g", "stored")))
    full = [{"name": "orders", "replica_identity": "full"}]
    assert "publish_generated_columns" not in sql(bare(generated))[0]
    assert "publish_generated_columns = stored" in sql(bare(generated), *full)[1]
    on_16 = bare(generated, server=server(16))
    assert "publish_generated_columns" not in sql(on_16, *full)[1]


def test_the_publications_option_changes_before_the_identity_that_needs_it() -> None:
    generated = table(columns=(column("id"), column("g", "stored")))
    assert sql(source(generated), {"name": "orders", "replica_identity": "full"}) == [
        "ALTER PUBLICATION penstock SET (publish_generated_columns = stored)",
        "ALTER TABLE public.orders REPLICA IDENTITY FULL",
    ]


def test_a_missing_table_is_added_and_the_users_own_are_kept_and_told() -> None:
    held = PublishedTable(TableName("public", "theirs"), "(x > 1)", ("x",), None)
    facts = bare(
        publications={"penstock": publication(held, comment=None)}, slot=slot(), role=role("s")
    )
    plan = plan_setup(config(), facts)
    assert [s.statements for s in plan.steps] == [
        ("ALTER PUBLICATION penstock ADD TABLE public.orders",)
    ]
    notes = " ".join(plan.notes)
    assert "not made by Penstock" in notes
    assert "row filter (x > 1)" in notes
    assert "also holds public.theirs" in notes


def test_children_by_inheritance_are_left_out() -> None:
    assert "FOR TABLE ONLY public.orders" in sql(bare(table(has_children=True)))[0]


@pytest.mark.parametrize("changes", [{"all_tables": True}, {"schemas": ("public",)}])
def test_a_publication_of_everything_holds_the_table_already(changes: dict[str, Any]) -> None:
    facts = source(publications={"penstock": publication(**{"tables": (), **changes})})
    assert sql(facts) == []


def test_a_publication_of_ours_learns_to_publish_roots() -> None:
    root = table(kind="partitioned table", leaves=(table("leaf"),))
    facts = source(root, publications={"penstock": publication(via_root=False)})
    assert sql(facts) == ["ALTER PUBLICATION penstock SET (publish_via_partition_root = true)"]


@pytest.mark.parametrize(
    ("held", "choice"),
    [
        (PublishedTable(TableName("public", "orders"), columns=("id",)), "full"),
        (PublishedTable(TableName("public", "orders"), columns=("status",)), "auto"),
        (PublishedTable(TableName("public", "orders"), "(status > 1)", ("status",)), "auto"),
    ],
)
@pytest.mark.parametrize("name", ["penstock", "somebody_elses"])
def test_filters_of_any_publication_that_do_not_fit_the_identity_are_refused(
    held: PublishedTable, choice: str, name: str
) -> None:
    facts = bare(publications={name: publication(held, name=name)})
    with pytest.raises(UnsafeIdentity, match="UPDATE and DELETE would fail"):
        sql(facts, {"name": "orders", "replica_identity": choice})


def test_failover_is_asked_for_from_17_on() -> None:
    assert "failover => true" in sql(bare(server=server(17)), failover=True)[-1]
    with pytest.raises(ServerTooOld, match="needs PostgreSQL 17"):
        sql(bare(server=server(16)), failover=True)


def test_a_slot_without_failover_is_kept_and_told() -> None:
    (note,) = plan_setup(config(failover=True), source()).notes
    assert "without failover" in note


# M7.3
@pytest.mark.parametrize(
    ("facts", "error"),
    [
        (bare(tables={}), TableMissing),
        (bare(table(kind="view")), NotPublishable),
        (bare(table(persistence="unlogged")), NotPublishable),
        (bare(server=server(wal_level="replica")), NotLogical),
        (bare(server=server(in_recovery=True)), ServerIsStandby),
        (bare(server=server(used_slots=10)), SlotLimitReached),
        (bare(slot=slot()), SlotBeforePublication),
        (source(slot=slot(plugin="test_decoding")), SlotWrongPlugin),
        (source(slot=slot(plugin=None)), SlotWrongPlugin),
        (source(slot=slot(two_phase=True)), SlotTwoPhase),
        (source(slot=slot(database="other")), SlotOtherDatabase),
        (source(slot=slot(invalidation="wal_removed")), SlotInvalidated),
        (bare(capture_role=None), PrivilegeMissing),
    ],
)
def test_what_stands_in_the_way_is_a_named_error(
    facts: SourceFacts, error: type[PenstockError]
) -> None:
    with pytest.raises(error) as caught:
        sql(facts)
    assert caught.value.remedy


def test_all_missing_privileges_are_told_at_once_with_their_sql() -> None:
    facts = bare(
        keyless(owned=False),
        role=role("setup", replication=False, can_create=False),
        capture_role=role(
            "cap", replication=False, can_connect=False, forbidden_messages=("f(boolean)",)
        ),
    )
    with pytest.raises(PrivilegeMissing) as caught:
        sql(facts)
    for statement in (
        "GRANT CREATE ON DATABASE app TO setup",
        "GRANT app_owner TO setup",
        "ALTER ROLE setup REPLICATION",
        "ALTER ROLE cap REPLICATION",
        "GRANT CONNECT ON DATABASE app TO cap",
        "GRANT EXECUTE ON FUNCTION f(boolean) TO cap",
    ):
        assert statement in caught.value.remedy


def test_a_superuser_gives_the_capture_role_what_it_lacks() -> None:
    facts = source(
        role=role("postgres", superuser=True),
        capture_role=role("cap", replication=False, forbidden_messages=("f(boolean)",)),
    )
    assert sql(facts) == [
        "ALTER ROLE cap REPLICATION",
        "GRANT EXECUTE ON FUNCTION f(boolean) TO cap",
    ]


def test_a_leaf_that_is_a_foreign_table_is_passed_over() -> None:
    leaf = keyless("leaf", kind="foreign table")
    root = keyless(kind="partitioned table", candidates=(UNIQUE,), leaves=(leaf,))
    assert sql(source(root)) == ["ALTER TABLE public.orders REPLICA IDENTITY USING INDEX orders_uq"]


# M7.5
@pytest.mark.parametrize("version", [90_624, 130_020])
def test_a_server_before_14_is_too_old(version: int) -> None:
    with pytest.raises(ServerTooOld, match="needs 14 or newer"):
        check_version(version)


@pytest.mark.parametrize("version", [140_000, 150_018, 170_001, 190_000])
def test_servers_from_14_on_are_accepted(version: int) -> None:
    check_version(version)


def test_nobody_is_told_to_grant_a_superusers_role() -> None:
    facts = source(
        keyless(owned=False, owner="postgres", owner_superuser=True),
        publications={
            "penstock": publication("other", owned=False, owner="root", owner_superuser=True)
        },
    )
    with pytest.raises(PrivilegeMissing) as caught:
        sql(facts)
    assert "ALTER TABLE public.orders OWNER TO setup" in caught.value.remedy
    assert "ALTER PUBLICATION penstock OWNER TO setup" in caught.value.remedy
    assert "GRANT" not in caught.value.remedy


def test_a_system_catalog_is_not_publishable() -> None:
    catalog = table("pg_catalog.pg_class", oid=1259)
    with pytest.raises(NotPublishable, match=r"pg_catalog\.pg_class .*\(system table\)"):
        sql(bare(catalog), "pg_catalog.pg_class")


# M4.1: tear-down.
def test_tear_down_drops_the_slot_before_the_publication() -> None:
    plan = plan_teardown(config(), source())
    assert [step.sql for step in plan.steps] == [
        "SELECT pg_drop_replication_slot('penstock');",
        "DROP PUBLICATION penstock;",
    ]
    assert "replica identities are left" in plan.notes[0]


def test_tear_down_keeps_a_publication_that_is_not_ours() -> None:
    plan = plan_teardown(config(), bare(publications={"penstock": publication(comment="by hand")}))
    assert plan.steps == ()
    assert "was not made by Penstock" in plan.notes[0]


@pytest.mark.parametrize(
    ("other", "kept"),
    [
        (slot(name="other"), True),
        (slot(name="other", active_pid=7), True),
        (slot(name="other", two_phase=True), True),
        # It has no publications.
        (slot(name="other", plugin="wal2json"), False),
        # Nobody will ever read it.
        (slot(name="other", invalidation="wal_removed"), False),
    ],
)
def test_tear_down_keeps_a_publication_that_another_slot_may_read(other: Any, kept: bool) -> None:
    plan = plan_teardown(config(), source(), [other])
    drops = [step.sql for step in plan.steps]
    assert drops == [
        "SELECT pg_drop_replication_slot('penstock');",
        *([] if kept else ["DROP PUBLICATION penstock;"]),
    ]
    assert any("another slot" in note and "DROP PUB" in note for note in plan.notes) is kept


@pytest.mark.parametrize(
    ("facts", "error"),
    [(slot(plugin="wal2json"), SlotWrongPlugin), (slot(database="other"), SlotOtherDatabase)],
)
def test_tear_down_leaves_a_slot_that_cannot_be_ours(
    facts: Any, error: type[PenstockError]
) -> None:
    with pytest.raises(error):
        plan_teardown(config(), source(slot=facts))


@pytest.mark.parametrize("facts", [slot(two_phase=True), slot(invalidation="wal_removed")])
def test_tear_down_takes_a_slot_that_capture_would_refuse(facts: Any) -> None:
    assert len(plan_teardown(config(), source(slot=facts)).steps) == 2
