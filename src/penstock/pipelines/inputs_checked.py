"""What is wrong with the columns that aggregates read: set-up refuses what doctor reports. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from penstock.declarations import AggregateConfig, AggregateSource
from penstock.decode.types import Kind, common_type
from penstock.errors import InputUnfit, PenstockError
from penstock.names import TableName, quote
from penstock.pipelines.inputs import (
    alias_columns,
    counting_sources,
    input_columns,
    unfit,
    value_type,
)
from penstock.pipelines.unsent import unsent_errors
from penstock.postgres.publications import PublicationFacts
from penstock.postgres.tables import Column, TableFacts

INTEGERS = ("int2", "int4", "int8")
# A sum has ten digits more than its values, and Spark's decimals have 38.
MAX_SUMMED_PRECISION = 28
# Types of which two values are equal for the server just when Spark takes them for equal.
_GROUPABLE = frozenset(
    "bool int2 int4 int8 oid float4 float8 numeric text varchar bpchar char name uuid date "
    "timestamp timestamptz time bytea bit varbit inet cidr macaddr macaddr8 pg_lsn xid8".split()
)


def can_group(column: Column) -> bool:
    """It can be a dimension."""
    return not any(True for _ in _not_grouped(column))


def can_sum(column: Column) -> bool:
    """It can be added up."""
    return not any(True for _ in _not_summed(column))


def input_errors(
    aggregate: AggregateConfig,
    tables: Mapping[TableName, TableFacts],
    publication: PublicationFacts,
    major: int,
) -> Iterator[PenstockError]:
    """All that is wrong; `publication` is ours, as it is or as set-up will make it."""
    for _, unsent in unsent_errors([aggregate], tables, publication, major):
        yield unsent
    for source, table in counting_sources(aggregate, tables):
        for name in aggregate.inputs:
            columns = input_columns(source, table, name)
            if not columns:
                yield _missing(aggregate, source, name)
            for column in columns:
                for what, remedy in (
                    *(_not_summed(column) if name in aggregate.summed else ()),
                    *(_not_grouped(column) if _is_dimension(aggregate, name) else ()),
                ):
                    yield unfit(aggregate, table, column, what, remedy)
    for name in aggregate.inputs:
        yield from _not_together(aggregate, tables, name)


def _is_dimension(aggregate: AggregateConfig, name: str) -> bool:
    return any(each.plain == name for each in aggregate.dimensions.values())


def _missing(aggregate: AggregateConfig, source: AggregateSource, name: str) -> InputUnfit:
    names = " or ".join(source.names(name))
    return InputUnfit(
        f"aggregate {aggregate.name} reads column {names} of {source.table}, which has none",
        remedy=(
            f"Correct the name in [[aggregate]] {aggregate.name}, or tell what {source.table} "
            f'calls it: aliases = {{ {quote(name)} = ["its name"] }} in the entry of sources'
        ),
        table=source.table,
        column=name,
    )


def _not_together(
    aggregate: AggregateConfig, tables: Mapping[TableName, TableFacts], name: str
) -> Iterator[InputUnfit]:
    """Types in several tables, or under several aliases, that are not read as one; errors of a
    single column are reported before.
    """
    found = [
        (table.name, column)
        for source, table in counting_sources(aggregate, tables)
        for column in alias_columns(source, table, name)
    ]
    if not found:
        return
    common = common_type([value_type(column) for _, column in found])
    summed = name in aggregate.summed and all(can_sum(column) for _, column in found)
    if common is None:
        problem = "do not go together"
    elif summed and common.kind is Kind.DECIMAL and common.precision > MAX_SUMMED_PRECISION:
        problem = f"have more than {MAX_SUMMED_PRECISION} digits together, too many for sums"
    else:
        return
    several = len(found) > len({table for table, _ in found})
    types = " and ".join(
        f"{column.type} in {f'column {column.name} of ' if several else ''}{table}"
        for table, column in found
    )
    yield InputUnfit(
        f"aggregate {aggregate.name} reads column {name}, which is {types}: these {problem}",
        remedy=(
            "Give the columns one type (ALTER COLUMN … TYPE, which rewrites the table), or "
            + ("take one out of aliases" if several else "make an aggregate for each")
        ),
        column=name,
    )


def _not_summed(column: Column) -> Iterator[tuple[str, str]]:
    base, limits = column.base, column.base.limits
    kinds = f"smallint, integer, bigint and numeric of up to {MAX_SUMMED_PRECISION} digits"
    # The stream tells the digits of a numeric, but not those of a domain over one.
    told = limits is not None and not column.is_domain
    if base.name in INTEGERS or (told and limits and max(limits) <= MAX_SUMMED_PRECISION):
        return
    reasons = {
        "float4": "and a sum of floats depends on their order",
        "float8": "and a sum of floats depends on their order",
        "numeric": "whose sums may have more digits than there is room for"
        if told
        else "a domain, of which the stream does not tell the number of digits"
        if limits
        else "which has no fixed number of digits",
    }
    reason = reasons.get(base.name, "which cannot be summed exactly")
    remedy = f"What can be summed are {kinds}"
    if base.name in reasons:
        remedy += (
            ": give it such a type (ALTER COLUMN … TYPE numeric(20, 4), which rewrites the table), "
            "or sum another column"
        )
    yield f"of type {column.type}, {reason}", remedy


def _not_grouped(column: Column) -> Iterator[tuple[str, str]]:
    base = column.base
    unlimited = base.name == "numeric" and base.limits is None
    known = base.is_enum or (base.builtin and base.name in _GROUPABLE)
    if known and column.exact and not unlimited:
        return
    what = "an array" if base.is_array else f"of type {column.type}"
    yield (
        f"{what}, which cannot be a dimension: equal values may be written differently",
        (
            "Make it an expression of Spark SQL with a type that can, such as "
            f'{{ expression = "cast({column.name} as string)", type = "text" }}'
        ),
    )
