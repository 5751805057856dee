"""Target tables that are there: what is wrong with them. Pure.

They may have more than an aggregate needs (a surrogate key, other columns, indexes, foreign keys),
as long as they hold each dimension and measure as it is, and one row for each key.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from penstock.errors import PenstockError, TargetMismatch
from penstock.names import quote
from penstock.pipelines.target_facts import TargetFacts, UniqueKey
from penstock.pipelines.target_types import (
    TEXT,
    better_type,
    common_type,
    harm,
    has_cast,
    keeps,
    keeps_sum,
)
from penstock.pipelines.targets import Tables, Target
from penstock.postgres.column_types import BaseType
from penstock.postgres.tables import Column, TableFacts
from penstock.printed_sql import SqlKind, printed

# As pg_get_expr writes it, of any numeric type.
_ZERO = re.compile(r"\(?'?0+(?:\.0+)?'?\)?(?:::[\w ]+)?")


def target_errors(target: Target, found: TargetFacts, tables: Tables) -> Iterator[PenstockError]:
    """All that is wrong with a table that is there. `tables` are the aggregate's sources."""
    table = found.table
    about = f"target {target.table} of aggregate {target.aggregate.name}"
    facts = {"table": target.table, "aggregate": target.aggregate.name}
    if problem := _wrong_kind(table):
        remedy = "Name an ordinary or a partitioned table that is kept over a crash"
        yield TargetMismatch(f"{about} {problem}", remedy=remedy, **facts)
        return
    for what, remedy in (*_columns(target, found, tables), *_others(target, found)):
        yield TargetMismatch(f"{about}: {what}", remedy=remedy, **facts)
    if not any(_is_key(key, target, found) for key in found.keys):
        keys = ", ".join(map(quote, target.dimensions))
        index = "CREATE UNIQUE INDEX" + ("" if table.partitioned else " CONCURRENTLY")
        yield TargetMismatch(
            f"{about} has no unique key over exactly its dimensions ({keys}), for which NULL is a "
            "value like any other",
            remedy=printed(
                SqlKind.TARGET_KEY, f"{index} ON {target.table.sql} ({keys}) NULLS NOT DISTINCT"
            ).after("Run"),
            **facts,
        )


def _wrong_kind(table: TableFacts) -> str | None:
    if table.system:
        return "is a system table"
    if table.kind not in ("table", "partitioned table"):
        return f"is a {table.kind}"
    if table.ancestors:
        return f"is a partition of {table.ancestors[-1]}"
    if table.persistence != "permanent":
        return f"is {table.persistence}, so that it is empty after a crash while its position stays"
    return None


def _is_key(key: UniqueKey, target: Target, found: TargetFacts) -> bool:
    if key.columns != frozenset(target.dimensions):
        return False
    held = map(found.column, key.columns)
    return key.nulls_not_distinct or all(column is not None and column.not_null for column in held)


def _columns(target: Target, found: TargetFacts, tables: Tables) -> Iterator[tuple[str, str]]:
    alter = f"ALTER TABLE {target.table.sql}"
    for name in (*target.dimensions, *target.measures):
        column, measured = found.column(name), name in target.measures
        if column is None:
            kind = _known_type(target, name, tables)
            add = f"{alter} ADD COLUMN {quote(name)} {kind}"
            yield (
                f"it has no column {name}",
                printed(SqlKind.TARGET_COLUMN, add).after("Run")
                if kind
                else f"Add a column {name} of the type that the dimension has",
            )
        elif column.generated or column.identity == "always":
            yield (
                f"the server computes column {name}, which the aggregate must write",
                printed(
                    SqlKind.TARGET_COLUMN_COMPUTED,
                    f"{alter} ALTER COLUMN {quote(name)} DROP "
                    + ("EXPRESSION" if column.generated else "IDENTITY"),
                ).after("Run"),
            )
        elif measured:
            yield from _measure(target, name, column, tables)
        else:
            yield from _dimension(target, name, column, tables)


def _dimension(
    target: Target, name: str, column: Column, tables: Tables
) -> Iterator[tuple[str, str]]:
    sources = target.sources(name, tables)
    if not keeps(column.base, sources):
        better = better_type(column.base, sources)
        first = f"Write {target.as_text(name)}, and run"
        if better is not None:
            first = "Make the dimension an expression that has such values, or run"
        yield (
            f"column {name} is {column.type} and {harm(column.base, sources)}",
            _retyped(target, column, better or TEXT, first),
        )
    elif not column.exact:
        yield (
            f"column {name} has a collation for which different texts are equal",
            printed(
                SqlKind.TARGET_COLLATION,
                f"ALTER TABLE {target.table.sql} ALTER COLUMN {quote(name)} "
                f'TYPE {column.base.sql} COLLATE "C"',
            ).after("Run"),
        )


def _known_type(target: Target, name: str, tables: Tables) -> str | None:
    """What a column should be; None for a dimension of a type that not every database has."""
    if name in target.measures:
        return f"{target.measure_type(name).sql} NOT NULL DEFAULT 0"
    declared = target.aggregate.dimensions[name].type
    sources = target.sources(name, tables)
    found = common_type(sources) if sources else None
    return declared or (found.sql if found is not None and found.builtin else None)


def _retyped(
    target: Target, column: Column, kind: BaseType, first: str, default: str | None = None
) -> str:
    """The SQL that gives a column another type, and another default if it has one. `first`: the
    words before it.
    """
    name, table = quote(column.name), target.table.sql
    casts = has_cast(column.base, kind)
    changes = [f"TYPE {kind.sql} USING " + (f"{name}::{kind.sql}" if casts else "NULL")]
    if column.default is not None:
        # USING is not for defaults, which the server would not cast.
        changes.insert(0, "DROP DEFAULT")
        changes += [f"SET DEFAULT {default}"] if default else []
    sql = f"ALTER TABLE {table} " + ", ".join(f"ALTER COLUMN {name} {each}" for each in changes)
    if casts:
        return printed(SqlKind.TARGET_TYPE, sql).after(first)
    empty = f"DELETE FROM {table}"  # noqa: S608 - printed, not run
    again = f"Then, if the aggregate has begun already, `penstock reset {target.aggregate.name}`"
    return printed(SqlKind.TARGET_TYPE, empty, sql).after(first) + f"\n{again}"


def _measure(
    target: Target, name: str, column: Column, tables: Tables
) -> Iterator[tuple[str, str]]:
    alter = f"ALTER TABLE {target.table.sql} ALTER COLUMN {quote(name)}"
    summed = target.summed(name, tables)
    if not all(keeps_sum(column.base, kind) for kind in summed):
        of = " and ".join(kind.sql for kind in summed if kind is not None)
        yield (
            f"column {name} is {column.type}, which does not hold "
            + (f"sums of {of} exactly" if of else "counts"),
            _retyped(target, column, target.measure_type(name), "Run", default="0"),
        )
    if not column.not_null and not _ZERO.fullmatch(column.default or ""):
        yield (
            f"column {name} may be NULL, and NULL and one more is NULL",
            printed(
                SqlKind.TARGET_NOT_NULL,
                f"{alter} SET DEFAULT 0, ALTER COLUMN {quote(name)} SET NOT NULL",
            ).after("Run"),
        )


def _others(target: Target, found: TargetFacts) -> Iterator[tuple[str, str]]:
    """Columns that are not ours must take care of themselves."""
    for column in found.table.columns:
        ours = column.name in (*target.dimensions, *target.measures)
        filled = column.default is not None or column.identity or column.generated
        if not ours and column.not_null and not filled:
            yield (
                (
                    f"column {column.name} has no default and may not be NULL, and no aggregate "
                    "writes it"
                ),
                f"Give column {column.name} of {target.table} a default",
            )
