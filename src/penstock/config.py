"""The configuration: `penstock.toml`, the environment and flags in; one checked object out.

Flags win over the environment, the environment over the file, the file over the defaults. Keys of
single sections can be given as `PENSTOCK_<SECTION>_<KEY>`, and `target_dsn` of aggregates: that is
where secrets belong. Each value remembers where it came from, so that an error can name the file
and key, or the variable, to correct.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import (
    BeforeValidator,
    Field,
    PrivateAttr,
    SecretStr,
    ValidationError,
    model_validator,
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
from penstock.sections import (
    Dsn,
    Identifier,
    Number,
    PlainName,
    Secret,
    Section,
    TableRef,
    WholeNumber,
    not_empty,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

DEFAULT_PATH = Path("penstock.toml")
_ENV_PREFIX = "PENSTOCK_"
DSN_VARIABLE = f"{_ENV_PREFIX}SOURCE_DSN"


class SourceTable(Section):
    """One published table, and the replica identity it should have.

    `auto` keeps an identity that works (a primary key, FULL, an index) and otherwise takes the
    first unique index without nullable columns, else FULL. `default` and `full` are the server's
    words; any other text is the name of an index.
    """

    name: TableRef
    replica_identity: Identifier = "auto"

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: object) -> object:
        return {"name": value} if isinstance(value, str) else value


class SourceConfig(Section):
    """The database to read from."""

    dsn: Secret
    # Set-up needs more privileges than capture; without it, set-up uses `dsn`.
    setup_dsn: Secret | None = None
    # Names the source in messages and metrics.
    name: Identifier = "penstock"
    slot: PlainName = "penstock"
    publication: Identifier = "penstock"
    # `stream`: a replication connection. `poll`: SQL functions, where no such connection is to be
    # had.
    mode: Literal["stream", "poll"] = "stream"
    # What decodes the WAL; a replication connection takes pgoutput.
    plugin: Literal["pgoutput", "wal2json"] = "pgoutput"
    tables: Annotated[tuple[SourceTable, ...], Field(min_length=1)]
    # PostgreSQL 17 and newer: the slot is carried over to a standby.
    failover: bool = False
    # Off, because it alters the user's tables: a job gives new partitions their root's replica
    # identity, with the role of `setup_dsn`, which must own them.
    fix_new_partitions: bool = False
    # A walsender that is busy with one large commit answers only twice per timeout; the server's
    # default of 60 s would leave us blind for half a minute.
    wal_sender_timeout_s: Annotated[Number, Field(ge=1, le=3600)] = 20.0
    # How long the connection may be silent before we ask the server for its position.
    keepalive_interval_s: Annotated[Number, Field(gt=0, le=3600)] = 2.0
    # Keys that were not given in the file, and where they came from.
    _origins: dict[str, str] = PrivateAttr(default_factory=dict)

    @model_validator(mode="after")
    def _each_table_once(self) -> SourceConfig:
        names = [table.name for table in self.tables]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"tables names {name} twice")
        return self

    @model_validator(mode="after")
    def _only_polling_reads_wal2json(self) -> SourceConfig:
        if self.plugin == "wal2json" and self.mode != "poll":
            raise ValueError('plugin = "wal2json" needs mode = "poll"')
        return self

    @property
    def publishes(self) -> bool:
        """Whether the publication decides what is sent. wal2json knows none: it gets `tables`."""
        return self.plugin == "pgoutput"

    @property
    def conninfo(self) -> Dsn:
        return self._dsn("dsn", self.dsn)

    @property
    def setup_conninfo(self) -> Dsn:
        return self.conninfo if self.setup_dsn is None else self._dsn("setup_dsn", self.setup_dsn)

    def remember(self, origins: Mapping[str, str]) -> None:
        """Called once, by `load`: where dotted keys were given, other than in the file."""
        self._origins.update({key.removeprefix("source."): at for key, at in origins.items()})

    def _dsn(self, key: str, secret: SecretStr) -> Dsn:
        return Dsn(secret.get_secret_value(), self._origins.get(key, f"{key} in [source]"))


class PollConfig(Section):
    """How a slot is polled, with mode = "poll" in [source]."""

    # From the beginning of one run to that of the next.
    interval_s: Annotated[Number, Field(gt=0, le=3600)] = 1.0
    # A run ends behind the transaction that has so many changes; the next one follows at once.
    max_changes: Annotated[WholeNumber, Field(ge=1, le=1_000_000_000)] = 10_000
    # How often a failed run is tried again, after 1, 2, 4 … s, before the next one has its turn.
    retries: Annotated[WholeNumber, Field(ge=0, le=10)] = 3
    # 1: one document for a transaction. 2: one for a change.
    wal2json_format: Literal[1, 2] = 2


class HeartbeatConfig(Section):
    """A small logical message that proves the whole path and measures its latency."""

    # 0 switches heartbeats off.
    interval_min: Annotated[Number, Field(ge=0, le=1440)] = 5.0
    # A connection on which nothing at all arrived for this long, neither WAL activity nor a
    # heartbeat, is stale and is opened again. A missed heartbeat alone is only reported.
    timeout_min: Annotated[Number, Field(gt=0, le=1440)] = 10.0

    @model_validator(mode="after")
    def _timeout_is_longer_than_interval(self) -> HeartbeatConfig:
        if self.interval_min and self.timeout_min <= self.interval_min:
            raise ValueError("timeout_min must be longer than interval_min")
        return self


class LogConfig(Section):
    """The change log on disk."""

    # Relative to the folder of the configuration file.
    path: Annotated[Path, BeforeValidator(not_empty)] = Path("penstock-log")
    # LZ4 makes the log about a third of its size, Zstandard a seventh, for some more work.
    compression: Literal["none", "lz4", "zstd"] = "lz4"
    # A new segment file begins at this size or age; whole segments are removed.
    segment_mib: Annotated[Number, Field(gt=0, le=4096)] = 64.0
    segment_age_min: Annotated[Number, Field(gt=0)] = 60.0
    # What everybody has applied is kept for so long all the same.
    min_age_h: Annotated[Number, Field(ge=0)] = 24.0
    # And no more than so much of it: a disk of common size is not filled by what nobody needs.
    max_history_gib: Annotated[Number, Field(gt=0)] = 10.0
    # The disk budget; without one the log grows as long as its consumers lag.
    max_gib: Annotated[Number, Field(gt=0)] | None = None
    # At the budget: wait for the slowest consumer, or release it, so that it must seed again.
    on_full: Literal["wait", "invalidate"] = "wait"

    @model_validator(mode="after")
    def _budget_holds_segments(self) -> LogConfig:
        # Whole segments are removed, and the newest one never is.
        if self.max_gib is not None and self.max_gib * 1024 < 4 * self.segment_mib:
            raise ValueError("max_gib must be at least four times segment_mib")
        return self


class Config(Section):
    """One file = one source = one slot = one log."""

    source: SourceConfig
    poll: PollConfig = PollConfig()
    heartbeat: HeartbeatConfig = HeartbeatConfig()
    log: LogConfig = LogConfig()
    aggregate: tuple[AggregateConfig, ...] = ()

    @model_validator(mode="after")
    def _aggregates_read_what_is_published(self) -> Config:
        names = [aggregate.name for aggregate in self.aggregate]
        published = {table.name for table in self.source.tables}
        for aggregate in self.aggregate:
            if names.count(aggregate.name) > 1:
                raise ValueError(f"there are two aggregates {aggregate.name}")
            for source in aggregate.sources:
                if source.table not in published:
                    raise ValueError(
                        f"aggregate {aggregate.name} reads {source.table}, which is not among the "
                        "tables of [source]"
                    )
        return self

    @model_validator(mode="after")
    def _aggregates_hear_of_truncates(self) -> Config:
        is_deaf = self.source.plugin == "wal2json" and self.poll.wal2json_format == 1
        if self.aggregate and is_deaf:
            raise ValueError(
                "wal2json_format = 1 in [poll] leaves out TRUNCATE, so that aggregates would go on "
                "counting rows that are gone: set it to 2"
            )
        return self

    @model_validator(mode="after")
    def _timeout_outlasts_a_busy_walsender(self) -> Config:
        silence_s = self.source.keepalive_interval_s + self.source.wal_sender_timeout_s / 2
        if self.heartbeat.timeout_min * 60 <= silence_s:
            raise ValueError(
                "timeout_min in [heartbeat] must be longer than keepalive_interval_s and half of "
                "wal_sender_timeout_s in [source] together: so long may a healthy server be silent"
            )
        return self


def load(
    path: Path | None = None,
    *,
    environ: Mapping[str, str] = os.environ,
    flags: Mapping[str, Any] | None = None,
) -> Config:
    """Read and check the configuration; raises a `ConfigError` that names file, key and remedy.

    `flags` maps dotted keys (`source.slot`) to values given on the command line. A missing file is
    an error only where it was asked for by name, for the environment alone may be enough.
    """
    file = path or DEFAULT_PATH
    there = path is not None or file.exists()
    merged: dict[str, Any] = _read_toml(file) if there else {}
    where = str(file) if there else "the environment"
    origins: dict[str, str] = {}
    if not merged and not flags and not _environment_keys(environ):
        raise (
            _without_settings(file)
            if there
            else ConfigMissing(
                f"there is no {file} in this folder",
                remedy="Let `penstock init` write one, or name one with --config",
                file=str(file),
            )
        )
    for key, variable in _environment_keys(environ).items():
        _assign(merged, key, environ[variable])
        origins[key] = f"environment variable {variable}"
    target_dsns = _target_dsns(merged, environ)
    for number, variable in target_dsns.items():
        origins[f"aggregate.{number}.target_dsn"] = f"environment variable {variable}"
    for key, value in (flags or {}).items():
        _assign(merged, key, value)
        origins[key] = f"flag --{key.rpartition('.')[2].replace('_', '-')}"
    try:
        config = Config.model_validate(merged)
    except ValidationError as error:
        raise _explain(error, where, origins, merged) from None
    config.source.remember(origins)
    for number, variable in target_dsns.items():
        config.aggregate[number].remember(f"environment variable {variable}")
    if not config.log.path.is_absolute():
        log = config.log.model_copy(update={"path": file.parent.resolve() / config.log.path})
        config = config.model_copy(update={"log": log})
    return config


def source_dsn(flag: str | None, environ: Mapping[str, str] = os.environ) -> Dsn:
    """`dsn` of [source] where there is no file yet: from a flag, else from the environment."""
    variable = _environment_keys(environ).get("source.dsn")
    if flag is not None:
        given = Dsn(flag, "flag --dsn")
    elif variable is not None:
        given = Dsn(environ[variable], f"environment variable {variable}")
    else:
        raise ConfigMissingKey(
            "it is not told which database to look at",
            remedy="Name it with --dsn postgresql://user@host:5432/database, or in the "
            f"environment variable {DSN_VARIABLE}",
            key="source.dsn",
        )
    if not given.strip():
        raise ConfigInvalidValue(
            f"{given.origin} is empty",
            remedy="Write it as postgresql://user@host:5432/database",
            key="source.dsn",
        )
    return given


def _read_toml(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise ConfigMissing(
            f"configuration file {file} does not exist",
            remedy="Name the right file with --config, or let `penstock init` write one",
            file=str(file),
        ) from None
    except UnicodeDecodeError:
        raise ConfigSyntax(
            f"configuration file {file} is not UTF-8 text",
            remedy="Save the file as UTF-8",
            file=str(file),
        ) from None
    except OSError as error:
        raise ConfigMissing(
            f"configuration file {file} cannot be read: {error.strerror}",
            remedy="Check that it is a file and that you may read it",
            file=str(file),
        ) from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigSyntax(
            f"configuration file {file} is not valid TOML: {error}",
            remedy='Correct the line; texts need quotes, e.g. slot = "penstock"',
            file=str(file),
        ) from None


def _without_settings(file: Path) -> ConfigMissingKey:
    return ConfigMissingKey(
        f"configuration file {file} is there but holds no setting",
        remedy="Write [source] and its keys, or remove the file and let `penstock init` write one",
        file=str(file),
        key="source",
    )


def _sections() -> dict[str, type[Section]]:
    sections = {}
    for name, field in Config.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, Section):
            sections[name] = field.annotation
    return sections


def _environment_keys(environ: Mapping[str, str]) -> dict[str, str]:
    """Dotted key → variable, for every variable that belongs to one of our sections."""
    keys = {}
    for section, model in _sections().items():
        prefix = f"{_ENV_PREFIX}{section.upper()}_"
        for variable in sorted(v for v in environ if v.startswith(prefix)):
            name = variable.removeprefix(prefix).lower()
            if name not in model.model_fields:
                raise _unknown_key(
                    f"environment variable {variable} is not one that Penstock knows",
                    variable,
                    [prefix + known.upper() for known in model.model_fields],
                )
            keys[f"{section}.{name}"] = variable
    _refuse_misspelt(environ)
    if tables := keys.pop("source.tables", None):
        raise ConfigUnknownKey(
            f"environment variable {tables} is not one that Penstock knows",
            remedy='Tables belong in the file: tables = ["public.notifications"] in [source]',
        )
    return keys


def _refuse_misspelt(environ: Mapping[str, str]) -> None:
    """A variable that misses every section by a letter or two; others of that prefix may be."""
    known = [
        f"{_ENV_PREFIX}{section}_{key}".upper()
        for section, model in _sections().items()
        for key in model.model_fields
    ]
    for variable in sorted(v for v in environ if v.startswith(_ENV_PREFIX)):
        key = variable.removeprefix(_ENV_PREFIX)
        if whole := [name for name in known if name.split("_", 2)[2] == key]:
            raise ConfigUnknownKey(
                f"environment variable {variable} is not one that Penstock knows",
                remedy=f"Did you mean {' or '.join(whole)}?",
                key=variable,
            )
        if variable not in known and difflib.get_close_matches(variable, known, 1, cutoff=0.9):
            raise _unknown_key(
                f"environment variable {variable} is not one that Penstock knows", variable, known
            )


def _target_dsns(merged: Mapping[str, Any], environ: Mapping[str, str]) -> dict[int, str]:
    """Which aggregate → the variable that holds its `target_dsn`, which is set from it."""
    found = {}
    entries = merged.get("aggregate")
    for number, entry in enumerate(entries if isinstance(entries, list) else ()):
        name = entry.get("name") if isinstance(entry, dict) else None
        variable = f"{_ENV_PREFIX}AGGREGATE_{name}_TARGET_DSN".upper()
        if isinstance(name, str) and variable in environ:
            entry["target_dsn"] = environ[variable]
            found[number] = variable
    return found


def _assign(target: dict[str, Any], dotted: str, value: Any) -> None:
    section, _, key = dotted.partition(".")
    inner = target.setdefault(section, {})
    if isinstance(inner, dict):  # else validation reports that the section is not a table
        inner[key] = value


def _explain(
    error: ValidationError, where: str, origins: Mapping[str, str], merged: Mapping[str, Any]
) -> ConfigError:
    """The first finding of pydantic in our words, without the value: it may be a secret."""
    findings = error.errors(include_input=False, include_url=False)
    # What is missing may only be misspelt.
    first = min(findings, key=lambda finding: finding["type"] != "extra_forbidden")
    path = [str(part) for part in first["loc"]]
    key = ".".join(path)
    place = origins.get(key, where)
    match first["type"]:
        case "missing":
            return ConfigMissingKey(
                f"{where}: {_spell(path, merged)} is missing",
                remedy=_how_to_give(path),
                key=key,
            )
        case "extra_forbidden" if len(path) == 1:
            return _unknown_at_top(path[0], where, merged)
        case "extra_forbidden":
            spelled = _spell(path, merged)
            return _unknown_key(f"{where}: {spelled} is not a key", path[-1], _siblings(path))
    reason = _TYPE_REASONS.get(first["type"], first["msg"].removeprefix("Value error, "))
    if path[:2] == ["source", "tables"] and len(path) == 3 and first["type"] == "model_type":
        reason = 'should be a name in quotes, e.g. "public.notifications"'
    reason = reason[:1].lower() + reason[1:]
    # A rule about several sections has no place of its own.
    about = f"{_spell(path, merged)}: " if path else ""
    return ConfigInvalidValue(f"{place}: {about}{reason}", remedy="Correct the value", key=key)


# Where pydantic speaks of Python's types.
_TYPE_REASONS = {
    "model_type": "should be a section (or a table in braces) with keys and values",
    "tuple_type": 'should be a list, e.g. ["public.notifications"]',
    "dict_type": "should be a section (or a table in braces) with keys and values",
    "bool_parsing": "should be true or false",
    "dataclass_type": "should be the name of a table, in quotes",
    "path_type": "should be a path, in quotes",
    "too_short": "should not be empty",
    "finite_number": "should be a finite number",
    # The only pattern there is.
    "string_pattern_mismatch": (
        "should be 1 to 63 characters, and only lower-case letters a to z, digits and _"
    ),
}


def _unknown_at_top(name: str, where: str, merged: Mapping[str, Any]) -> ConfigUnknownKey:
    sections = [f"[{section}]" for section in _sections()]
    if isinstance(merged.get(name), dict):
        return _unknown_key(f"{where}: [{name}] is not a section", f"[{name}]", sections)
    homes = [f"[{section}]" for section, model in _sections().items() if name in model.model_fields]
    if homes:
        return ConfigUnknownKey(
            f"{where}: {name} stands outside of any section",
            remedy=f"It belongs in {' or '.join(homes)}: write it below that line",
            key=name,
        )
    return ConfigUnknownKey(
        f"{where}: {name} stands outside of any section",
        remedy=f"Keys belong in a section: {', '.join(sections)}",
        key=name,
    )


def _unknown_key(problem: str, name: str, known: list[str]) -> ConfigUnknownKey:
    close = difflib.get_close_matches(name, known, n=1)
    remedy = f"Did you mean {close[0]}?" if close else f"The keys here are: {', '.join(known)}"
    return ConfigUnknownKey(problem, remedy=remedy, key=name)


def _siblings(path: list[str]) -> list[str]:
    model: type[Section] = Config
    for part in path[:-1]:
        model = _models().get(part, model)
    return list(model.model_fields)


def _models() -> Mapping[str, type[Section]]:
    """What stands below a key."""
    return _sections() | {
        "tables": SourceTable,
        "aggregate": AggregateConfig,
        "sources": AggregateSource,
        "targets": AggregateTarget,
        "dimensions": Dimension,
    }


def _spell(path: list[str], merged: Mapping[str, Any]) -> str:
    """`source.slot` as a reader of TOML looks for it: `slot in [source]`.

    >>> _spell(["source", "slot"], {}), _spell(["source"], {})
    ('slot in [source]', 'section [source]')
    >>> _spell(["source", "tables", "0", "name"], {})
    'tables, entry 1, name in [source]'
    >>> _spell(["aggregate", "1", "seed"], {"aggregate": [{}, {"name": "counts"}]})
    'seed in [[aggregate]] 2 (counts)'
    """
    section, *rest = path
    place = f"[{section}]"
    if section == "aggregate" and rest:
        number, rest = int(rest[0]), rest[1:]
        place = f"[[aggregate]] {number + 1}"
        match merged["aggregate"][number]:
            case {"name": str(name)}:
                place += f" ({name})"
    if not rest:
        return f"section {place}"
    words = [f"entry {int(part) + 1}" if part.isdigit() else part for part in rest]
    return f"{', '.join(words)} in {place}"


def _how_to_give(path: list[str]) -> str:
    if path == ["source", "tables"]:
        return 'Name the tables to read, e.g. tables = ["public.notifications"] in [source]'
    if path[0] != "aggregate" and len(path) == 2:
        variable = f"{_ENV_PREFIX}{path[0]}_{path[1]}".upper()
        return f"Add it to the file, or set the environment variable {variable}"
    if len(path) > 2:
        return f"Add {path[-1]} to the entry; `penstock docs configuration` shows a whole file"
    return f"Add [{path[0]}] to the file; `penstock docs configuration` shows a whole one"
