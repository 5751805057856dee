"""Whether the old values that an aggregate must subtract are in the WAL, for each table, partition
and operation; and the SQL that puts them there. Pure. M4.2
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from penstock.config import Config
from penstock.declarations import AggregateConfig
from penstock.errors import OldValuesMissing
from penstock.names import TableName, fitted_name, quote
from penstock.ops.facts import SourceFacts
from penstock.pipelines.inputs import counting_sources
from penstock.pipelines.old_values import (
    corrected,
    like_root,
    missing_old_values,
    needed_old_values,
    not_written,
)
from penstock.pipelines.unsent import GENERATED_VERSION
from penstock.postgres.identity import OUR_INDEX, Wanted, too_wide, write_breakers
from penstock.postgres.index_width import fits_an_index, unbounded
from penstock.postgres.tables import Column, Index, TableFacts
from penstock.printed_sql import PrintedSql, SqlKind, printed


def old_value_errors(
    aggregate: AggregateConfig,
    config: Config,
    facts: SourceFacts,
    tables: Mapping[TableName, TableFacts],
) -> Iterator[OldValuesMissing]:
    """`tables` are the sources as they are, or as set-up will make them."""
    choices = {table.name: table.replica_identity for table in config.source.tables}
    for source, root in counting_sources(aggregate, tables):
        leaves = [leaf for leaf in root.leaves if leaf.publishable]
        itself = missing_old_values(aggregate, source, root, root)
        for part in leaves or (root,):
            if not (missing := missing_old_values(aggregate, source, root, part)):
                continue
            advice = _advice(root, table_needs(config.aggregate, root), facts)
            if part is not root and not itself and (like := like_root(root, part)):
                advice = _Advice(printed(SqlKind.IDENTITY, like))
            # A partition may write what its root does not promise, and it is not read.
            writes_all = set().union(*missing.values()) <= set(part.identity_columns)
            about = root if itself and writes_all else part
            lost = any(names - itself.get(rule, set()) for rule, names in missing.items())
            choice = choices.get(root.name, "auto")
            remedy = "\n".join(_remedy(advice, root, choice, updates=set(missing) == {"update"}))
            yield OldValuesMissing(
                f"aggregate {aggregate.name} must subtract old values: "
                f"{not_written([about], missing)}",
                remedy=remedy,
                sql=advice.sql,
                table=about.name,
                skipped=not lost,
                aggregate=aggregate.name,
            )
            if itself:  # one remedy for all partitions
                break


def table_needs(aggregates: Iterable[AggregateConfig], table: TableFacts) -> set[str]:
    """The columns whose old values the aggregates need. A table has one identity for all."""
    return {
        name
        for aggregate in aggregates
        for source, _ in counting_sources(aggregate, {table.name: table})
        for names in needed_old_values(aggregate, source, table).values()
        for name in names
    }


@dataclass(frozen=True, slots=True)
class _Advice:
    """The SQL, if there is any that cannot break the application, and what to know about it."""

    sql: PrintedSql | None
    about: tuple[str, ...] = ()


def _advice(root: TableFacts, needed: set[str], facts: SourceFacts) -> _Advice:
    """One identity that holds all `needed` columns: an index if that is safe, else FULL."""
    risky = too_wide(root)
    for index in root.candidates:
        if needed <= set(index.columns) and not root.partitioned and index not in risky:
            return _Advice(printed(SqlKind.IDENTITY, Wanted("index", index).sql(root)))
    key = root.primary_key or root.identity_index or next(iter(root.candidates), None)
    names = dict.fromkeys((*(key.columns if key else ()), *sorted(needed)))
    columns = {column.name: column for column in root.columns}
    indexed = [columns[name] for name in names]
    nullable = [column.name for column in indexed if not column.not_null]
    indexable = key is not None and not nullable and fits_an_index(indexed)
    parts = (root, *(leaf for leaf in root.leaves if leaf.publishable))
    full = all(may_be_full(part, facts) for part in parts)
    if indexable and not (full and root.partitioned):
        return _Advice(_index_sql(root, list(names)))
    reasons = list(_against_an_index(root, key, nullable, indexed, facts.server.major))
    if full:
        cost = "Every UPDATE and DELETE then writes the whole old row to the WAL."
        sql = printed(SqlKind.IDENTITY, *(Wanted("full").sql(part) for part in parts))
        return _Advice(sql, (cost, *reasons))
    unfit = "FULL is not possible because of generated columns or a publication's column list."
    return _Advice(None, (unfit, *reasons, "Then run `penstock doctor` again."))


def _index_sql(root: TableFacts, names: list[str]) -> PrintedSql:
    endings = ("", *(f"_{number}" for number in range(2, len(root.index_names) + 3)))
    free = (fitted_name(root.name.name, OUR_INDEX + ending) for ending in endings)
    # An index may be left of an earlier advice: for fewer columns, or invalid.
    name = quote(next(each for each in free if each not in root.index_names))
    how = "UNIQUE INDEX" if root.partitioned else "UNIQUE INDEX CONCURRENTLY"
    return printed(
        SqlKind.COVERING_INDEX,
        # The advice for each aggregate of the table has the same statements.
        f"CREATE {how} IF NOT EXISTS {name} ON {root.name.sql} ({', '.join(map(quote, names))})",
        f"ALTER TABLE {root.name.sql} REPLICA IDENTITY USING INDEX {name}",
    )


def _against_an_index(
    root: TableFacts, key: Index | None, nullable: list[str], indexed: list[Column], major: int
) -> Iterator[str]:
    """Why an index cannot be the identity, and what would change that."""
    if key is None:
        yield f"With a primary key, {root.name} could have an index as its identity instead."
        return
    if nullable:
        yield (
            f"An index needs columns that are NOT NULL, and {', '.join(nullable)} may be NULL: "
            "change that only if the application never writes NULL there."
        )
    if not fits_an_index(indexed):
        long = unbounded(indexed) or [column.name for column in indexed]
        yield (
            f"A unique index over {', '.join(column.name for column in indexed)} would write less "
            f"WAL, but values of {', '.join(long)} may be too long for an index, and the "
            "application's INSERT would fail. It is possible once they have a small bound: "
            "varchar(n), an enum, or CHECK (char_length(…) <= n)"
            + (
                ", or a stored generated column that is counted by instead."
                if major >= GENERATED_VERSION
                else "."
            )
        )


def _remedy(advice: _Advice, root: TableFacts, choice: str, *, updates: bool) -> Iterator[str]:
    if advice.sql is not None:
        yield advice.sql.after("Run")
    if choice != "auto":
        yield f'Set replica_identity = "auto" of {root.name} in [source].'
    yield from advice.about
    if updates:
        yield "Or, if no UPDATE ever changes it, declare it as immutable in the entry of sources."


def drop_sql(table: TableFacts, indexes: list[Index], facts: SourceFacts) -> PrintedSql | None:
    """The statements that take back an index of ours; None if FULL cannot take its place."""
    parts = (table, *(leaf for leaf in table.leaves if leaf.publishable))
    if not all(may_be_full(part, facts) for part in parts):
        return None
    schema = quote(table.name.schema)
    drop = "DROP INDEX" if table.partitioned else "DROP INDEX CONCURRENTLY"
    return printed(
        SqlKind.WIDE_INDEX_DROP,
        *(Wanted("full").sql(part) for part in parts),
        *(f"{drop} {schema}.{quote(index.name)}" for index in indexes),
    )


def may_be_full(part: TableFacts, facts: SourceFacts) -> bool:
    """Some column lists and generated columns make the application's writes fail with it."""
    full = replace(part, identity="full", identity_index=None)
    return not any(
        breaker
        for publication in facts.publications.values()
        for breaker in write_breakers(full, publication, facts.server.major)
    ) and not full.generated("virtual")


def consequence(aggregate: AggregateConfig, error: OldValuesMissing) -> str:
    """What comes of it, in sentences."""
    if error.skipped:
        return "Such changes are skipped and counted as skipped; the counts are wrong without them."
    return (
        "Nothing in the stream tells that they are missing: such changes would be counted wrongly, "
        "so the job refuses to run. What was counted meanwhile is corrected by "
        f"{corrected([aggregate])}."
    )
