"""Aggregates: can they be counted from these tables, and do their targets fit. M4.2, M5.2"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from uuid import UUID

from penstock.config import Config
from penstock.declarations import AggregateConfig
from penstock.errors import PenstockError
from penstock.names import TableName
from penstock.ops.checks.left_out import check_left_out
from penstock.ops.checks.partition_moves import check_partition_moves
from penstock.ops.destinations import Destination
from penstock.ops.facts import SourceFacts
from penstock.ops.findings import Finding, from_error
from penstock.ops.old_values import consequence, old_value_errors
from penstock.ops.outcome import after_setup
from penstock.ops.published_targets import published_targets
from penstock.ops.source_grants import hidden_rows, missing_reads
from penstock.ops.taken_names import taken_names
from penstock.ops.target_grants import missing_grants
from penstock.ops.target_plan import clashes, destination_errors
from penstock.pipelines.bookkeeping import SCHEMA, Progress
from penstock.pipelines.deciding import of_another_log
from penstock.pipelines.inputs_checked import input_errors
from penstock.pipelines.target_facts import BOOKKEEPING
from penstock.postgres.publications import PublicationFacts
from penstock.postgres.tables import TableFacts
from penstock.printed_sql import SqlKind, printed

_SETUP = "Run `penstock setup`"


def check_aggregates(
    config: Config,
    facts: SourceFacts,
    destinations: Mapping[str, Destination | PenstockError],
    log_id: UUID | None,
) -> Iterator[Finding]:
    """`destinations`: by aggregate, as the role sees it that writes there. `log_id`: of our log."""
    after, published = after_setup(config, facts)
    # Before set-up, what counts is what it will make.
    publication = facts.publications.get(config.source.publication, published)
    for aggregate in config.aggregate:
        subject = f"aggregate {aggregate.name}"
        unfit = list(_inputs(aggregate, facts, publication, published))
        lacking = list(_old_values(aggregate, config, facts, after))
        yield from unfit
        yield from lacking
        now = old_value_errors(aggregate, config, facts, facts.tables)
        if not (unfit or lacking or any(now)):
            what = "its columns, with their old values, are in the WAL"
            yield Finding("aggregate_inputs", "ok", subject, what)
        yield from check_partition_moves(aggregate, facts)
        yield from _reads(aggregate, facts, subject)
        destination = destinations.get(aggregate.name)
        if isinstance(destination, PenstockError):
            why = "Nothing can be written to its targets."
            yield from_error("target_connection", subject, destination, why)
        elif destination is not None:
            yield from _targets(destination, facts, subject, read_well=not unfit)
            taken = list(taken_names(destination, facts, log_id))
            for clash in taken:
                why = "Each would have the other seeded anew, and stop its job."
                yield from_error("aggregate_name", subject, clash, why)
            if not taken:
                yield from _progress(aggregate, destination, log_id, subject)
            yield from check_left_out(aggregate, destination.facts, subject)
    for whole in _by_database(destinations):
        for clash in clashes(whole, facts):
            yield from_error("target", str(whole.name), clash, "Counts would go wrong.")
        for clash in published_targets(whole, facts, publication):
            why = (
                "Each batch would be a change that makes another batch, without end; and the "
                "server refuses to update a published table without a replica identity."
            )
            yield from_error("target_published", f"publication {publication.name}", clash, why)


def check_expressions(
    found: Mapping[str, Sequence[PenstockError]] | PenstockError,
) -> Iterator[Finding]:
    """`found`: what Spark says about them, by aggregate; an error: it could not be asked."""
    if isinstance(found, PenstockError):
        why = "The expressions of aggregates could not be checked."
        what = " ".join(found.problem.split())  # Spark's own words have many lines
        yield Finding("aggregate_expressions", "warning", "Spark", what, why, found.remedy)
        return
    for name, errors in found.items():
        subject = f"aggregate {name}"
        for error in errors:
            yield from_error("aggregate_expressions", subject, error, "It cannot be counted.")
        if not errors:
            what = "its expressions can be computed, and its targets hold what comes out"
            yield Finding("aggregate_expressions", "ok", subject, what)


def _inputs(
    aggregate: AggregateConfig,
    facts: SourceFacts,
    publication: PublicationFacts,
    published: PublicationFacts,
) -> Iterator[Finding]:
    """What is wrong now, and what set-up would refuse for what it would add to the publication."""
    told: set[str] = set()
    for each in (publication, published):
        for error in input_errors(aggregate, facts.tables, each, facts.server.major):
            if error.problem not in told:
                why = "It cannot be counted."
                yield from_error("aggregate_inputs", f"aggregate {aggregate.name}", error, why)
            told.add(error.problem)


def _reads(aggregate: AggregateConfig, facts: SourceFacts, subject: str) -> Iterator[Finding]:
    why = "Seeding reads its tables with that role, and so does `penstock verify`."
    if lacking := [sql for _, sql in missing_reads([aggregate], facts)]:
        what = f'role "{facts.capture_user}" may not read all that it must'
        fix = printed(SqlKind.SOURCE_GRANTS, *lacking).after("Run as the owner or a superuser")
        yield Finding("aggregate_privileges", "error", subject, what, why, fix)
    for hidden in hidden_rows([aggregate], facts):
        yield from_error("aggregate_privileges", subject, hidden, why)


def _old_values(
    aggregate: AggregateConfig,
    config: Config,
    facts: SourceFacts,
    after: Mapping[TableName, TableFacts],
) -> Iterator[Finding]:
    """What would be lacking after set-up, too; the rest is told of the tables themselves."""
    for error in old_value_errors(aggregate, config, facts, after):
        yield Finding(
            "aggregate_old_values",
            "error" if aggregate.verifiable or not error.skipped else "warning",
            f"aggregate {aggregate.name}",
            error.problem,
            consequence(aggregate, error),
            error.remedy,
        )


def _targets(
    destination: Destination, facts: SourceFacts, subject: str, *, read_well: bool
) -> Iterator[Finding]:
    """Without `read_well` nothing is known of what they should hold."""
    there = destination.facts
    missing = [str(target.table) for target in destination.missing_targets]
    ours = [name for name in BOOKKEEPING if name not in there.tables]
    errors = list(destination_errors(destination, facts, facts.tables)) if read_well else []
    for error in errors:
        yield from_error("target", subject, error, "Its counts would be wrong, or not written.")
    if missing:
        what = f'there is no {", ".join(missing)} in database "{there.database}"'
        yield Finding("target", "error", subject, what, "It has nowhere to write to.", _SETUP)
    if ours:
        what = f'there is no {", ".join(map(str, ours))} in database "{there.database}"'
        why = "Its position is kept there, in one transaction with the counts."
        yield Finding("bookkeeping", "error", subject, what, why, _SETUP)
    lacking = [sql for _, _, sql in missing_grants(destination)]
    if lacking:
        yield Finding(
            "target_privileges",
            "error",
            subject,
            f'role "{there.role}" may not write all that it must in database "{there.database}"',
            f"It writes the targets, and its position in schema {SCHEMA}.",
            printed(SqlKind.TARGET_GRANTS, *lacking).after("Run as the owner or a superuser"),
        )
    if read_well and not (errors or missing or ours or lacking):
        yield Finding("target", "ok", subject, "its targets fit and can be written")


def _progress(
    aggregate: AggregateConfig, destination: Destination, log_id: UUID | None, subject: str
) -> Iterator[Finding]:
    found = destination.facts.progress.get(aggregate.name)
    reset = f"Run `penstock reset {aggregate.name}`"
    if found is None:
        what = "it has not begun yet"
        why = "It begins with the rows that are there." if aggregate.seed else ""
        yield Finding("aggregate_progress", "info", subject, what, why, "Run `penstock run`")
        return
    if found.fingerprint != aggregate.fingerprint:
        what = "its declaration is another than the one that its targets were counted by"
        why = "Counts by the old and the new declaration would be mixed."
        yield Finding("aggregate_progress", "warning", subject, what, why, reset)
    if log_id is not None and found.log_id != str(log_id):
        what = "its position is one in another change log"
        why = "Nobody knows which changes of this log its targets hold."
        fix = of_another_log(aggregate.name)
        yield Finding("aggregate_progress", "error", subject, what, why, fix)
    stopped = destination.facts.stops.get(aggregate.name)
    if stopped is not None:
        error = stopped.stop.error(aggregate.name)
        why = f"Its targets stay as they were at {found.applied_lsn}, since {stopped.since}."
        yield from_error("aggregate_stopped", subject, error, why)
    if found.state == "seeding":
        what = "its seeding has begun and not ended"
        why = "Its targets are not complete."
        yield Finding("aggregate_progress", "info", subject, what, why)
    if stopped is None and _current(found, aggregate, log_id):
        what = f"its targets hold everything up to {found.applied_lsn}"
        if any(each.aggregate == aggregate.name for each in destination.facts.parked):
            what += ", but for what is parked"
        yield Finding("aggregate_progress", "ok", subject, what)


def _current(found: Progress, aggregate: AggregateConfig, log_id: UUID | None) -> bool:
    same_log = log_id is None or found.log_id == str(log_id)
    return found.state != "seeding" and same_log and found.fingerprint == aggregate.fingerprint


def _by_database(
    destinations: Mapping[str, Destination | PenstockError],
) -> Iterator[Destination]:
    """One for each database, whoever looked at it."""
    merged: dict[tuple[int, str], Destination] = {}
    for one in destinations.values():
        if isinstance(one, Destination):
            place = (one.facts.system_id, one.facts.database)
            if (before := merged.get(place)) is not None:
                # Each has looked at its own targets only.
                tables = {**before.facts.tables, **one.facts.tables}
                aggregates = (*before.aggregates, *one.aggregates)
                one = Destination(one.name, aggregates, replace(one.facts, tables=tables))
            merged[place] = one
    yield from merged.values()
