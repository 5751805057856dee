"""Whether the old values that an aggregate must subtract are in the WAL, for each table, partition
and operation; and the SQL that puts them there. Pure. M4.2
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from penstock.config import SourceConfig
from penstock.declarations import AggregateConfig, AggregateSource
from penstock.errors import OldValuesMissing, UnsafeIdentity
from penstock.names import TableName, fitted_name, quote
from penstock.ops.facts import SourceFacts
from penstock.pipelines.inputs import counting_sources, input_column
from penstock.postgres.identity import Wanted, wanted_for_leaf, write_breakers
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
        wrong = {part.name: _missing(aggregate, source, root, part) for part in leaves or (root,)}
        itself = _missing(aggregate, source, root, root)
        for part in leaves or (root,):
            if not (missing := wrong[part.name]):
                continue
            sql = _sql(root, _needed(aggregate, source, root), facts)
            fix = _like_root(root, part) if part is not root and not itself else f"Run: {sql}"
            if choices.get(root.name, "auto") != "auto":
                fix += f'; and set replica_identity = "auto" of {root.name} in [source]'
            yield _error(aggregate, part, missing, fix, sql)
            if itself:  # one remedy for all partitions
                break


def _needed(
    aggregate: AggregateConfig, source: AggregateSource, table: TableFacts
) -> dict[str, set[str]]:
    """Operation → the columns of which it needs old values."""
    columns = {name: input_column(source, table, name) for name in aggregate.inputs}
    there = {name: column.name for name, column in columns.items() if column is not None}
    changing = {real for name, real in there.items() if name not in source.immutable}
    needs = {"update": changing, "delete": set(there.values())}
    return {rule: names for rule, names in needs.items() if rule in source.rules}


def _missing(
    aggregate: AggregateConfig, source: AggregateSource, root: TableFacts, part: TableFacts
) -> dict[str, list[str]]:
    known = _known(root, part)
    needed = _needed(aggregate, source, root)
    return {rule: sorted(names - known) for rule, names in needed.items() if names - known}


def _known(root: TableFacts, part: TableFacts) -> set[str]:
    """The columns of which old values can be had: the stream describes a partition's changes with
    its root's identity, and the partition's own decides what is there."""
    own = set(part.identity_columns)
    if part is root or part.identity == "full":
        return own
    return set() if root.identity == "full" else own & set(root.identity_columns)


def _like_root(root: TableFacts, leaf: TableFacts) -> str:
    wanted = Wanted(root.identity, root.identity_index)
    try:
        return f"Run: {wanted_for_leaf(leaf, wanted, 'auto').sql(leaf)}"
    except UnsafeIdentity as error:
        return error.remedy


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


def _error(
    aggregate: AggregateConfig, part: TableFacts, missing: dict[str, list[str]], fix: str, sql: str
) -> OldValuesMissing:
    what = "; ".join(
        f"{rule.upper()} of {part.name} does not write the old {', '.join(names)} to the WAL"
        for rule, names in missing.items()
    )
    if set(missing) == {"update"}:
        fix += "; or, if no UPDATE ever changes it, declare it as immutable in the entry of sources"
    return OldValuesMissing(
        f"aggregate {aggregate.name} must subtract old values: {what}",
        remedy=fix,
        sql=sql,
        table=part.name,
        aggregate=aggregate.name,
    )
