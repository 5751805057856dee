"""Whether the old values that an aggregate must subtract are in the WAL, for each table, partition
and operation; and the SQL that puts them there. Pure. M4.2
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from penstock.config import SourceConfig
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
from penstock.postgres.identity import Wanted, write_breakers
from penstock.postgres.tables import TableFacts


def old_value_errors(
    aggregate: AggregateConfig,
    config: SourceConfig,
    facts: SourceFacts,
    tables: Mapping[TableName, TableFacts],
) -> Iterator[OldValuesMissing]:
    """`tables` are the sources as they are, or as set-up will make them."""
    choices = {table.name: table.replica_identity for table in config.tables}
    for source, root in counting_sources(aggregate, tables):
        leaves = [leaf for leaf in root.leaves if leaf.publishable]
        itself = missing_old_values(aggregate, source, root, root)
        for part in leaves or (root,):
            if not (missing := missing_old_values(aggregate, source, root, part)):
                continue
            sql = _sql(root, needed_old_values(aggregate, source, root), facts)
            like = None if part is root or itself else like_root(root, part)
            fix = f"Run: {like or sql}"
            if choices.get(root.name, "auto") != "auto":
                fix += f'; and set replica_identity = "auto" of {root.name} in [source]'
            # A partition may write what its root does not promise, and it is not read.
            writes_all = set().union(*missing.values()) <= set(part.identity_columns)
            about = root if itself and writes_all else part
            lost = any(names - itself.get(rule, set()) for rule, names in missing.items())
            yield _error(aggregate, about, missing, fix, sql, skipped=not lost)
            if itself:  # one remedy for all partitions
                break


def _sql(root: TableFacts, needed: dict[str, set[str]], facts: SourceFacts) -> str:
    columns = {column.name: column for column in root.columns}
    all_needed = set().union(*needed.values())
    for index in root.candidates:
        if all_needed <= set(index.columns) and not root.partitioned:
            return Wanted("index", index).sql(root)
    key = root.primary_key or root.identity_index or next(iter(root.candidates), None)
    nullable = [name for name in sorted(all_needed) if not columns[name].not_null]
    parts = (root, *(leaf for leaf in root.leaves if leaf.publishable))
    if all(_may_be_full(part, facts) for part in parts) and (
        nullable or key is None or root.partitioned
    ):
        return "; ".join(Wanted("full").sql(part) for part in parts)
    if key is None:
        return f"ALTER TABLE {root.name.sql} ADD PRIMARY KEY (…), then run `penstock doctor` again"
    name = fitted_name(root.name.name, "_penstock_key")
    listed = ", ".join(map(quote, dict.fromkeys((*key.columns, *sorted(all_needed)))))
    how = "UNIQUE INDEX" if root.partitioned else "UNIQUE INDEX CONCURRENTLY"
    return "; ".join(
        (
            *(f"ALTER TABLE {root.name.sql} ALTER {quote(n)} SET NOT NULL" for n in nullable),
            f"CREATE {how} {quote(name)} ON {root.name.sql} ({listed})",
            f"ALTER TABLE {root.name.sql} REPLICA IDENTITY USING INDEX {quote(name)}",
        )
    )


def _may_be_full(part: TableFacts, facts: SourceFacts) -> bool:
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


def _error(
    aggregate: AggregateConfig,
    part: TableFacts,
    missing: dict[str, set[str]],
    fix: str,
    sql: str,
    *,
    skipped: bool,
) -> OldValuesMissing:
    what = not_written([part], missing)
    if set(missing) == {"update"}:
        fix += "; or, if no UPDATE ever changes it, declare it as immutable in the entry of sources"
    return OldValuesMissing(
        f"aggregate {aggregate.name} must subtract old values: {what}",
        remedy=fix,
        sql=sql,
        table=part.name,
        skipped=skipped,
        aggregate=aggregate.name,
    )
