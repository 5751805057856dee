"""What the role of `dsn` lacks to read the tables that aggregates are seeded from and verified
against, and the SQL that gives it. Pure.

Capture itself needs none of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from penstock.declarations import AggregateConfig
from penstock.errors import PrivilegeMissing
from penstock.names import TableName, quote
from penstock.ops.facts import SourceFacts
from penstock.pipelines.inputs import counting_sources, read_columns
from penstock.printed_sql import SqlKind, printed


def missing_reads(
    aggregates: Iterable[AggregateConfig], facts: SourceFacts
) -> Iterator[tuple[bool, str]]:
    """Each (the role that asks may give it, SQL)."""
    role = quote(facts.capture_user)
    told = set()
    for name, columns in _read(aggregates, facts).items():
        found = facts.readable[name]
        if not found.in_schema and name.schema not in told:
            told.add(name.schema)
            yield found.schema_owned, f"GRANT USAGE ON SCHEMA {quote(name.schema)} TO {role}"
        owned = facts.tables[name].owned
        if lacking := [column for column in columns if column not in found.columns]:
            # No more than is read: the rest of a table may not be for this role. By ctid, rows
            # are read faster; without it they are read all the same.
            listed = ", ".join(map(quote, (*lacking, "ctid")))
            yield owned, f"GRANT SELECT ({listed}) ON {name.sql} TO {role}"
        elif not found.columns:  # even to count rows takes one
            yield owned, f"GRANT SELECT ON {name.sql} TO {role}"


def hidden_rows(
    aggregates: Iterable[AggregateConfig], facts: SourceFacts
) -> Iterator[PrivilegeMissing]:
    """Tables of which policies would show the role some rows only, while the log has all."""
    role = quote(facts.capture_user)
    for name in _read(aggregates, facts):
        found = facts.readable[name]
        if found.row_security:
            run = "Run as a superuser"
            if not found.row_security_forced:
                run = "Use its owner's role in `dsn`, or run as a superuser"
            yield PrivilegeMissing(
                f'row-level security of {name} applies to role "{facts.capture_user}", and '
                "aggregates count all rows",
                remedy=printed(SqlKind.BYPASS_ROW_SECURITY, f"ALTER ROLE {role} BYPASSRLS").after(
                    run
                ),
                role=facts.capture_user,
                table=name,
            )


def _read(
    aggregates: Iterable[AggregateConfig], facts: SourceFacts
) -> dict[TableName, dict[str, None]]:
    """By table, the columns that seeding reads, and `verify` again."""
    read: dict[TableName, dict[str, None]] = {}
    for aggregate in aggregates:
        for source, table in counting_sources(aggregate, facts.tables):
            if aggregate.seed and source.rows_count and table.name in facts.readable:
                columns = (column.name for column in read_columns(aggregate, source, table))
                read.setdefault(table.name, {}).update(dict.fromkeys(columns))
    return read
