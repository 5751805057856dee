"""What the roles lack that make and write targets, and the SQL that gives it to them. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.errors import PrivilegeMissing
from penstock.names import quote
from penstock.ops.destinations import Destination
from penstock.pipelines.bookkeeping import SCHEMA
from penstock.pipelines.target_facts import BOOKKEEPING, PRIVILEGES
from penstock.printed_sql import SqlKind, printed


def missing_grants(destination: Destination) -> Iterator[tuple[bool, str, str]]:
    """Each (the role that asks may give it, the role that lacks it, SQL).

    What is not there yet belongs to the role that asks, once it has made it.
    """
    facts = destination.facts
    for role in dict.fromkeys(role for _, role in destination.aggregates):
        tables = (*BOOKKEEPING, *(t.table for t, writer in destination.targets if writer == role))
        for schema in dict.fromkeys(table.schema for table in tables):
            found = facts.schemas.get(schema)
            lacks = role != facts.role if found is None else role not in found.usable_by
            if lacks:
                mine = found is None or found.owned
                yield mine, role, f"GRANT USAGE ON SCHEMA {quote(schema)} TO {quote(role)}"
        for name in tables:
            table = facts.tables.get(name)
            lacking = table.forbidden(role) if table else PRIVILEGES * (role != facts.role)
            if lacking:
                mine = table is None or table.table.owned
                listed = ", ".join(lacking)
                yield mine, role, f"GRANT {listed} ON {name.sql} TO {quote(role)}"


def check_privileges(destination: Destination) -> None:
    """All that the role which sets up lacks, in one error with the SQL for all of it."""
    facts = destination.facts
    if facts.superuser:
        return
    me = quote(facts.role)
    fixes: dict[str, None] = {}
    if destination.missing_schemas and not facts.can_create:
        fixes[f"GRANT CREATE ON DATABASE {quote(facts.database)} TO {me}"] = None
    made = [target.table.schema for target in destination.missing_targets]
    made += [SCHEMA for name in BOOKKEEPING if name not in facts.tables]
    for schema in dict.fromkeys(made):
        found = facts.schemas.get(schema)
        if found is not None and not found.may_create:
            fixes[f"GRANT USAGE, CREATE ON SCHEMA {quote(schema)} TO {me}"] = None
    fixes |= {sql: None for mine, _, sql in missing_grants(destination) if not mine}
    if fixes:
        raise PrivilegeMissing(
            f'role "{facts.role}" may not do all that set-up needs for the targets in database '
            f'"{facts.database}"',
            remedy=printed(SqlKind.TARGET_SETUP_PRIVILEGES, *fixes).after(
                "Run as the owner or a superuser"
            )
            + "\n`penstock docs roles` explains them",
            role=facts.role,
        )
