"""The configuration: every mistake is an error of its own that names file, key and remedy."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pydantic import BaseModel

from penstock.config import (
    Config,
    HeartbeatConfig,
    LogConfig,
    SourceConfig,
    SourceTable,
    load,
)
from penstock.declarations import AggregateConfig, AggregateSource, AggregateTarget, Dimension
from penstock.errors import (
    ConfigError,
    ConfigInvalidValue,
    ConfigMissing,
    ConfigMissingKey,
    ConfigSyntax,
    ConfigUnknownKey,
)
from penstock.names import TableName

SECRET = "hunter2"
SOURCE = f'[source]\ndsn = "postgresql://u:{SECRET}@h/db"\ntables = ["t"]\n'
DOCUMENT = Path(__file__).parents[2] / "docs" / "configuration.md"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "penstock.toml"


def refused(file: Path, text: str, **given: dict[str, str]) -> ConfigError:
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load(file, environ=given.get("environ", {}), flags=given.get("flags"))
    error = caught.value
    assert error.remedy
    assert SECRET not in str(error)
    assert SECRET not in repr(error.__dict__)
    return error


# M7.3, M7.4: each mistake in the file has a class and a remedy of its own.
@pytest.mark.parametrize(
    ("text", "kind", "words"),
    [
        ("[source", ConfigSyntax, "not valid TOML"),
        (f"[source]\ndsn = {SECRET}", ConfigSyntax, "texts need quotes"),
        (f'[source]\ndsn = "{SECRET}', ConfigSyntax, "not valid TOML"),
        ("", ConfigMissingKey, "is there but holds no setting. Write [source]"),
        ("# dsn", ConfigMissingKey, "is there but holds no setting. Write [source]"),
        ("[log]", ConfigMissingKey, "section [source] is missing. Add [source] to the file"),
        ('[source]\ntables = ["t"]', ConfigMissingKey, "PENSTOCK_SOURCE_DSN"),
        (f'[source]\ndsn = "{SECRET}"', ConfigMissingKey, 'tables = ["public.notifications"]'),
        (SOURCE.replace('"t"', '{replica_identity = "full"}'), ConfigMissingKey, "Add name to"),
        (SOURCE + "[sorce]\n", ConfigUnknownKey, "Did you mean [source]?"),
        (SOURCE.replace("source", "sorce"), ConfigUnknownKey, "Did you mean [source]?"),
        (SOURCE.replace("dsn", "dns"), ConfigUnknownKey, "Did you mean dsn?"),
        (
            f'dsn = "{SECRET}"\n' + SOURCE,
            ConfigUnknownKey,
            "dsn stands outside of any section. It ",
        ),
        (
            "zebra = 1\n" + SOURCE,
            ConfigUnknownKey,
            "Keys belong in a section: [source], [poll], [hea",
        ),
        (SOURCE + "keepalive_interval_s = inf", ConfigInvalidValue, "should be a finite number"),
        (SOURCE + "[log]\nmin_age_h = nan", ConfigInvalidValue, "should be a finite number"),
        (SOURCE + "[log]\nsegment_age_min = inf", ConfigInvalidValue, "should be a finite number"),
        (SOURCE + "keepalive_interval_s = true", ConfigInvalidValue, "should be a number"),
        (SOURCE + "[log]\nmax_gib = true", ConfigInvalidValue, "max_gib in [log]: should be a num"),
        (
            '[source]\ndsn = ""\ntables = ["t"]',
            ConfigInvalidValue,
            "dsn in [source]: should not be",
        ),
        (SOURCE + 'setup_dsn = " "', ConfigInvalidValue, "setup_dsn in [source]: should not be"),
        (SOURCE + '[log]\npath = ""', ConfigInvalidValue, "path in [log]: should not be empty"),
        (
            SOURCE.replace('"t"', "1"),
            ConfigInvalidValue,
            "entry 1 in [source]: should be a name in",
        ),
        (SOURCE + 'slott = "a"', ConfigUnknownKey, "Did you mean slot?"),
        (SOURCE + "zebra = 1", ConfigUnknownKey, "The keys here are: dsn, setup_dsn"),
        (SOURCE.replace('"t"', '{name = "t", identity = "x"}'), ConfigUnknownKey, "entry 1"),
        (SOURCE + "slot = 3", ConfigInvalidValue, "slot in [source]: input should be a valid str"),
        (SOURCE + 'slot = "No-Good"', ConfigInvalidValue, "only lower-case letters a to z"),
        (SOURCE + f'publication = "{"x" * 64}"', ConfigInvalidValue, "at most 63 bytes"),
        (SOURCE + 'failover = "perhaps"', ConfigInvalidValue, "failover in [source]"),
        (SOURCE + "wal_sender_timeout_s = 0", ConfigInvalidValue, "greater than or equal to 1"),
        (SOURCE + "keepalive_interval_s = 'soon'", ConfigInvalidValue, "valid number"),
        (SOURCE.replace('["t"]', "[]"), ConfigInvalidValue, "tables in [source]: should not be"),
        (SOURCE.replace('["t"]', '"t"'), ConfigInvalidValue, "should be a list"),
        (SOURCE.replace('"t"', '"a b"'), ConfigInvalidValue, "'a b' is not a table name"),
        (SOURCE.replace('"t"', "{name = 3}"), ConfigInvalidValue, "the name of a table"),
        (SOURCE.replace('"t"', '"t", "public.t"'), ConfigInvalidValue, "names public.t twice"),
        (f'source = "{SECRET}"', ConfigInvalidValue, "should be a section"),
        (f'[source]\ndsn = ["{SECRET}"]\ntables = ["t"]', ConfigInvalidValue, "dsn in [source]"),
        (SOURCE + "[heartbeat]\ninterval_min = 20", ConfigInvalidValue, "longer than interval_min"),
        (
            SOURCE + "wal_sender_timeout_s = 3600\n[heartbeat]\ntimeout_min = 6",
            ConfigInvalidValue,
            "timeout_min in [heartbeat] must be longer",
        ),
        (SOURCE + "[log]\npath = 3", ConfigInvalidValue, "path in [log]: should be a path"),
    ],
)
def test_each_mistake_in_the_file_is_named(
    file: Path, text: str, kind: type[ConfigError], words: str
) -> None:
    error = refused(file, text)
    assert type(error) is kind
    assert words in str(error)
    assert str(file) in error.problem


def test_a_missing_file_is_named(file: Path) -> None:
    with pytest.raises(ConfigMissing, match="does not exist") as caught:
        load(file, environ={})
    assert "--config" in caught.value.remedy


def test_a_folder_and_a_binary_file_are_no_configuration(tmp_path: Path, file: Path) -> None:
    with pytest.raises(ConfigMissing, match="cannot be read"):
        load(tmp_path, environ={})
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigSyntax, match="not UTF-8"):
        load(file, environ={})


def test_a_byte_order_mark_is_skipped(file: Path) -> None:
    file.write_text(SOURCE, encoding="utf-8-sig")
    assert load(file, environ={}).source.slot == "penstock"


def test_a_dsn_knows_where_it_came_from(file: Path) -> None:
    file.write_text(SOURCE)
    source = load(file, environ={"PENSTOCK_SOURCE_SETUP_DSN": "host=h"}).source
    assert source.conninfo.origin == "dsn in [source]"
    assert source.setup_conninfo.origin == "environment variable PENSTOCK_SOURCE_SETUP_DSN"


def test_without_a_file_the_environment_alone_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigMissingKey, match="the environment"):
        load(environ={"PENSTOCK_SOURCE_DSN": SECRET})


# M7.4: flags over environment over file over defaults.
def test_flags_win_over_the_environment_and_that_over_the_file(file: Path) -> None:
    file.write_text(SOURCE + 'slot = "of_file"')
    environ = {"PENSTOCK_SOURCE_SLOT": "of_env", "PENSTOCK_HEARTBEAT_INTERVAL_MIN": "2.5"}
    assert load(file, environ={}).source.slot == "of_file"
    assert load(file, environ=environ).source.slot == "of_env"
    assert load(file, environ=environ).heartbeat.interval_min == 2.5
    assert load(file, environ=environ, flags={"source.slot": "of_flag"}).source.slot == "of_flag"
    assert load(file, environ={}).source.publication == "penstock"


def test_a_bad_value_is_blamed_on_where_it_came_from(file: Path) -> None:
    by_env = refused(file, SOURCE, environ={"PENSTOCK_SOURCE_SLOT": f"{SECRET}!"})
    assert "environment variable PENSTOCK_SOURCE_SLOT" in by_env.problem
    assert "flag --slot" in refused(file, SOURCE, flags={"source.slot": f"{SECRET}!"}).problem


@pytest.mark.parametrize(
    ("variable", "meant"),
    [
        ("PENSTOCK_SOURCE_SLTO", "PENSTOCK_SOURCE_SLOT"),
        ("PENSTOCK_SORCE_SLOT", "PENSTOCK_SOURCE_SLOT"),
        ("PENSTOCK_DSN", "PENSTOCK_SOURCE_DSN"),
        ("PENSTOCK_SETUP_DSN", "PENSTOCK_SOURCE_SETUP_DSN"),
        ("PENSTOCK_HEARTBEAT_TIMEOUT_MINS", "PENSTOCK_HEARTBEAT_TIMEOUT_MIN"),
    ],
)
def test_an_unknown_variable_is_refused_with_the_one_meant(
    file: Path, variable: str, meant: str
) -> None:
    error = refused(file, SOURCE, environ={variable: SECRET})
    assert type(error) is ConfigUnknownKey
    assert variable in error.problem
    assert error.remedy == f"Did you mean {meant}?"


def test_tables_are_not_taken_from_the_environment(file: Path) -> None:
    error = refused(file, SOURCE, environ={"PENSTOCK_SOURCE_TABLES": "t"})
    assert "Tables belong in the file" in error.remedy


def test_the_document_names_all_keys_that_the_environment_may_hold(file: Path) -> None:  # M7.4
    (sentence,) = re.findall(r"Every key\sof (.*?) can be given", DOCUMENT.read_text(), re.DOTALL)
    named, left_out = sentence.split(" except ")
    assert left_out == "`tables`"
    aggregate = '[[aggregate]]\nname = "a"\nsources = ["t"]\ndimensions = ["d"]\ntargets = ["c"]'
    file.write_text(f"{SOURCE}{aggregate}")

    def heeded(variable: str) -> bool:
        """An empty text is no value that a key could have."""
        try:
            return load(file, environ={variable: ""}) != load(file, environ={})
        except ConfigError:
            return True

    for section, field in Config.model_fields.items():
        model = AggregateConfig if section == "aggregate" else field.annotation
        assert model is not None
        keys = set(model.model_fields) - {"tables"}
        prefix = f"PENSTOCK_{section}_" + ("a_" if section == "aggregate" else "")
        by_variable = {key for key in keys if heeded(f"{prefix}{key}".upper())}
        assert by_variable == (keys if f"`[{section}]`" in named else {"target_dsn"})


def test_variables_of_other_programs_are_left_alone(file: Path) -> None:
    file.write_text(SOURCE)
    assert load(file, environ={"PENSTOCK_CI_TOKEN": "x", "HOME": "/"}).source.slot == "penstock"


def test_a_configuration_does_not_show_its_secrets(file: Path) -> None:
    file.write_text(SOURCE + f'setup_dsn = "postgresql://s:{SECRET}@h/db"')
    config = load(file, environ={})
    assert SECRET in config.source.conninfo
    assert SECRET in config.source.setup_conninfo
    assert SECRET not in f"{config!r} {config} {config.model_dump_json()}"


def test_the_log_lies_beside_the_file_unless_its_path_is_absolute(file: Path) -> None:
    file.write_text(SOURCE)
    assert load(file, environ={}).log.path == file.parent.resolve() / "penstock-log"
    file.write_text(SOURCE + '[log]\npath = "/var/lib/penstock"')
    assert load(file, environ={}).log.path == Path("/var/lib/penstock")


def test_the_documents_example_loads(file: Path) -> None:
    example = re.findall(r"```toml\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)[0]
    file.write_text(example)
    source = load(file, environ={}).source
    assert [table.name for table in source.tables] == [
        TableName("public", "notifications"),
        TableName("app", "Order Lines"),
        TableName("public", "notification_history"),
    ]
    assert source.tables[2].replica_identity == "full"


@pytest.mark.parametrize(
    "model",
    [
        *(SourceConfig, SourceTable, HeartbeatConfig, LogConfig),
        *(AggregateConfig, AggregateSource, AggregateTarget, Dimension),
    ],
)
def test_every_key_is_documented_with_its_default(model: type[BaseModel]) -> None:
    rows = re.findall(r"^\| `(\w+)` \| (.*?) ?\|", DOCUMENT.read_text(), re.MULTILINE)
    for name, field in model.model_fields.items():
        match field.default:
            case bool(default):
                assert (name, f"`{str(default).lower()}`") in rows
            case int(default) | float(default):
                assert (name, f"`{default:g}`") in rows
            case (str() | Path()) as default:
                assert (name, f'`"{default}"`') in rows
            case _:
                assert name in dict(rows)


def test_every_section_is_documented() -> None:
    text = DOCUMENT.read_text()
    for section in Config.model_fields:
        assert f"## `[{section}]`" in text or f"## `[[{section}]]`" in text


def test_aggregates_are_not_fed_by_a_format_that_leaves_out_truncates(file: Path) -> None:  # M4.6
    source = SOURCE.replace("[source]", '[source]\nmode = "poll"\nplugin = "wal2json"', 1)
    aggregate = '[[aggregate]]\nname = "a"\nsources = ["t"]\ndimensions = ["d"]\ntargets = ["c"]\n'
    file.write_text(f"{source}[poll]\nwal2json_format = 1\n{aggregate}")
    with pytest.raises(ConfigInvalidValue, match="leaves out TRUNCATE"):
        load(file, environ={})
    file.write_text(f"{source}[poll]\nwal2json_format = 1\n")
    assert load(file, environ={}).poll.wal2json_format == 1
    file.write_text(f"{source}[poll]\nwal2json_format = 2\n{aggregate}")
    assert load(file, environ={}).aggregate
