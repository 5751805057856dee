"""`[[aggregate]]`: what can be declared, and what is refused before anything runs."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.config import load
from penstock.declarations import AggregateConfig
from penstock.errors import ConfigError, ConfigInvalidValue
from penstock.expressions import BadExpression, columns_of

WHOLE = """
[source]
dsn = "postgresql://u:hunter2@h/db"
tables = ["notifications", "notification_history"]

[[aggregate]]
name = "notification_counts"
filter = "key_type <> 'test'"

[[aggregate.sources]]
table = "notifications"
immutable = ["service_id", "template_id"]
aliases = { notification_status = ["notification_status", "status"] }

[aggregate.dimensions]
bst_date.expression = "to_date(from_utc_timestamp(created_at, 'Europe/London'))"
bst_date.type = "date"
service_id = "service_id"
template_id = "template_id"
notification_status = "notification_status"

[aggregate.measures]
count = "count"
cost = "sum(price)"

[[aggregate.targets]]
table = "ft_service_stats"
dimensions = ["service_id", "template_id", "notification_status"]
measures = ["count"]

[[aggregate.targets]]
table = "ft_by_date"
dimensions = ["bst_date"]
"""


def declared(**changes: Any) -> AggregateConfig:
    given = {
        "name": "counts",
        "sources": ["notifications"],
        "dimensions": ["service_id", "status"],
        "targets": ["stats"],
    }
    return AggregateConfig.model_validate(given | changes)


def test_a_whole_declaration_is_read(tmp_path: Any) -> None:  # M5.2
    file = tmp_path / "penstock.toml"
    file.write_text(WHOLE)
    (aggregate,) = load(file, environ={}).aggregate
    assert aggregate.inputs == (
        *("created_at", "service_id", "template_id", "notification_status", "key_type", "price"),
    )
    assert aggregate.summed == ("price",)
    assert not aggregate.all_plain
    stats, by_date = aggregate.targets
    assert aggregate.shown_by(stats) == (
        ("service_id", "template_id", "notification_status"),
        ("count",),
    )
    assert aggregate.shown_by(by_date) == (("bst_date",), ("count", "cost"))
    (source,) = aggregate.sources
    assert source.names("notification_status") == ("notification_status", "status")
    assert source.names("service_id") == ("service_id",)


def test_the_target_s_dsn_can_come_from_the_environment_and_its_errors_name_the_variable(
    tmp_path: Any,
) -> None:  # M7.4
    file = tmp_path / "penstock.toml"
    file.write_text(WHOLE)
    variable = "PENSTOCK_AGGREGATE_NOTIFICATION_COUNTS_TARGET_DSN"
    config = load(file, environ={variable: "host=elsewhere"})
    dsn = config.aggregate[0].conninfo(config.source.conninfo)
    assert (dsn, dsn.origin) == ("host=elsewhere", f"environment variable {variable}")
    config = load(file, environ={})
    assert config.aggregate[0].conninfo(config.source.conninfo).origin == "dsn in [source]"
    with pytest.raises(ConfigInvalidValue, match=f"environment variable {variable}: "):
        load(file, environ={variable: ""})


def test_a_name_in_backticks_in_a_list_is_the_name_inside() -> None:  # M5.2
    aggregate = declared(
        dimensions=["status", "`Two words`", "`a``b`"],
        targets=[{"table": "stats", "dimensions": ["Two words"]}],
    )
    assert list(aggregate.dimensions) == ["status", "Two words", "a`b"]
    assert aggregate.inputs == ("status", "Two words", "a`b")
    same = {"status": "status", "Two words": "`Two words`", "a`b": "`a``b`"}
    assert aggregate.dimensions == declared(dimensions=same).dimensions


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"dimensions": []}, "at least 1"),
        ({"targets": []}, "at least 1"),
        ({"sources": ["notifications", "notifications"]}, "twice"),
        ({"targets": ["stats", "stats"]}, "twice"),
        ({"dimensions": ["status", "status"]}, "the list names status twice"),
        ({"dimensions": ["status", "`status`"]}, "the list names status twice"),
        ({"dimensions": ["Two words"]}, "stands in backticks: `Two words`"),
        ({"dimensions": ["status", {"day": "to_date(made_at)"}]}, "columns in quotes"),
        ({"dimensions": ["status", 1]}, "columns in quotes"),
        (
            {"targets": [{"table": "stats", "dimensions": ["status", "status"]}]},
            r"dimensions of public\.stats name status twice",
        ),
        (
            {"targets": [{"table": "stats", "measures": ["count", "count"]}]},
            r"measures of public\.stats name count twice",
        ),
        ({"name": "Counts!"}, "pattern"),
        ({"targets": ["t" * 64]}, "at most 63 bytes"),
        ({"targets": ["s" * 64 + ".t"]}, "at most 63 bytes"),
        ({"targets": ['"ü' + "ü" * 31 + '"']}, "at most 63 bytes"),
        ({"dimensions": {"d" * 64: "status"}}, "at most 63 bytes"),
        ({"dimensions": {"a\0b": "status"}}, "NUL"),
        ({"targets": ['"a\0b"']}, "NUL"),
        ({"measures": {"mean": "avg(price)"}}, 'should be "count" or'),
        ({"measures": {"status": "count"}}, "both a dimension and a measure"),
        ({"targets": [{"table": "stats", "dimensions": ["job"]}]}, "job is no dimension of"),
        ({"targets": [{"table": "stats", "dimensions": []}]}, "at least 1"),
        ({"targets": [{"table": "stats", "measures": []}]}, "at least 1"),
        ({"targets": [{"table": "stats", "measures": ["cost"]}]}, "cost is no measure of"),
        ({"sources": [{"table": "n", "immutable": ["job"]}]}, "job is no immutable column"),
        ({"sources": [{"table": "n", "aliases": {"job": ["x"]}}]}, "job is no alias"),
        ({"dimensions": {"day": "rand()"}}, "uses rand"),
        ({"dimensions": {"day": "current_date"}}, "another value each time"),
        ({"dimensions": {"day": "date(now())"}}, "uses now"),
        ({"dimensions": {"day": "max(created_at)"}}, "several rows"),
        ({"dimensions": {"day": "(select 1)"}}, "several rows"),
        ({"dimensions": {"day": "to_date(created_at"}}, "not an expression"),
        ({"dimensions": {"day": "a; drop table b"}}, "one expression"),
        ({"dimensions": {"day": "a;"}}, "one expression"),
        ({"dimensions": {"day": "a; -- the day"}}, "one expression"),
        ({"dimensions": {"day": "a /* the day"}}, "not an expression"),
        ({"dimensions": {"day": "a) || (b"}}, "not an expression"),
        ({"filter": "n.status = 'x' and row_number() over (order by id) = 1"}, "several rows"),
        ({"sources": [{"table": "n", "insert": False}]}, "no query could tell"),
        ({"sources": [{"table": "n", "delete": False}]}, "no query could tell"),
        (
            {"sources": [{"table": "n", "insert": False, "update": False, "delete": False}]},
            "nothing would ever count",
        ),
    ],
)
def test_what_cannot_work_is_refused(changes: dict[str, Any], said: str) -> None:  # M5.2
    with pytest.raises(ValueError, match=said):
        declared(**changes)


def test_a_column_may_have_two_names() -> None:
    assert declared(dimensions={"status": "status", "state": "status"}).inputs == ("status",)


def test_rules_without_a_truth_pass_if_nobody_will_verify_them() -> None:
    declared(sources=[{"table": "n", "insert": False}], verifiable=False)
    # An update cannot change what counts.
    declared(sources=[{"table": "n", "update": False, "immutable": ["service_id", "status"]}])
    # Of the archive nothing counts.
    off = {"table": "archive", "insert": False, "update": False, "delete": False}
    declared(sources=["notifications", off])


def test_the_fingerprint_follows_what_decides_about_the_result() -> None:  # M5.3
    one = declared()
    assert declared(target_dsn="host=x", verifiable=False).fingerprint == one.fingerprint
    assert declared(filter="status <> 'x'").fingerprint != one.fingerprint
    assert declared(targets=["others"]).fingerprint != one.fingerprint
    assert declared(dimensions={"service_id": "service_id", "status": "upper(status)"}) != one


def test_whether_counts_may_go_below_zero_decides_about_the_result() -> None:  # M5.3, M5.4
    """What is shown and what is parked are of one floor: with another it has to be seeded anew."""
    assert declared(floor=False).fingerprint != declared().fingerprint
    # As it was before: nobody has to seed anew for a setting that is as it was.
    assert declared(floor=True).fingerprint == "2d59189cf74764b6"


def test_an_aggregate_reads_published_tables_only(tmp_path: Any) -> None:
    file = tmp_path / "penstock.toml"
    file.write_text(WHOLE.replace('tables = ["notifications", ', "tables = ["))
    with pytest.raises(ConfigError, match=r"reads public.notifications, which is not among"):
        load(file, environ={})


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('seed = "perhaps"', r"seed in \[\[aggregate\]\] 1 \(a\): should be true or false"),
        ('measures = ["count"]', r"measures in \[\[aggregate\]\] 1 \(a\): should be a section"),
        (
            "dimenions = 1",
            r"dimenions in \[\[aggregate\]\] 1 \(a\) is not a key.*Did you mean dimensions",
        ),
        ('sources = [{ tabel = "x" }]', r"tabel in \[\[aggregate\]\] 1 \(a\) is not a key.*table"),
    ],
)
def test_a_mistake_in_the_file_is_named_with_its_place(
    tmp_path: Any, line: str, said: str
) -> None:  # M7.3
    file = tmp_path / "penstock.toml"
    lines = ['[source]\ndsn = "x"\ntables = ["n"]\n[[aggregate]]\nname = "a"', line]
    if "sources" not in line:
        lines.append('sources = ["n"]')
    lines.append('dimensions = ["status"]\ntargets = ["t"]')
    file.write_text("\n".join(lines))
    with pytest.raises(ConfigError, match=said):
        load(file, environ={})


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        ("case when a = 'x' then b else `C d` end", ("a", "b", "C d")),
        ("a || a", ("a",)),
        ("'constant'", ()),
        ("a between 1 and b", ("a", "b")),
    ],
)
def test_the_columns_of_an_expression(text: str, columns: tuple[str, ...]) -> None:
    assert columns_of(text) == columns


def test_a_column_with_its_table_is_refused() -> None:
    with pytest.raises(BadExpression, match="without its table"):
        columns_of("n.status")
