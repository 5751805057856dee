"""Doctor's judgement, from facts alone."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import pytest

from penstock.config import Config
from penstock.errors import (
    AuthenticationFailed,
    ConfigInvalidValue,
    PenstockError,
    SlotLimitReached,
    ToolMissing,
)
from penstock.names import TableName
from penstock.ops.checks.aggregates import check_expressions
from penstock.ops.checks.files import check_file
from penstock.ops.checks.server import PluginProbe
from penstock.ops.doctor import Gathered, examine
from penstock.ops.facts import SourceFacts
from penstock.ops.findings import Finding, exit_code, worst, worst_first
from penstock.ops.tools import ToolFacts, read_tools, require_tools
from penstock.postgres.publications import PublishedTable
from penstock.postgres.tables import Index
from support.aggregates import declared
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

TOOLS = ToolFacts("/usr/bin/java", 17, "4.2.0")
ORDERS = TableName("public", "orders")
SETUP = "Run `penstock setup`, or: "


def findings(
    facts: SourceFacts | PenstockError | None = None, *tables: Any, **changes: Any
) -> list[Finding]:
    settings = changes.pop("settings", {})
    gathered = {
        "source": facts or source(),
        "wal2json": PluginProbe(True),
        "replication_error": None,
        "setup_error": None,
        "tools": TOOLS,
    }
    return examine(config(*tables, **settings), Gathered(**{**gathered, **changes}))


def one(found: list[Finding], check: str, level: str) -> Finding:
    matching = [f for f in found if f.check == check and f.level == level]
    assert len(matching) == 1, [(f.check, f.level, f.what) for f in found]
    return matching[0]


def test_a_healthy_source_has_neither_warnings_nor_errors() -> None:
    found = findings()
    assert exit_code(found) == 0
    assert {f.level for f in found} <= {"ok", "info"}


def test_every_warning_and_error_says_why_and_how_to_mend_it() -> None:
    found = findings(
        source(
            keyless(columns=(column("id"), column("g", "stored"))),
            server=server(
                wal_level="replica", in_recovery=True, used_slots=10, used_wal_senders=10
            ),
            capture_role=role(replication=False, forbidden_messages=("f()",)),
            publications={"penstock": publication(PublishedTable(ORDERS, "(a)", ("a",), ("b",)))},
            slot=slot(active_pid=7, wal_status="unreserved"),
        ),
        tools=ToolFacts(None, None, None),
    )
    bad = [f for f in found if f.level in {"warning", "error"}]
    assert len(bad) >= 10
    assert all(f.why and f.fix for f in bad)


# M7.3
def test_a_server_that_refuses_us_is_one_error_and_the_rest_is_not_guessed() -> None:
    error = AuthenticationFailed("refused", remedy="Check the password")
    found = findings(error)
    assert one(found, "connection", "error").fix == "Check the password"
    assert [f.check for f in found] == ["java", "pyspark", "connection"]
    assert exit_code(found) == 2


@pytest.mark.parametrize(
    ("facts", "check", "level", "fix"),
    [
        (source(server=server(14)), "version", "info", ""),
        (source(server=server(17)), "version", "ok", ""),
        (source(server=server(19)), "version", "info", ""),
        (source(server=server(15)), "version", "ok", ""),
        (source(server=server(wal_level="replica")), "wal_level", "error", "ALTER SYSTEM"),
        (source(server=server(in_recovery=True)), "standby", "error", "primary"),
        (source(server=server(used_slots=10), slot=None), "free_slots", "error", "max_replic"),
        (source(server=server(used_slots=10)), "free_slots", "warning", "max_replication_slots"),
        (source(server=server(used_wal_senders=10)), "free_wal_senders", "error", "max_wal_s"),
        (
            source(server=server(used_wal_senders=10), slot=slot(active_pid=1)),
            "free_wal_senders",
            "warning",
            "max_wal_senders",
        ),
        (
            source(server=server(max_slot_wal_keep_mb=-1)),
            "max_slot_wal_keep_size",
            "info",
            "max_slot_wal_keep_size = '50GB'",
        ),
        (
            source(server=server(max_slot_wal_keep_mb=64)),
            "max_slot_wal_keep_size",
            "warning",
            "max_slot_wal_keep_size",
        ),
        (
            source(server=server(idle_slot_timeout_s=60)),
            "idle_replication_slot_timeout",
            "warning",
            "idle_replication_slot_timeout = 0",
        ),
        (source(server=server(encoding="SQL_ASCII")), "encoding", "warning", "penstock docs types"),
        (source(server=server(wal_sender_timeout_ms=0)), "wal_sender_timeout", "ok", ""),
        (
            source(capture_role=role(replication=False)),
            "privileges",
            "error",
            "ALTER ROLE capture REPLICATION",
        ),
        (
            source(capture_role=role(forbidden_messages=("f(boolean)",))),
            "privileges",
            "warning",
            "GRANT EXECUTE ON FUNCTION f(boolean) TO capture",
        ),
        (source(capture_role=role(superuser=True)), "privileges", "info", "penstock docs roles"),
        (source(tables={}), "table", "error", "Correct `tables`"),
        (source(table(kind="foreign table")), "table", "error", "Remove it"),
        (source(table(persistence="unlogged")), "table", "error", "SET LOGGED"),
        (source(publications={}), "publication", "error", "penstock setup"),
        (
            source(publications={"penstock": publication("other")}),
            "publication_tables",
            "error",
            "ALTER PUBLICATION penstock ADD TABLE public.orders",
        ),
        (
            source(publications={"penstock": publication(operations=frozenset({"insert"}))}),
            "publication_operations",
            "warning",
            "SET (publish = 'insert, update, delete, truncate')",
        ),
        (
            source(publications={"penstock": publication(all_tables=True)}),
            "publication_extra",
            "info",
            "DROP PUBLICATION",
        ),
        (source(slot=None), "slot", "error", "penstock setup"),
        (source(slot=slot(plugin="wal2json")), "slot", "error", "another slot"),
        (source(slot=slot(two_phase=True)), "slot", "error", "another slot"),
        (source(slot=slot(database="other")), "slot", "error", "another `slot`"),
        (source(slot=slot(invalidation="wal_removed")), "slot", "error", "penstock teardown"),
        (source(slot=slot(active_pid=7)), "slot_active", "warning", "pg_terminate_backend(7)"),
        (source(slot=slot(active_pid=7, application="penstock")), "slot_active", "info", ""),
        (source(slot=slot(wal_status="unreserved")), "slot_wal", "warning", "Start capture now"),
        (source(slot=slot(safe_wal_bytes=10)), "slot_wal", "warning", "max_slot_wal_keep_size"),
        (source(slot=slot(safe_wal_bytes=9_000 << 20)), "slot_wal", "ok", ""),
    ],
)
def test_each_check_finds_its_fault(facts: SourceFacts, check: str, level: str, fix: str) -> None:
    assert fix in one(findings(facts), check, level).fix


def test_a_missing_publication_with_a_slot_means_the_slot_is_useless() -> None:
    assert "teardown" in one(findings(source(publications={})), "slot", "error").fix


def test_failover_is_checked_against_version_and_slot() -> None:
    on_16 = findings(source(server=server(16)), settings={"failover": True})
    assert "needs PostgreSQL 17" in one(on_16, "slot_failover", "error").what
    on_18 = findings(settings={"failover": True})
    assert "without it" in one(on_18, "slot_failover", "warning").what


# M4.4
@pytest.mark.parametrize(
    ("libraries", "probe", "level", "words"),
    [
        (None, PluginProbe(True), "ok", "is there"),
        (None, PluginProbe(False), "info", "is not there"),
        (None, PluginProbe(None, "no replication slot is free"), "info", "no replication slot"),
        ("pgoutput, test_decoding", PluginProbe(False), "info", "does not allow wal2json"),
        ("pgoutput, wal2json", PluginProbe(False), "info", "is not there"),
    ],
)
def test_wal2json_is_told_but_never_a_fault(
    libraries: str | None, probe: PluginProbe, level: str, words: str
) -> None:
    facts = source(server=server(output_plugin_libraries=libraries))
    assert words in one(findings(facts, wal2json=probe), "wal2json", level).what


# M4.4
@pytest.mark.parametrize(
    ("libraries", "names"),
    [
        ("", "pgoutput"),
        ("wal2json", "wal2json, pgoutput"),
        # Made by ALTER SYSTEM with the list as one string: no plugin has that name.
        ('"pgoutput, test_decoding, wal2json"', "pgoutput, test_decoding, wal2json"),
        ('"My Plugin", wal2json', '"My Plugin", wal2json, pgoutput'),
    ],
)
def test_a_server_that_does_not_allow_pgoutput_is_an_error(libraries: str, names: str) -> None:
    facts = source(server=server(output_plugin_libraries=libraries))
    finding = one(findings(facts), "output_plugin_libraries", "error")
    assert "does not allow pgoutput" in finding.what
    assert f"\n  ALTER SYSTEM SET output_plugin_libraries = {names};\n" in finding.fix


def test_a_list_of_plugins_that_is_unknown_or_has_pgoutput_is_no_finding() -> None:
    for libraries in (None, "pgoutput", "*", '"pgoutput", test_decoding'):
        facts = source(server=server(output_plugin_libraries=libraries))
        assert "output_plugin_libraries" not in {each.check for each in findings(facts)}


# M4.2
def test_the_old_values_in_the_wal_are_spelt_out_with_the_sql_for_the_rest() -> None:
    finding = one(findings(), "old_values", "info")
    assert "old values of id" in finding.what
    assert "Old values of status are not in the WAL" in finding.why
    assert finding.fix == "ALTER TABLE public.orders REPLICA IDENTITY FULL"
    full = one(findings(source(table(identity="full"))), "old_values", "info")
    assert "DELETE: all old values" in full.what
    none = one(findings(source(keyless())), "old_values", "info")
    assert "no old values" in none.what


def test_the_weakest_leaf_decides_which_old_values_are_known() -> None:
    leaves = (table("a", identity="full"), table("b"))

    def told(**root: Any) -> str:
        facts = source(table(kind="partitioned table", leaves=leaves, **root))
        return one(findings(facts), "old_values", "info").what

    covering = Index("covering", ("id", "status"))
    assert "DELETE: old values of id" in told(identity="index", identity_index=covering)
    # In a whole row the others are NULL, as if they had been so.
    assert "no old values, for partitions have another identity" in told(identity="full")


def test_a_leaf_that_differs_from_its_root_is_a_warning_with_its_sql() -> None:
    leaves = (table("a", identity="full"), table("b"))
    root = table(kind="partitioned table", identity="full", leaves=leaves)
    finding = one(findings(source(root)), "partition_identity", "warning")
    assert finding.subject == "public.b"
    assert finding.fix == f"{SETUP}ALTER TABLE public.b REPLICA IDENTITY FULL"


# M4.2
def test_what_comes_of_a_leaf_that_leaves_out_old_values_is_told_as_it_is() -> None:
    given = {"source": {"dsn": "postgresql://h/app", "tables": ["orders"]}}

    def told(root: str, **aggregate: Any) -> Finding:
        leaf = table("b", primary_key=None, candidates=())
        whole = table(kind="partitioned table", identity=root, leaves=(leaf,))
        by = declared(sources=["orders"], dimensions=["status"], **aggregate)
        held = Config.model_validate({**given, "aggregate": [by]})
        gathered = Gathered(source(whole), PluginProbe(True), None, None, TOOLS)
        (found,) = (
            f
            for f in examine(held, gathered)
            if f.level == "error" and "old status" in f.what + f.why
        )
        return found

    for verifiable in (True, False):
        finding = told("full", verifiable=verifiable)
        assert (finding.check, finding.subject) == ("partition_identity", "public.b")
        assert "skipped" not in finding.why
        assert "so the job refuses to run" in finding.why
    assert "`penstock verify --repair counts` or `penstock reset counts`" in told("full").why
    # What no part of the table has is known to be missing.
    assert "Such changes are skipped" in told("default").why


def test_a_partitioned_table_must_be_published_by_its_root() -> None:
    root = table(kind="partitioned table", leaves=(table("leaf"),))
    facts = source(root, publications={"penstock": publication(via_root=False)})
    fix = one(findings(facts), "partition_root", "error").fix
    assert fix == "ALTER PUBLICATION penstock SET (publish_via_partition_root = true)"


def test_a_partition_that_is_published_under_its_roots_name_is_found() -> None:
    leaf = table(ancestors=(TableName("public", "root"),))
    for held in (
        publication("root"),
        publication(tables=(), all_tables=True),
        publication(tables=(), schemas=("public",)),
    ):
        facts = source(leaf, publications={"penstock": held})
        assert "public.root" in one(findings(facts), "partition_root", "error").fix


def test_an_unlogged_partition_is_found() -> None:
    leaf = table("leaf", persistence="unlogged")
    root = table(kind="partitioned table", leaves=(leaf,))
    assert "SET LOGGED" in one(findings(source(root)), "partition_kind", "warning").fix


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        (source(keyless()), "no replica identity"),
        (source(table(identity="nothing")), "no replica identity"),
        (
            source(publications={"penstock": publication(PublishedTable(ORDERS, columns=("x",)))}),
            "column list does not cover",
        ),
        (
            source(
                publications={"penstock": publication(PublishedTable(ORDERS, "(x)", ("status",)))}
            ),
            "row filter uses columns outside",
        ),
        (
            source(table(identity="full", columns=(column("id"), column("g", "stored")))),
            "generated columns that are not published (g)",
        ),
        (
            source(table(identity="full", columns=(column("id"), column("v", "virtual")))),
            "virtual generated columns (v)",
        ),
    ],
)
def test_what_breaks_the_applications_writes_is_an_error(facts: SourceFacts, words: str) -> None:
    assert words in one(findings(facts), "application_writes", "error").what


def test_generated_columns_that_are_not_sent_are_told_by_version() -> None:
    generated = table(columns=(column("id"), column("g", "stored"), column("v", "virtual")))
    told = [f for f in findings(source(generated)) if f.check == "generated_columns"]
    assert [f.level for f in told] == ["info", "info"]
    assert "publish_generated_columns = stored" in told[1].fix
    on_15 = findings(source(generated, server=server(15)))
    assert "upgrade to PostgreSQL 18" in [f for f in on_15 if f.check == told[1].check][1].fix
    key = Index("k", ("g",))
    in_key = table(columns=generated.columns[:2], identity="index", identity_index=key)
    one(findings(source(in_key, server=server(15))), "generated_columns", "warning")


def test_an_identity_other_than_the_one_asked_for_is_a_warning() -> None:
    found = findings(source(), {"name": "orders", "replica_identity": "full"})
    fix = one(found, "replica_identity", "warning").fix
    assert fix == f"{SETUP}ALTER TABLE public.orders REPLICA IDENTITY FULL"
    found = findings(source(), {"name": "orders", "replica_identity": "no_such"})
    assert "orders_pkey" in one(found, "replica_identity", "error").fix


# M4.2
def test_old_values_that_set_up_will_put_into_the_wal_are_told_once_and_set_up_mends_them() -> None:
    given = {"dsn": "postgresql://h/app", "tables": [{"name": "orders"}]}
    aggregate = declared(sources=["orders"], dimensions=["status"])

    def old_values(facts: SourceFacts, choice: str) -> list[Finding]:
        tables = [{"name": "orders", "replica_identity": choice}]
        settings = {"source": {**given, "tables": tables}, "aggregate": [aggregate]}
        gathered = Gathered(facts, PluginProbe(True), None, None, TOOLS)
        found = examine(Config.model_validate(settings), gathered)
        return [f for f in found if f.level == "error" and "old status" in f.what + f.why]

    for facts in (source(), bare(table())):
        (finding,) = old_values(facts, "full")
        assert (finding.check, finding.subject) == ("replica_identity", "public.orders")
        assert finding.fix == f"{SETUP}ALTER TABLE public.orders REPLICA IDENTITY FULL"
        # Set-up would leave it as it is.
        (finding,) = old_values(facts, "auto")
        assert (finding.check, finding.subject) == ("aggregate_old_values", "aggregate counts")
        assert finding.fix.startswith("Run:\n  CREATE UNIQUE INDEX")
        (finding,) = old_values(facts, "default")
        assert finding.fix.endswith('Set replica_identity = "auto" of public.orders in [source].')


def test_a_table_without_a_primary_key_and_the_cost_of_full_are_told() -> None:
    found = findings(source(keyless(identity="full")))
    one(found, "primary_key", "info")
    assert "whole old row" in one(found, "replica_identity", "info").why
    assert exit_code(found) == 0


# M4.2
def test_instead_of_full_only_an_index_is_offered_that_covers_what_aggregates_need() -> None:
    by_id, by_status = Index("by_id", ("id",)), Index("by_status", ("id", "status"))
    columns = tuple(map(column, ("id", "status", "total")))
    facts = source(table(identity="full", candidates=(by_id, by_status), columns=columns))

    def offered(*aggregates: dict[str, Any]) -> str:
        given = {"dsn": "postgresql://h/app", "tables": ["orders"]}
        held = Config.model_validate({"source": given, "aggregate": aggregates})
        gathered = Gathered(facts, PluginProbe(True), None, None, TOOLS)
        return one(examine(held, gathered), "replica_identity", "info").fix

    using = "ALTER TABLE public.orders REPLICA IDENTITY USING INDEX"
    prefix = f"If an index covers the columns that you need: {using}"
    assert offered() == f"{prefix} by_id; or {using} by_status"
    by = {"sources": ["orders"], "dimensions": ["status"]}
    assert offered(declared(**by)) == f"{prefix} by_status"
    total = declared(name="total", targets=["t"], measures={"n": "sum(total)"}, **by)
    assert offered(declared(**by), total) == ""
    constant = {"table": "orders", "immutable": ["status"], "delete": False}
    declaration = declared(**by | {"sources": [constant]}, verifiable=False)
    assert offered(declaration) == f"{prefix} by_id; or {using} by_status"


def test_row_filters_and_column_lists_are_told_with_the_sql_that_removes_them() -> None:
    held = PublishedTable(ORDERS, "(id > 1)", ("id",), ("id",))
    found = findings(source(publications={"penstock": publication(held)}))
    assert "(id > 1)" in one(found, "row_filter", "warning").what
    assert "DROP TABLE public.orders" in one(found, "column_list", "warning").fix


def test_connections_that_fail_are_told_once() -> None:
    refused = AuthenticationFailed("refused", remedy="pg_hba.conf")
    found = findings(replication_error=refused, setup_error=refused)
    assert one(found, "replication_connection", "error").fix == "pg_hba.conf"
    assert one(found, "setup_connection", "warning").fix == "pg_hba.conf"
    full = findings(replication_error=SlotLimitReached("full", remedy="wait"))
    assert not [f for f in full if f.check == "replication_connection"]


def test_errors_come_first() -> None:
    ordered = worst_first(
        [Finding("a", level, "", "") for level in ("ok", "warning", "info", "error")]
    )
    assert [f.level for f in ordered] == ["error", "warning", "info", "ok"]
    assert worst([]) == "ok"
    assert exit_code(ordered[1:]) == 1


@pytest.mark.parametrize(
    ("tools", "check", "words"),
    [
        (ToolFacts(None, None, "4.2.0"), "java", "not installed"),
        (ToolFacts("/j", 11, "4.2.0"), "java", "Java 11"),
        (ToolFacts("/j", None, "4.2.0"), "java", "does not run"),
        (ToolFacts("/j", 17, None), "pyspark", "not installed"),
        (ToolFacts("/j", 17, "3.5.1"), "pyspark", ">=4.2,<5"),
        (ToolFacts("/j", 17, "4.1.9"), "pyspark", ">=4.2,<5"),
        (ToolFacts("/j", 17, "5.0.0"), "pyspark", ">=4.2,<5"),
    ],
)
def test_java_and_spark_that_do_not_fit_are_errors_where_aggregates_need_them(
    tools: ToolFacts, check: str, words: str
) -> None:
    found = findings(tools=tools)
    finding = one(found, check, "warning")
    assert words in finding.what
    assert "install" in finding.fix
    assert exit_code(found) == 1
    settings = {
        "source": {"dsn": "postgresql://h/app", "tables": ["orders"]},
        "aggregate": [declared(sources=["orders"])],
    }
    gathered = Gathered(source(), PluginProbe(True), None, None, tools)
    needed = one(examine(Config.model_validate(settings), gathered), check, "error")
    assert (needed.what, needed.fix) == (finding.what, finding.fix)
    with pytest.raises(ToolMissing) as caught:
        require_tools(tools)
    assert (caught.value.problem, caught.value.remedy) == (finding.what, finding.fix)


def test_java_home_wins_over_the_path(tmp_path: Path) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'openjdk version \"21.0.1\"' >&2\n")
    java.chmod(0o755)
    assert read_tools({"JAVA_HOME": str(tmp_path)}).java_version == 21
    assert read_tools({"PATH": str(java.parent)}).java == str(java)
    nowhere = read_tools({"JAVA_HOME": str(tmp_path / "no"), "PATH": str(java.parent)})
    assert nowhere.java_version is None
    finding = one(findings(tools=nowhere), "java", "warning")
    assert f"JAVA_HOME is {tmp_path / 'no'}, and" in finding.what
    assert finding.fix.startswith("Let JAVA_HOME lead to Java 17 or newer, or unset it")
    assert "JAVA_HOME" not in one(findings(tools=read_tools({"PATH": ""})), "java", "warning").what
    assert read_tools({"PATH": str(tmp_path)}).java is None


@pytest.mark.parametrize(
    ("dsn", "in_file", "mode", "warned"),
    [
        ("postgresql://u:pw@h/db", True, 0o644, True),
        ("postgresql://u:pw@h/db", True, 0o640, True),
        ("postgresql://u:pw@h/db", True, 0o600, False),
        ("postgresql://u:pw@h/db", False, 0o644, False),
        ("postgresql://u@h/db", True, 0o644, False),
    ],
)
def test_a_password_in_a_file_that_others_may_read_is_a_warning(
    dsn: str, in_file: bool, mode: int, warned: bool
) -> None:
    text = f'dsn = "{dsn}"' if in_file else ""
    found = list(check_file(Path("p.toml"), text, stat.S_IFREG | mode, config(dsn=dsn)))
    assert [f.level for f in found] == (["warning"] if warned else [])


def test_a_target_s_password_in_such_a_file_is_one_too() -> None:
    dsn = "postgresql://u:pw@h/reports"
    given = {"dsn": "postgresql://u@h/db", "tables": ["notes"]}
    held = Config.model_validate({"source": given, "aggregate": [declared(target_dsn=dsn)]})
    assert list(check_file(Path("p.toml"), f'target_dsn = "{dsn}"', 0o644, held))
    assert not list(check_file(Path("p.toml"), "", 0o644, held))


def test_what_spark_says_about_expressions_is_told_and_also_if_it_says_nothing() -> None:
    wrong = ConfigInvalidValue("dimension day is wrong", remedy="Correct the expression")
    fine, bad = check_expressions({"one": (), "two": (wrong,)})
    assert (fine.level, fine.subject) == ("ok", "aggregate one")
    assert (bad.level, bad.subject, bad.fix) == ("error", "aggregate two", "Correct the expression")
    (mute,) = check_expressions(ToolMissing("Spark did not start", remedy="Free some memory"))
    assert (mute.level, mute.fix) == ("warning", "Free some memory")
