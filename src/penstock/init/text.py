"""The file itself: a `Suggestion` in, TOML with comments out. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

from penstock.config import DSN_VARIABLE
from penstock.init.aggregate import SuggestedAggregate, entry
from penstock.init.dsn import OpenDsn
from penstock.init.fitness import Unfit
from penstock.init.suggestion import Suggestion
from penstock.names import TableName
from penstock.toml import comment, commented, value
from penstock.words import counted

# Of tables that are not captured.
_MAX_LISTED = 100
_INDENT = "  "
_T = TypeVar("_T")

_HEAD = """\
# Written by `penstock init`, from what the database's catalog and the planner's statistics say.
# They are suggestions: change what you like. What stands behind a # does not count.
# Flags win over environment variables, those over this file. A key that is not here has a default;
# `penstock docs configuration` has all of them.
"""
_LOG = """\
# "lz4" makes it about a third of its size, "zstd" a seventh for some more work; or "none".
# compression = "lz4"
# Of what all readers have applied, it keeps a day, and no more than this.
# max_history_gib = 10
# The most it may take on disk. Without it, the log grows for as long as its slowest reader lags.
# max_gib = 50

# [heartbeat]
# Small messages that prove that everything works, from the database to the log. 0: none.
# interval_min = 5
"""
_EXAMPLE = """\
# [[aggregate]]
# name = "order_counts"
# sources = ["public.orders"]
# dimensions = ["status", "country"]
# measures = { count = "count", amount_sum = "sum(amount)" }
# targets = ["public.order_counts"]
"""


def render(suggestion: Suggestion) -> str:
    """The whole file."""
    lines = [*_HEAD.splitlines(), "", *_source(suggestion), "", *_log(suggestion), ""]
    if suggestion.aggregate is None:
        lines += comment(
            "Counts that follow the tables, so that nobody runs COUNT(*) on them. No columns to "
            "count by suggested themselves; one looks so (`penstock docs aggregates`):"
        )
        lines += _EXAMPLE.splitlines()
    else:
        lines += _aggregate(suggestion.aggregate)
    return "\n".join(lines) + "\n"


def _source(suggestion: Suggestion) -> Iterator[str]:
    yield "[source]"
    yield from comment("Names the source in messages and metrics.")
    yield f"name = {value(suggestion.name)}"
    yield ""
    yield from comment("How to connect.", *_about_secrets(suggestion.dsn))
    yield f"dsn = {value(suggestion.dsn.text)}"
    yield from comment(
        "`penstock setup` needs more rights than what runs all the time (`penstock docs roles`). "
        "If another role has them:"
    )
    yield commented('setup_dsn = "postgresql://penstock_setup@host:5432/database"')
    yield ""
    yield from comment(
        "What `penstock setup` makes on the server: a replication slot, which keeps WAL until it "
        "is captured, and a publication, which says of which tables. Slots are the whole server's, "
        "so each file needs a slot of its own."
    )
    yield f"slot = {value(suggestion.slot)}"
    yield f"publication = {value(suggestion.slot)}"
    yield ""
    yield from comment(
        "Read with SQL functions, each second, instead of a replication connection "
        "(`penstock docs polling`)."
    )
    polled = 'mode = "poll"'
    yield polled if suggestion.polled else commented(polled)
    yield ""
    yield from _tables(suggestion)


def _about_secrets(dsn: OpenDsn) -> Iterator[str]:
    if not dsn.secrets:
        yield (
            "A password does not belong here but in PGPASSWORD, in ~/.pgpass, or with the whole "
            f"connection string in {DSN_VARIABLE}, which wins over this line."
        )
        return
    names = " and ".join(dsn.secrets)
    yield f"The {names} that `penstock init` was given is left out of this file on purpose."
    if dsn.variable is not None:
        yield f"{dsn.variable} has it, and wins over this line as long as it is set."
    elif dsn.secrets == ("password",):
        yield (
            "Put it in PGPASSWORD or in ~/.pgpass, or put the whole connection string in "
            f"{DSN_VARIABLE}, which wins over this line."
        )
    else:
        yield f"Put the whole connection string in {DSN_VARIABLE}, which wins over this line."


def _tables(suggestion: Suggestion) -> Iterator[str]:
    yield from comment(
        "The tables to capture, each quoted as in SQL. A partitioned table stands for all its "
        "partitions. Remove what you do not need: every change of a table here goes to the log."
    )
    yield "tables = ["
    aggregate = suggestion.aggregate
    for table in suggestion.tables:
        if aggregate is not None and table.table == aggregate.table and table.replica_identity:
            yield from _identity(aggregate, table.replica_identity)
        elif table.replica_identity is not None:
            yield from comment(
                "It has no key to tell its rows by, so every UPDATE and DELETE writes the whole "
                "old row to the WAL. A primary key would make that less.",
                indent=_INDENT,
            )
        yield f"{_INDENT}{value(table.setting)},"
    yield from _left_out(suggestion)
    yield "]"


def _log(suggestion: Suggestion) -> Iterator[str]:
    yield "[log]"
    yield from comment(
        "The folder of the change log, seen from this file. Everything captured goes there first; "
        "each file needs a folder of its own."
    )
    yield f"path = {value(suggestion.log)}"
    yield from _LOG.splitlines()


def _identity(aggregate: SuggestedAggregate, identity: str) -> Iterator[str]:
    yield from comment(
        f"The aggregate {aggregate.name} subtracts old values, and the WAL must hold them.",
        indent=_INDENT,
    )
    if identity != "full":
        yield from comment(
            "The columns of this unique index are enough: UPDATE and DELETE write the old ones.",
            indent=_INDENT,
        )
        return
    yield from comment(
        'The price of "full": every UPDATE and DELETE writes the whole old row to the WAL. '
        "Without the aggregate, the name of the table alone is enough here.",
        indent=_INDENT,
    )
    if aggregate.index_instead is not None:
        yield from comment(
            "Less WAL, for one more index: run this, then write the name of the table alone.",
            indent=_INDENT,
        )
        for statement in aggregate.index_instead.statements:
            yield commented(f"{statement};", _INDENT)


def _left_out(suggestion: Suggestion) -> Iterator[str]:
    if suggestion.others:
        yield from comment(
            f"The {counted(len(suggestion.tables), 'table')} above have the most rows. There are "
            f"{len(suggestion.others):,} more; take out of the comment what you need:",
            indent=_INDENT,
        )
        for name in _listed(suggestion.others):
            yield commented(f"{value(str(name))},", _INDENT)
        yield from _rest(suggestion.others)
    if suggestion.unfit:
        yield from comment("These cannot be captured as they are:", indent=_INDENT)
    for each in _listed(suggestion.unfit):
        yield from _unfit(each)
    yield from _rest(suggestion.unfit)


def _unfit(each: Unfit) -> Iterator[str]:
    said = f"{each.table} {each.reason}. {each.remedy}{':' if each.sql else '.'}"
    if each.with_full:
        said += " Or take this line, and every UPDATE and DELETE writes the whole old row:"
    yield from comment(said, indent=_INDENT)
    if each.sql is not None:
        yield from (commented(f"{statement};", _INDENT) for statement in each.sql.statements)
    setting = entry(each.table, "full" if each.with_full else None)
    yield commented(f"{value(setting)},", _INDENT)


def _listed(items: Sequence[_T]) -> Sequence[_T]:
    return items[:_MAX_LISTED]


def _rest(items: Sequence[TableName] | Sequence[Unfit]) -> Iterator[str]:
    if len(items) > _MAX_LISTED:
        yield from comment(f"… and {len(items) - _MAX_LISTED:,} more.", indent=_INDENT)


def _aggregate(aggregate: SuggestedAggregate) -> Iterator[str]:
    yield from comment(
        f"Counts of {aggregate.table} that follow its changes within a second, so that nobody "
        "runs COUNT(*) on it. Add as many [[aggregate]] as you like (`penstock docs aggregates`)."
    )
    declared = aggregate.settings
    yield "[[aggregate]]"
    yield from comment("Small letters, digits and _.")
    yield f"name = {value(declared['name'])}"
    yield from comment("The tables whose rows are counted; each is among the tables above.")
    yield f"sources = {value(declared['sources'])}"
    yield from comment("What to count by: one row for each combination.")
    for each in aggregate.dimensions:
        if each.why:
            yield commented(f"{_INDENT}{each.column}: {each.why}")
    yield f"dimensions = {value(declared['dimensions'])}"
    yield from comment(
        "What is added up: rows, and columns of whole numbers or numeric(precision, scale)."
    )
    yield f"measures = {value(declared['measures'])}"
    yield from comment("The table with the result. `penstock setup` makes it.")
    yield f"targets = {value(declared['targets'])}"
