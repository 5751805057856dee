"""Which tables and which aggregate are suggested, from facts alone. M7.1, M4.2"""

from __future__ import annotations

from typing import Any

import pytest

from penstock.config import Config
from penstock.errors import NothingToCapture, NotPublishable
from penstock.init.aggregate import SuggestedAggregate
from penstock.init.dsn import OpenDsn
from penstock.init.facts import Statistics, Survey, Surveyed
from penstock.init.suggestion import MAX_TABLES, Suggestion, suggest
from penstock.names import TableName
from penstock.ops.plan import plan_setup
from penstock.postgres.column_types import BaseType
from penstock.postgres.publications import PublishedTable
from penstock.postgres.tables import Index, TableFacts
from support.facts import bare, column, keyless, publication, server, table

TEXT = BaseType("text", "text")
COLUMNS = (column("id"), column("status", base=TEXT), column("note", base=TEXT, not_null=False))
DSN = OpenDsn("postgresql://db/app")


def survey(*tables: TableFacts | Surveyed, **changes: Any) -> Survey:
    held = [each if isinstance(each, Surveyed) else Surveyed(each) for each in tables]
    facts = bare(*(each.table for each in held), **changes.pop("facts", {}))
    given = {"creatable": frozenset({"public"}), **changes}
    return Survey(facts, tuple(held), **given)


def counted_by_status(rows: int = 1_000, name: str = "orders", **changes: Any) -> Surveyed:
    held = table(name, **{"columns": COLUMNS, **changes})
    return Surveyed(held, rows, {"status": Statistics(3)})


def suggestion(*tables: TableFacts | Surveyed, asked: bool = False, **changes: Any) -> Suggestion:
    return suggest(survey(*tables, **changes), DSN, asked=asked)


def aggregate(*tables: TableFacts | Surveyed, **changes: Any) -> SuggestedAggregate:
    found = suggestion(*tables, **changes).aggregate
    assert found is not None
    return found


def captured(found: Suggestion) -> list[str]:
    return [str(each.table) for each in found.tables]


def test_tables_that_can_be_captured_are_and_the_others_say_why_not() -> None:
    found = suggestion(
        table("b", columns=COLUMNS[:1]),
        table("a", identity="nothing", columns=COLUMNS[:1]),
        keyless("c"),
        table("d", persistence="unlogged"),
        table("e", owned=False, owner="app_owner"),
        keyless("f", identity="full", columns=COLUMNS[:1]),
        Surveyed(table("g"), target=True),
        keyless("h", columns=(column("v", "virtual"),)),
    )
    assert captured(found) == ["public.a", "public.b", "public.f"]
    assert [entry.replica_identity for entry in found.tables] == [None, None, None]
    left_out = {each.table.name: each for each in found.unfit}
    assert "neither a primary key nor" in left_out["c"].reason
    assert left_out["c"].with_full
    assert left_out["d"].whole_remedy == "Run: ALTER TABLE public.d SET LOGGED"
    remedy = left_out["e"].whole_remedy
    assert remedy == "Connect as its owner, or run as a superuser: GRANT app_owner TO setup"
    assert "target" in left_out["g"].reason
    assert not left_out["h"].with_full
    assert set(left_out) == set("cdegh")


def test_what_set_up_would_refuse_is_left_out_in_its_words() -> None:
    held = publication(PublishedTable(TableName("public", "orders"), columns=("status",)))
    found = suggestion(
        table("orders"),
        table("more"),
        facts={"publications": {"theirs": held}},
        free_name="penstock_2",
    )
    assert captured(found) == ["public.more"]
    assert "the column list does not cover the replica identity" in found.unfit[0].reason


def test_of_many_tables_the_largest_are_taken() -> None:
    many = [Surveyed(table(f"t{n:03}"), rows=1_000 - n) for n in range(MAX_TABLES + 7)]
    found = suggestion(*many, others=(TableName("public", "small"),))
    assert captured(found) == [f"public.t{n:03}" for n in range(MAX_TABLES)]
    assert len(found.others) == 8
    asked = suggestion(*many, asked=True)
    assert len(asked.tables) == len(many)


def test_a_table_that_was_asked_for_is_taken_or_refused() -> None:
    found = suggestion(keyless(), asked=True)
    assert [each.replica_identity for each in found.tables] == ["full"]
    with pytest.raises(NotPublishable, match=r"public.v is a view, which cannot be published"):
        suggestion(table("v", kind="view"), asked=True)


@pytest.mark.parametrize(
    ("one", "remedy"),
    [
        (
            table(owned=False, owner="o"),
            "Connect as its owner, or run as a superuser: GRANT o TO setup",
        ),
        (keyless(), "Add a primary key, or name it with --table public.orders: then"),
    ],
)
def test_no_table_at_all_is_an_error_that_says_what_to_do(one: TableFacts, remedy: str) -> None:
    with pytest.raises(NothingToCapture) as error:
        suggestion(one, table("u", persistence="unlogged"))
    assert "(and 1 other)" in error.value.problem
    assert error.value.remedy.startswith(remedy)


# M4.2
def test_the_aggregate_has_the_least_identity_that_holds_its_old_values() -> None:
    # Nobody knows how long a text may become.
    full = aggregate(counted_by_status())
    assert (full.replica_identity, full.index_instead) == ("full", None)
    bounded = (column("id"), column("status", base=BaseType("varchar", "varchar(20)", 24)))
    full = aggregate(counted_by_status(columns=bounded))
    assert full.replica_identity == "full"
    assert full.index_instead is not None
    assert full.index_instead.statements == (
        (
            "CREATE UNIQUE INDEX CONCURRENTLY IF NOT EXISTS orders_penstock_key "
            "ON public.orders (id, status)"
        ),
        "ALTER TABLE public.orders REPLICA IDENTITY USING INDEX orders_penstock_key",
    )
    key, index = Index("orders_pkey", ("id",)), Index("both", ("id", "status"))
    assert aggregate(counted_by_status(candidates=(index, key))).replica_identity == "both"
    has_it = counted_by_status(identity="full")
    assert aggregate(has_it).replica_identity is None


def test_an_index_instead_is_not_told_where_none_would_do() -> None:
    columns = (column("id"), column("status", base=TEXT, not_null=False))
    assert aggregate(counted_by_status(columns=columns)).index_instead is None


def test_a_table_that_cannot_have_old_values_is_passed_over() -> None:
    virtual = (*COLUMNS, column("v", "virtual"))
    other = counted_by_status(10, "small")
    found = aggregate(counted_by_status(columns=virtual), other)
    assert found.table == other.table.name


def test_the_largest_of_those_with_most_to_count_by_is_taken() -> None:
    two = (*COLUMNS, column("done", base=BaseType("bool", "boolean")))
    tables = (
        counted_by_status(1_000_000, "a"),
        counted_by_status(10_000, "b", columns=two),
        counted_by_status(90_000, "c", columns=two),
    )
    assert aggregate(*tables).table.name == "c"


def test_no_aggregate_is_suggested_where_no_target_can_be_made() -> None:
    assert suggestion(counted_by_status(), creatable=frozenset()).aggregate is None
    old = {"server": server(14)}
    assert suggestion(counted_by_status(), facts=old).aggregate is None
    elsewhere = aggregate(counted_by_status(name="app.orders"))
    assert str(elsewhere.target) == "public.orders_counts"


def test_the_targets_name_is_one_that_is_free() -> None:
    taken = {TableName("public", "orders_counts"), TableName("public", "orders_counts_2")}
    assert aggregate(counted_by_status(), taken=frozenset(taken)).target.name == "orders_counts_3"


def test_names_of_measures_and_dimensions_do_not_clash() -> None:
    columns = (
        column("id"),
        column("count", base=TEXT),
        column("amount_sum", base=TEXT),
        column("amount"),
    )
    held = Surveyed(
        table(columns=columns), 1_000, {"count": Statistics(3), "amount_sum": Statistics(3)}
    )
    assert aggregate(held).measures == (("row_count_2", None), ("amount_sum_2", "amount"))


def test_set_up_takes_all_of_it_as_it_is() -> None:
    one = survey(counted_by_status(), table("more"))
    found = suggest(one, DSN, asked=False)
    plan = plan_setup(Config.model_validate(found.settings), one.facts)
    assert [step.title for step in plan.steps] == [
        "replica identity of public.orders: FULL (asked for)",
        'publication "penstock" of 2 tables',
        'replication slot "penstock"',
    ]


def test_a_connection_string_of_nothing_but_a_password_leaves_the_database_name() -> None:
    found = suggest(survey(table()), OpenDsn("", ("password",)), asked=False)
    assert found.dsn.text == "dbname=app"
