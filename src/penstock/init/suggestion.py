"""All that the file will say: a survey in, a `Suggestion` out. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from psycopg import conninfo

from penstock.errors import NothingToCapture, NotPublishable
from penstock.init.aggregate import SuggestedAggregate, entry, suggest_aggregate
from penstock.init.dsn import OpenDsn
from penstock.init.facts import Survey, Surveyed
from penstock.init.fitness import Unfit, unfit
from penstock.names import TableName
from penstock.words import counted

# Each captured table is more to log; whoever has so many wants some of them.
MAX_TABLES = 50


@dataclass(frozen=True, slots=True)
class Entry:
    """A table that will be captured."""

    table: TableName
    # None: set-up takes what the table has, or its key.
    replica_identity: str | None = None

    @property
    def setting(self) -> str | dict[str, str]:
        return entry(self.table, self.replica_identity)


@dataclass(frozen=True, slots=True)
class Suggestion:
    name: str
    dsn: OpenDsn
    # Of the slot and of the publication.
    slot: str
    tables: tuple[Entry, ...]
    # Could be captured, but are not: there are too many.
    others: tuple[TableName, ...] = ()
    unfit: tuple[Unfit, ...] = ()
    aggregate: SuggestedAggregate | None = None
    # The folder of the change log.
    log: str = "penstock-log"
    # The slot is polled, because no replication connection is to be had.
    polled: bool = False

    @property
    def settings(self) -> dict[str, Any]:
        """What the file means, without its comments."""
        source = {
            "name": self.name,
            "dsn": self.dsn.text,
            "slot": self.slot,
            "publication": self.slot,
            "tables": [table.setting for table in self.tables],
            **({"mode": "poll"} if self.polled else {}),
        }
        found: dict[str, Any] = {"source": source, "log": {"path": self.log}}
        if self.aggregate is not None:
            found["aggregate"] = [self.aggregate.settings]
        return found


def suggest(
    survey: Survey,
    dsn: OpenDsn,
    *,
    asked: bool,
    log: str = "penstock-log",
    polled: bool = False,
) -> Suggestion:
    """`asked`: the user named the tables of the survey, and gets all of them or an error."""
    judged = [(each, unfit(each, survey)) for each in survey.tables]
    left_out = [reason for _, reason in judged if reason is not None]
    fit = [each for each, reason in judged if reason is None]
    if asked:
        _refuse([reason for reason in left_out if not reason.with_full])
        fit, left_out = list(survey.tables), []
    captured = fit if asked else fit[:MAX_TABLES]
    if not captured:
        raise _nothing(left_out, survey)
    aggregate = suggest_aggregate(captured, survey)
    return Suggestion(
        name=survey.facts.server.database,
        dsn=_with_database(dsn, survey),
        slot=survey.free_name,
        tables=tuple(_entry(each, survey, aggregate) for each in _by_name(captured)),
        others=tuple(sorted((*(each.table.name for each in fit[len(captured) :]), *survey.others))),
        unfit=tuple(sorted(left_out, key=lambda each: each.table)),
        aggregate=aggregate,
        log=log,
        polled=polled,
    )


def _by_name(tables: Sequence[Surveyed]) -> list[Surveyed]:
    return sorted(tables, key=lambda each: each.table.name)


def _entry(surveyed: Surveyed, survey: Survey, aggregate: SuggestedAggregate | None) -> Entry:
    name = surveyed.table.name
    if aggregate is not None and aggregate.table == name and aggregate.replica_identity:
        return Entry(name, aggregate.replica_identity)
    # Said aloud, for it costs WAL.
    return Entry(name, "full" if unfit(surveyed, survey) else None)


def _with_database(dsn: OpenDsn, survey: Survey) -> OpenDsn:
    """If nothing but a secret was given, the rest is libpq's defaults; the file needs a word."""
    text = dsn.text or conninfo.make_conninfo("", dbname=survey.facts.server.database)
    return OpenDsn(text, dsn.secrets, dsn.variable)


def _refuse(refused: Sequence[Unfit]) -> None:
    for each in refused:
        problem = f"{each.table} {each.reason}"
        raise NotPublishable(problem, remedy=each.whole_remedy, table=each.table)


def _nothing(left_out: Sequence[Unfit], survey: Survey) -> NothingToCapture:
    """Of several, the one that could be captured all the same is the nearest."""
    nearest = min(left_out, key=lambda each: not each.with_full)
    more = f" (and {counted(len(left_out) - 1, 'other')})" if len(left_out) > 1 else ""
    remedy = nearest.whole_remedy
    if nearest.with_full:
        remedy += (
            f", or name it with --table {shlex.quote(str(nearest.table))}: then every UPDATE and "
            "DELETE writes the whole old row to the WAL"
        )
    return NothingToCapture(
        f'no table of database "{survey.facts.server.database}" can be captured as it is: '
        f"{nearest.table} {nearest.reason}{more}",
        remedy=remedy,
    )
