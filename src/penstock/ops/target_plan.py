"""What set-up would do about targets: their databases' facts in, steps and errors out. Pure.

What is missing is made: the schema `penstock` with its tables, target tables with their indexes,
and what the role that writes them lacks. What is there is checked and left as it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from penstock.errors import PenstockError, TargetClash
from penstock.names import TableName, quote
from penstock.ops.destinations import Destination
from penstock.ops.facts import SourceFacts
from penstock.ops.published_targets import published_targets
from penstock.ops.steps import Step
from penstock.ops.target_grants import check_privileges, missing_grants
from penstock.pipelines.bookkeeping import SCHEMA, TABLES, kept_by_another
from penstock.pipelines.target_checks import target_errors
from penstock.pipelines.target_facts import BOOKKEEPING
from penstock.pipelines.targets import Target, create_sql
from penstock.postgres.publications import PublicationFacts
from penstock.postgres.tables import TableFacts


def destination_errors(
    destination: Destination, facts: SourceFacts, tables: Mapping[TableName, TableFacts]
) -> Iterator[PenstockError]:
    """All that is wrong with the targets that are there, or stands in the way of the others."""
    for target, _ in destination.targets:
        found = destination.facts.tables.get(target.table)
        if found is not None:
            yield from target_errors(target, found, tables)
            continue
        try:
            _create(target, destination, facts, tables)
        except PenstockError as error:
            yield error


def clashes(destination: Destination, facts: SourceFacts) -> Iterator[TargetClash]:
    """Tables that are written for two reasons."""
    sources = {
        name
        for table in facts.tables.values()
        for one in (table, *table.leaves)
        for name in (one.name, *one.ancestors)
    }
    users: dict[TableName, str] = {}
    for target, _ in destination.targets:
        name, table = target.aggregate.name, target.table
        remedy = "Name another table in its targets"
        if table in BOOKKEEPING:
            problem = f"aggregate {name} writes to {table}, which Penstock keeps for itself"
            yield TargetClash(problem, remedy=remedy, table=table)
        elif destination.is_source(facts) and table in sources:
            problem = f"aggregate {name} writes to {table}, which is among the tables of [source]"
            yield TargetClash(problem, remedy=remedy, table=table)
        elif users.setdefault(table, name) != name:
            problem = f"aggregates {users[table]} and {name} both write to {table}"
            yield TargetClash(problem, remedy="Give each a table of its own", table=table)
        elif (keeper := destination.facts.keepers.get(table, name)) != name:
            yield kept_by_another(table, name, keeper)


def _create(
    target: Target,
    destination: Destination,
    facts: SourceFacts,
    tables: Mapping[TableName, TableFacts],
) -> tuple[str, ...]:
    elsewhere = not destination.is_source(facts)
    return create_sql(target, tables, destination.facts.types, elsewhere=elsewhere)


def target_steps(
    destinations: Sequence[Destination],
    facts: SourceFacts,
    tables: Mapping[TableName, TableFacts],
    publication: PublicationFacts,
) -> Iterator[Step]:
    """Raises the first error, and `PrivilegeMissing` with the SQL for all that lacks."""
    for destination in destinations:
        for error in (
            *clashes(destination, facts),
            *published_targets(destination, facts, publication),
            *destination_errors(destination, facts, tables),
        ):
            raise error
        check_privileges(destination)
        for title, statements in (
            *_schemas(destination),
            *_bookkeeping(destination),
            *_targets(destination, facts, tables),
            *_grant_steps(destination),
        ):
            yield Step(title, statements, database=destination.name)


_Titled = tuple[str, tuple[str, ...]]


def _schemas(destination: Destination) -> Iterator[_Titled]:
    for schema in destination.missing_schemas:
        yield f"schema {schema}", (f"CREATE SCHEMA {quote(schema)}",)


def _bookkeeping(destination: Destination) -> Iterator[_Titled]:
    for name, sql in TABLES.items():
        if TableName(SCHEMA, name) not in destination.facts.tables:
            yield f"table {SCHEMA}.{name}", (sql.strip(),)


def _targets(
    destination: Destination, facts: SourceFacts, tables: Mapping[TableName, TableFacts]
) -> Iterator[_Titled]:
    for target in destination.missing_targets:
        aggregate = target.aggregate
        title = f"target {target.table} of aggregate {aggregate.name}"
        statements = _create(target, destination, facts, tables)
        if aggregate.seed and aggregate.name in destination.facts.progress:
            # What was counted so far is not in the new table, nor in any change to come.
            title += ", which has to be seeded anew"
            ours = f"aggregate = '{aggregate.name}'"  # which is of letters and digits
            statements += (f"UPDATE {SCHEMA}.progress SET state = 'seeding' WHERE {ours}",)  # noqa: S608
        yield title, statements


def _grant_steps(destination: Destination) -> Iterator[_Titled]:
    by_role: dict[str, list[str]] = {}
    for _, role, sql in missing_grants(destination):
        by_role.setdefault(role, []).append(sql)
    for role, statements in by_role.items():
        yield f"role {role} may write the targets", tuple(statements)
